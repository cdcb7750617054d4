"""Atomic sections for threads of the job, without a lock if none is needed.

From Python 3.11 on, the interpreter switches threads and runs signal handlers only at calls, at
backward jumps and at the start of a function. A run of loads, stores and arithmetic without any of
these is atomic. Python 3.10 also switches at forward jumps, that is, at every ``if``, and a
free-threaded interpreter anywhere: there a real lock is taken.

Source: ``CHECK_EVAL_BREAKER`` in CPython's ``ceval.c`` of 3.10 and 3.11.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ATOMIC = sys.version_info >= (3, 11) and bool(getattr(sys, "_is_gil_enabled", lambda: True)())
"""Whether a run of plain statements needs no lock."""
_LOCK = threading.RLock()
if not ATOMIC:  # another thread may hold it at the time of a fork
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: the function itself if it is atomic, else one that holds a lock."""
    if ATOMIC:
        return function

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _LOCK:
            return function(*args, **kwargs)

    return locked
