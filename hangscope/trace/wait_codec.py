"""Encodes a `KernelWait` as builtins that JSON can hold, and decodes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hangscope.trace import clean
from hangscope.trace.facts import KernelWait

_MOST_LISTED = 16
_MOST_PID = 1 << 31


def encode_wait(wait: KernelWait) -> dict[str, Any]:
    """A wait as builtins."""
    return asdict(wait)


def decode_wait(said: object) -> KernelWait | None:
    """A wait from the output of `encode_wait`; None if it is malformed."""
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
    """The first items of a list; empty if the value is not a list."""
    value = said.get(key)
    return list(value[:_MOST_LISTED]) if isinstance(value, list | tuple) else []
