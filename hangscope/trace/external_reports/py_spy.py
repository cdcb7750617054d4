"""Reads ``py-spy dump --json``: a list of the threads of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_THREAD_KEYS = frozenset({"thread_id", "active"})
"""Distinguish threads from a recorder's entries, which also have a thread and frames."""
_MOST_THREADS = 512
_MOST_FRAMES = 128


def is_py_spy_dump(document: Any) -> bool:
    """Whether a document is such a list."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(
            isinstance(thread, Mapping)
            and thread.keys() >= _THREAD_KEYS
            and isinstance(thread.get("frames"), list)
            for thread in document
        )
    )


def to_text(document: list[Mapping[str, Any]]) -> str:
    """The same stacks as printed by ``py-spy dump``; see `is_py_spy_dump`."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: list[Mapping[str, Any]]) -> Iterator[str]:
    pid = document[0].get("pid")
    about = document[0].get("process_info")
    command = about.get("command_line") if isinstance(about, Mapping) else None
    if isinstance(pid, int):
        yield f"Process {pid}: {_one_line(command)}"
        yield "Python v3"
    for thread in document[:_MOST_THREADS]:
        name = _one_line(thread.get("thread_name")).replace('"', "'")
        state = "active" if thread.get("active") else "idle"
        yield f"Thread {_number(thread['thread_id'])} ({state})" + (f': "{name}"' if name else "")
        for frame in thread["frames"][:_MOST_FRAMES]:
            if isinstance(frame, Mapping):
                file = _one_line(frame.get("filename")).replace("(", "[").replace(")", "]")
                yield f"    {_one_line(frame.get('name'))} ({file}:{_number(frame.get('line'))})"


def _one_line(value: Any) -> str:
    return " ".join(value.split())[:400] if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
