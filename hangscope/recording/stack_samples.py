"""The current Python stacks of all threads, as text for the ring's sample area."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType

from hangscope.recording.compiled.load import compiled
from hangscope.recording.compiled.names import SOURCES

MAX_THREADS = 48
MAX_INNER = 48
MAX_OUTER = 16
"""Frames kept at each end of a deep stack (a recursion, imports that import): the inner ones show
what the thread does, the outer ones which line of the program led there."""
MAX_WALKED = 4096
"""Of a deeper stack the outer end is not looked for."""
_COMPILED = {
    "kernel": f"F 0\x00kernel\x00{SOURCES / 'kernel.hpp'}",
    "wait": f"F 0\x00wait\x00{SOURCES / 'waits.hpp'}",
}
"""Stand for the frames that the recorder's functions in Python have below those of torch's."""


def sample_threads(skip: int | None = None) -> bytes:
    """Stacks of all threads, main thread first.

    One line per thread, ``T kind number name``: kind is ``main``, ``daemon``, ``plain``, or
    ``other`` if Python did not start it; number is the kernel's thread id, 0 if not known. Then one
    line per frame, innermost first: ``F line NUL function NUL file``; one whose file is ``??`` says
    how many are left out there. ``skip`` is the ident of a thread to leave out.
    """
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in list(threading._active.values())}  # type: ignore[attr-defined]
    module = compiled()
    inside: Mapping[int, str] = module.inside() if module is not None else {}
    frames = sys._current_frames()
    try:
        order = sorted(frames, key=lambda ident: ident != main)[:MAX_THREADS]
        shown = [ident for ident in order if ident != skip]
        return "\n".join(_lines(frames, shown, threads, inside)).encode("utf-8", "replace")
    finally:
        # This function's own frame is among them. That cycle would keep alive what every thread's
        # functions hold (tensors, process groups) until the garbage collector runs, if ever.
        frames.clear()


def _lines(
    frames: dict[int, FrameType],
    order: list[int],
    threads: dict[int | None, threading.Thread],
    inside: Mapping[int, str],
) -> Iterator[str]:
    main = threading.main_thread().ident
    for ident in order:
        thread = threads.get(ident)
        kind = "main" if ident == main else _kind(thread)
        name = str(thread.name).replace("\n", " ") if thread is not None else ""
        number = thread.native_id or 0 if thread is not None else 0
        yield f"T {kind} {number} {name}"
        if ident in inside:
            yield _COMPILED[inside[ident]]
        yield from _both_ends(frames[ident])


def _both_ends(innermost: FrameType) -> Iterator[str]:
    """The lines of a stack, without what exceeds `MAX_INNER` and `MAX_OUTER` in its middle."""
    walk = _callers(innermost)
    yield from map(_line, islice(walk, MAX_INNER))
    last = deque(enumerate(islice(walk, MAX_WALKED), 1), MAX_OUTER)
    deeper = last[-1][0] if last else 0
    if deeper == MAX_WALKED:
        yield f"F 0\x00(over {MAX_WALKED} frames left out)\x00??"
        return
    if deeper > len(last):
        yield f"F 0\x00({deeper - len(last)} frames left out)\x00??"
    yield from (_line(frame) for _, frame in last)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"F {frame.f_lineno or 0}\x00{code.co_name}\x00{code.co_filename}"


def _kind(thread: threading.Thread | None) -> str:
    """Whether the interpreter waits for a thread before it exits; it does for plain ones."""
    if thread is None:
        return "other"
    return "daemon" if thread.daemon else "plain"
