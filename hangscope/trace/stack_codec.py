"""Encodes stacks and threads as builtins, for journals and for our extension of dumps.

A frame is ``[function, file, line]``, innermost first. Decoding expects untrusted input: anything
may be missing, wrong or made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hangscope.trace import clean
from hangscope.trace.model import Frame, Stack, ThreadStack

MAX_THREADS = 256
MAX_FRAMES = 256


def encode_stack(stack: Stack, path: Callable[[str], str] = str) -> list[list[Any]]:
    """A stack as builtins; ``path`` maps each file name to the one to be written."""
    return [[frame.name, path(frame.filename), frame.line] for frame in stack]


def decode_stack(value: Any) -> Stack:
    """A stack from the output of `encode_stack`; anything that is not a frame is skipped."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(
        Frame(clean.as_name(row[0], "?"), clean.as_name(row[1]), clean.as_int(row[2], 0, low=0))
        for row in value[:MAX_FRAMES]
        if isinstance(row, (list, tuple)) and len(row) == 3
    )


def encode_threads(
    threads: Iterable[ThreadStack], path: Callable[[str], str] = str
) -> list[dict[str, Any]]:
    """Threads as builtins; those without a stack are omitted."""
    return [
        {
            "name": thread.name,
            "main": thread.is_main,
            "source": thread.source,
            "at_ns": thread.sampled_ns,
            "native_id": thread.native_id,
            "daemon": thread.daemon,
            "frames": encode_stack(thread.stack, path),
        }
        for thread in threads
        if thread.stack
    ]


def decode_threads(value: Any) -> tuple[ThreadStack, ...]:
    """Threads from the output of `encode_threads`; anything that is not a thread is skipped."""
    rows = value[:MAX_THREADS] if isinstance(value, (list, tuple)) else ()
    return tuple(
        ThreadStack(
            name=clean.as_name(row.get("name"), "?"),
            is_main=row.get("main") is True,
            stack=stack,
            sampled_ns=clean.as_int(row.get("at_ns"), 0, low=0),
            source=clean.as_name(row.get("source")) or "sample",
            native_id=clean.as_int(row.get("native_id"), 0, low=0),
            daemon=daemon if isinstance(daemon := row.get("daemon"), bool) else None,
        )
        for row in rows
        if isinstance(row, Mapping) and (stack := decode_stack(row.get("frames")))
    )
