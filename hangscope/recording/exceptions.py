"""An exception, or the message of a ``sys.exit``, as JSON for the ring."""

from __future__ import annotations

import itertools
import json
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

MAX_FRAMES = 64
MAX_MESSAGE = 8000
_MOST_CAUSES = 32


def describe_exception(
    kind: type[BaseException],
    value: BaseException | None,
    trace: TracebackType | None,
    thread: threading.Thread | None,
    *,
    most_frames: int = MAX_FRAMES,
    most_text: int = MAX_MESSAGE,
) -> bytes:
    """Type, message, thread and innermost frames (innermost first) of an exception.

    Includes its first cause (``raise ... from ...``): the cause's message, and the frames down to
    where that was raised.
    """
    walked = _down_to_first_cause(value, trace)[-most_frames:]
    frames = [
        [frame.f_code.co_name, frame.f_code.co_filename, line or 0]
        for frame, line in reversed(walked)
    ]
    module = kind.__module__
    name = (
        kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    )
    message = text_of(value)[:most_text]
    first = _first_cause(value)
    if first is not None:
        kept = f"\ncaused by {type(first).__name__}: {text_of(first)}"[: most_text // 2]
        message = message[: most_text - len(kept)] + kept
    return _as_json(name, message, thread, frames)


def describe_last_words(text: str, frame: FrameType) -> bytes:
    """``sys.exit("no such data set")``, called in ``frame``: Python prints it and exits with 1."""
    walked = itertools.islice(traceback.walk_stack(frame), MAX_FRAMES)
    frames = [[f.f_code.co_name, f.f_code.co_filename, line or 0] for f, line in walked]
    return _as_json("SystemExit", text[:MAX_MESSAGE], threading.main_thread(), frames)


def _as_json(
    name: str, message: str, thread: threading.Thread | None, frames: Sequence[Sequence[object]]
) -> bytes:
    return json.dumps(
        {
            "type": name,
            "message": message,
            "thread": thread.name if thread is not None else "MainThread",
            "main": thread is None or thread is threading.main_thread(),
            "native_id": _native_id(thread),
            "frames": frames,
        }
    ).encode()


def _native_id(thread: threading.Thread | None) -> int:
    """The kernel's id of a thread. A forked process's main thread object may still hold the old."""
    if thread is threading.current_thread():
        return threading.get_native_id()
    return getattr(thread, "native_id", None) or 0


def text_of(value: BaseException | None) -> str:
    try:
        return str(value)
    except Exception:
        return "<its __str__ failed>"


def _down_to_first_cause(
    value: BaseException | None, trace: TracebackType | None
) -> list[tuple[FrameType, int]]:
    """Frames and lines, outermost first, down to where the first cause was raised.

    The traceback of a cause that was caught in one of these frames begins at that frame. A cause
    from another thread or process does not, and is ignored.
    """
    walked = list(traceback.walk_tb(trace))  # reads no source, unlike extract_tb
    for cause in _causes(value):
        inner = list(traceback.walk_tb(cause.__traceback__))
        caught = inner[0][0] if inner else None
        at = next((i for i, (frame, _) in enumerate(walked) if frame is caught), None)
        if at is not None:
            walked = [*walked[:at], *inner]
    return walked


def _first_cause(value: BaseException | None) -> BaseException | None:
    """The first exception in the chain of causes."""
    return ([None, *_causes(value)])[-1]


def _causes(value: BaseException | None) -> Iterator[BaseException]:
    """The chain of causes (``raise ... from ...``), back to the first."""
    for _ in range(_MOST_CAUSES):
        value = value.__cause__ if value is not None else None
        if value is None:
            return
        yield value
