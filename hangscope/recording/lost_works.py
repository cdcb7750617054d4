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
        self._seen_by: dict[int, int] = {}
        """Work's id -> the thread that last saw it without another reference."""

    def watch(self, entry: Pending) -> None:
        """This thread has issued an operation, which will be handed to `forget` in the end."""
        self._seen_by[id(entry[1])] = get_ident()

    def is_lost(self, entry: Pending) -> bool:
        """Whether nobody but the recorder refers to its Work, nor is about to.

        Where another thread is concerned, the operator may not have returned to the job yet: then
        only the second look counts.
        """
        if getrefcount(entry[1]) > self._ours:
            return False
        key, thread = id(entry[1]), get_ident()
        if self._seen_by.get(key) == thread:
            return True
        self._seen_by[key] = thread
        return False

    def forget(self, work: Any) -> None:
        """This Work is no longer watched; another one may get its address."""
        if self._seen_by:
            self._seen_by.pop(id(work), None)
