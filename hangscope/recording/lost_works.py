"""Tells which Works are lost: as only the recorder refers to them, nobody will wait for them.

A functional collective (DTensor, ``torch.compile``) is waited for in C++, where no wait is seen,
and a job may drop the Work of an ``isend``. If nothing else tells of such an operation's end, the
recorder would keep its Work, and with it the tensors, for good.
"""

from __future__ import annotations

from sys import getrefcount
from threading import get_ident
from typing import Any

from hangscope.recording.groups import Pending


class LostWorks:
    """Counts references to the Works that it was told of."""

    def __init__(self) -> None:
        probe: list[Any] = [object()]
        self._ours = getrefcount(probe[0])
        self._issued_by: dict[int, int] = {}
        """Work's id -> the thread that has issued it; 0 after a first look of another thread."""

    def watch(self, entry: Pending) -> None:
        """This thread has issued an operation, which will be handed to `forget` in the end."""
        self._issued_by[id(entry[1])] = get_ident()

    def is_lost(self, entry: Pending) -> bool:
        """Whether nobody but the recorder refers to its Work, nor is about to.

        At the first look of another thread than the one that has issued it, the operator may not
        have returned to the job yet: only the next look counts then.
        """
        if getrefcount(entry[1]) > self._ours:
            return False
        key = id(entry[1])
        if self._issued_by.get(key, 0) in (0, get_ident()):
            return True
        self._issued_by[key] = 0
        return False

    def forget(self, work: Any) -> None:
        """This Work is no longer watched; another one may get its address."""
        if self._issued_by:
            self._issued_by.pop(id(work), None)
