"""What a process does not go on for, as builtins that JSON can hold, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hangscope.trace import clean
from hangscope.trace.facts import KernelWait

_MOST_LISTED = 16
_MOST_PID = 1 << 31


def plain_wait(wait: KernelWait) -> dict[str, Any]:
    """A wait as builtins."""
    return asdict(wait)


def wait_from(said: object) -> KernelWait | None:
    """The wait that `plain_wait` gave; None for what can be none."""
    if not isinstance(said, dict):
        return None
    return KernelWait(
        clean.as_name(said.get("kind")),
        clean.as_name(said.get("what")),
        tuple(clean.as_int(pid, 0, low=0, high=_MOST_PID) for pid in _few(said, "processes")),
        tuple(clean.as_name(name) for name in _few(said, "names")),
        said.get("alone") is True,
        tuple(clean.as_name(path) for path in _few(said, "locked")),
        tuple(clean.as_name(helper) for helper in _few(said, "helpers")),
        clean.as_int(said.get("since_ns"), 0, low=0),
        clean.as_int(said.get("seen_ns"), 0, low=0),
    )


def _few(said: dict[str, Any], key: str) -> list[Any]:
    """The first of a list; none where it is no list."""
    value = said.get(key)
    return list(value[:_MOST_LISTED]) if isinstance(value, list | tuple) else []
