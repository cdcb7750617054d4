"""Whether an operation is issued while its process is shutting down.

Ending a hung job triggers whatever its ranks do at their end: SIGTERM handlers that save a
checkpoint, ``finally`` clauses with a barrier, ``atexit`` functions. An operation issued there is
not part of the program's normal flow and must not be taken for the one that the others wait for.
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
"""A frame as its code and current line."""


def frame_places(frame: FrameType | None) -> list[Place]:
    """A stack's frames, innermost first; limited, for deep recursions."""
    places: list[Place] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        places.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return places


def interrupted_stack(places: list[Place], *, own_thread: bool = True) -> list[Place] | None:
    """The stack that shutdown has interrupted; None if the thread is not shutting down.

    It is shutting down if it is in a signal handler, if KeyboardInterrupt or SystemExit propagates
    through the program, or at exit. If the interrupted stack is not known, the list is empty.

    Called once per distinct stack. The answer cannot change later, because code that runs while an
    exception propagates has byte code of its own, even in a ``finally`` clause.

    Parameters
    ----------
    places:
        The present stack, as `frame_places` gives it.
    own_thread:
        Whether it is the calling thread's; only that thread's exceptions are visible.
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
    """The stack at which an exception was raised, innermost first, including all callers."""
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
    """The part of a stack that the outermost signal handler interrupted; all of it without one."""
    inside = max((i for i, (code, _) in enumerate(places) if code in handlers), default=-1)
    return places[inside + 1 :]


def _ending_process(error: BaseException | None) -> BaseException | None:
    """The exception that ends the process: the one being handled, or one in its context."""
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
    """The code a handler runs first, found without reading attributes of the job's own objects."""
    for _ in range(_MOST_PARTIALS):
        if type(handler) is functools.partial:
            handler = handler.func
        elif type(handler) is MethodType:
            handler = handler.__func__
    if type(handler) is not FunctionType:
        kinds = (vars(kind) for kind in type(handler).__mro__)
        handler = next((names["__call__"] for names in kinds if "__call__" in names), None)
    return handler.__code__ if type(handler) is FunctionType else None
