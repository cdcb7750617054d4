"""Whether a process is on its way out where it issues an operation.

Who ends a job that hangs lets loose what its ranks do at their end: handlers of SIGTERM that save a
checkpoint, ``finally`` clauses with a barrier, functions run at exit. What is issued there is no
step of the program, and must not be taken for the operation that the others have waited for.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

_MOST_FRAMES = 1024
_MOST_CONTEXTS = 16
_MOST_PARTIALS = 4

Place = tuple[CodeType, int]
"""A frame by its code and the line it is at."""


def frame_places(frame: FrameType | None) -> list[Place]:
    """The innermost frames of a stack, the innermost first; of a deep recursion not all."""
    places: list[Place] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        places.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return places


def interrupted_stack(places: list[Place], *, own_thread: bool = True) -> list[Place] | None:
    """Where a thread stood before it went on its way out; None where it is not.

    It is in a signal handler, with KeyboardInterrupt or SystemExit on its way through the
    program, or at exit. Where it had been is not always known: then the list is empty.

    Asked once for each stack. That the answer is stable follows from the byte code: what runs with
    an exception on its way has instructions of its own, even in a ``finally`` clause.

    Parameters
    ----------
    places:
        The stack, as `frame_places` gives it.
    own_thread:
        Whether it is the calling thread's: only that one's exceptions are known here.
    """
    handlers = _codes_of_handlers()
    ending = _ending_process(sys.exc_info()[1]) if own_thread else None
    if ending is not None:
        return _outside_of(handlers, _raised_at(ending))
    outside = _outside_of(handlers, places)
    if len(outside) < len(places):
        return outside
    return None if threading.main_thread().is_alive() else []


def _raised_at(error: BaseException) -> list[Place]:
    """Where an exception came up, innermost first, and who had called that."""
    trace = error.__traceback__
    if trace is None:
        return []
    outer = frame_places(trace.tb_frame.f_back)
    inner: list[Place] = []
    while trace is not None and len(inner) < _MOST_FRAMES:
        inner.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return inner[::-1] + outer


def _outside_of(handlers: frozenset[CodeType], places: list[Place]) -> list[Place]:
    """What lies outside of the outermost signal handler in a stack; all where there is none."""
    inside = max((i for i, (code, _) in enumerate(places) if code in handlers), default=-1)
    return places[inside + 1 :]


def _ending_process(error: BaseException | None) -> BaseException | None:
    """What ends the process, if it is that which is being handled or what this came up in."""
    for _ in range(_MOST_CONTEXTS):
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        error = error.__context__
    return None


def _codes_of_handlers() -> frozenset[CodeType]:
    """The code of every signal handler written in Python."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return frozenset(code for handler in handlers if (code := _code_of(handler)) is not None)


def _code_of(handler: Any) -> CodeType | None:
    """The code that a handler runs first; no attribute of the job's own objects is asked for."""
    for _ in range(_MOST_PARTIALS):
        if type(handler) is functools.partial:
            handler = handler.func
        elif type(handler) is MethodType:
            handler = handler.__func__
    if type(handler) is not FunctionType:
        kinds = (vars(kind) for kind in type(handler).__mro__)
        handler = next((names["__call__"] for names in kinds if "__call__" in names), None)
    return handler.__code__ if type(handler) is FunctionType else None
