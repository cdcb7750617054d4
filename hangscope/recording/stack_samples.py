"""The current Python stacks of all threads, as text for the ring's sample area."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType

MAX_THREADS = 48
MAX_FRAMES = 64


def sample_threads(skip: int | None = None) -> bytes:
    """Stacks of all threads, main thread first.

    One line per thread, ``T kind number name``: kind is ``main``, ``daemon``, ``plain``, or
    ``other`` if Python did not start it; number is the kernel's thread id, 0 if not known. Then one
    line per frame, innermost first: ``F line NUL function NUL file``. ``skip`` is the ident of a
    thread to leave out.
    """
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in list(threading._active.values())}  # type: ignore[attr-defined]
    frames = sys._current_frames()
    try:
        order = sorted(frames, key=lambda ident: ident != main)[:MAX_THREADS]
        return "\n".join(_lines(frames, [i for i in order if i != skip], threads)).encode(
            "utf-8", "replace"
        )
    finally:
        # This function's own frame is among them. That cycle would keep alive what every thread's
        # functions hold (tensors, process groups) until the garbage collector runs, if ever.
        frames.clear()


def _lines(
    frames: dict[int, FrameType], order: list[int], threads: dict[int | None, threading.Thread]
) -> Iterator[str]:
    main = threading.main_thread().ident
    for ident in order:
        thread = threads.get(ident)
        kind = "main" if ident == main else _kind(thread)
        name = str(thread.name).replace("\n", " ") if thread is not None else ""
        number = thread.native_id or 0 if thread is not None else 0
        yield f"T {kind} {number} {name}"
        frame: FrameType | None = frames[ident]
        depth = 0
        while frame is not None and depth < MAX_FRAMES:
            code = frame.f_code
            yield f"F {frame.f_lineno or 0}\x00{code.co_name}\x00{code.co_filename}"
            frame = frame.f_back
            depth += 1


def _kind(thread: threading.Thread | None) -> str:
    """Whether the interpreter waits for a thread before it exits; it does for plain ones."""
    if thread is None:
        return "other"
    return "daemon" if thread.daemon else "plain"
