"""Notices that somebody has shortened the ring's file, before that ends the process.

A store to a page of a mapped file that is gone raises SIGBUS. In what `hangscope compile` makes, a
handler replaces the page at that moment. Without it, the watcher looks at the file's size in every
turn and replaces all pages; a store in between, within half a second, still ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
from types import ModuleType

import numpy as np

from hangscope.ring.writer import RingWriter

_MAP_FIXED = 0x10


class RingLostError(Exception):
    """The ring's file has become shorter; what is recorded from now on is in no file."""

    def __init__(self) -> None:
        super().__init__("somebody has shortened the ring's file")


class RingGuard:
    """Guards one ring.

    Parameters
    ----------
    ring:
        The ring.
    module:
        The compiled module; None if there is none.
    """

    def __init__(self, ring: RingWriter, module: ModuleType | None) -> None:
        self._memory = ring.memory
        self._size = len(ring.memory)
        self._module = module

    def check(self) -> None:
        """Guard the ring, or find out that it is too late for that.

        Raises
        ------
        RingLostError
            Once the file has become shorter. Storing into the ring is harmless from then on.
        """
        lost = self._module is not None and self._module.guard(self._memory)
        if lost or self._memory.size() < self._size:
            self._replace_pages()
            raise RingLostError

    def remove(self) -> None:
        """Put the job's own handler back."""
        if self._module is not None:
            self._module.unguard()

    def _replace_pages(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        address = np.frombuffer(self._memory, np.uint8).ctypes.data
        libc.mmap(
            ctypes.c_void_p(address), ctypes.c_size_t(self._size), mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, ctypes.c_long(0),
        )  # fmt: skip
