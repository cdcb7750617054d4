"""Atomic sections for threads of the job, and the order in which other processes see stores.

From Python 3.11 on, the interpreter switches threads and runs signal handlers only at calls, at
backward jumps and at the start of a function. A run of loads, stores and arithmetic without any of
these is atomic. Python 3.10 also switches at forward jumps, that is, at every ``if``, and a
free-threaded interpreter anywhere: there a real lock is taken.

Source: ``CHECK_EVAL_BREAKER`` in CPython's ``ceval.c`` of 3.10 and 3.11.

x86 shows stores to others in the order of the program. Other processors may not, so what says that
something is complete must be kept behind it by `barrier`.
"""

from __future__ import annotations

import functools
import os
import platform
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


IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""Whether others see stores in the order of the program."""


def barrier() -> None:
    """Have others see what was stored before no later than what is stored from now on."""
    if not IN_ORDER:
        _full_barrier()


def _full_barrier() -> None:
    # Python has no barrier. Letting go of a lock is a store with release semantics, and taking it
    # again a load with acquire semantics of the same place: nothing passes both of them (Arm's
    # manual: barrier-ordered-before). Each thread has its own, so that none ever waits.
    try:
        lock = _LOCAL.lock
    except AttributeError:
        lock = _LOCAL.lock = threading.Lock()
        lock.acquire()
    lock.release()
    lock.acquire()


_LOCAL = threading.local()
