"""Reads a ring file once, without mapping it.

Copying the few used parts of a ring costs a third of mapping them, touching their pages and
unmapping them. That matters when thousands of rings are read one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hangscope.ring.reader import RingError, RingReader, check_size

Room = Callable[[int], npt.NDArray[np.void]]


class OneTimeReader(RingReader):
    """A `RingReader` that reads from the open file on demand.

    It does not support raw parts (``header_bytes``, ``group_bytes``, ``slot_bytes``).

    Parameters
    ----------
    path:
        The file.
    room:
        Allocates memory for a number of slots, into which they are read; fresh memory by default.

    Raises
    ------
    RingError
        If the file is no ring, of another version, truncated or inconsistent; also later, if the
        file has become shorter.
    OSError
        If it cannot be opened or read.
    """

    def __init__(self, path: str | os.PathLike[str], room: Room | None = None) -> None:
        self.name = os.fspath(path)
        self._given_room = room
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = check_size(self._descriptor)
            self._check()
        except BaseException:
            self.close()
            raise

    def _room(self, count: int) -> npt.NDArray[np.void]:
        return self._given_room(count) if self._given_room else super()._room(count)

    def _read(self, at: int, length: int) -> bytes:
        found = os.pread(self._descriptor, length, at)
        if len(found) < length:
            raise RingError("it became shorter while it was read")
        return found

    def _read_into(self, at: int, target: memoryview) -> None:
        if os.preadv(self._descriptor, [target], at) < len(target):
            raise RingError("it became shorter while it was read")

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
