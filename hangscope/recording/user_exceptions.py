"""Tells the recorder's own failures from user exceptions that merely surface inside it.

Python runs signal handlers between any two bytecodes, even in the middle of the recorder. An
exception that a user's handler raises there (a timeout by ``SIGALRM``, say) must reach the job as
if the recorder were not there.
"""

from __future__ import annotations

import signal
from types import CodeType, TracebackType
from typing import Any


def is_user_exception(error: BaseException) -> bool:
    """Whether an exception caught in the recorder comes from one of the job's signal handlers."""
    handlers = _handler_codes()
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handler_codes() -> set[CodeType]:
    codes = set()
    for number in signal.valid_signals():
        try:
            handler: Any = signal.getsignal(number)
        except (OSError, ValueError):
            continue
        if not callable(handler) or isinstance(handler, signal.Handlers):
            continue
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        for candidate in (handler, vars(type(handler)).get("__call__")):
            code = getattr(getattr(candidate, "__func__", candidate), "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes
