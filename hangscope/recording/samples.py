"""The current Python stacks of all threads, as text for the ring's sample area."""

from __future__ import annotations

import sys
import threading
from types import FrameType

MAX_THREADS = 48
MAX_FRAMES = 64


def sample_threads(skip: int | None = None) -> bytes:
    """Stacks of all threads, main thread first.

    One line a thread, ``T main|other number name`` (the kernel's number; 0 where it is not known),
    then one a frame, innermost first, ``F line NUL function NUL file``. ``skip`` is the ident of a
    thread to leave out.
    """
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in list(threading._active.values())}  # type: ignore[attr-defined]
    frames = sys._current_frames()
    order = sorted(frames, key=lambda ident: ident != main)
    lines: list[str] = []
    for ident in order[:MAX_THREADS]:
        if ident == skip:
            continue
        kind = "main" if ident == main else "other"
        thread = threads.get(ident)
        name = str(thread.name).replace("\n", " ") if thread is not None else ""
        number = thread.native_id or 0 if thread is not None else 0
        lines.append(f"T {kind} {number} {name}")
        frame: FrameType | None = frames[ident]
        depth = 0
        while frame is not None and depth < MAX_FRAMES:
            code = frame.f_code
            lines.append(f"F {frame.f_lineno or 0}\x00{code.co_name}\x00{code.co_filename}")
            frame = frame.f_back
            depth += 1
    return "\n".join(lines).encode("utf-8", "replace")
