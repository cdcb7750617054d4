"""What nodes tell each other through the job's store. Whatever is read from it may be made up."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import orjson

GROUP = 32
"""Nodes whose reports one of them combines."""
_HEAD = struct.Struct("<q")
"""Of a report: when it was sent (ns, the sender's clock)."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one node has sent."""

    sent_ns: int
    digest: bytes
    """Empty if it has only said where it is."""

    def packed(self) -> bytes:
        """As bytes."""
        return _HEAD.pack(self.sent_ns) + self.digest

    @classmethod
    def unpacked(cls, raw: bytes | None) -> Report | None:
        """The inverse; None for anything else."""
        if raw is None or len(raw) < _HEAD.size:
            return None
        (sent_ns,) = _HEAD.unpack_from(raw)
        return cls(sent_ns, raw[_HEAD.size :]) if sent_ns > 0 else None


@dataclass(frozen=True, slots=True)
class Heard:
    """When a node was last heard of."""

    number: int
    sent_ns: int
    ahead_ns: int
    """How far its clock is ahead of the reader's, less the time its report has taken."""


@dataclass(slots=True)
class Announcement:
    """What the first node tells all others."""

    count: int = 0
    """How many nodes it has counted: whoever has a higher number has not been heard."""
    verdict: str = ""
    hosts: int = 0
    """Version of ``hosts``."""
    deep: bool = False
    """Whether reports are to hold all that is recorded, not just the newest."""


def count_of(raw: bytes) -> int:
    """A counter of the store's; 0 for anything else."""
    return int(raw) if raw.isdigit() and len(raw) < 19 else 0


def spoken(raw: bytes | None, first: int) -> tuple[int, int, list[Heard]] | None:
    """What a speaker says of its group: reports covered, number of the combined report, who was
    heard, itself first; None for anything else."""
    said = loaded(raw)
    if said is None or len(said) != 3 or [*map(type, said)] != [int, int, list]:
        return None
    rows = []
    for row in said[2][:GROUP]:
        if not isinstance(row, list) or [*map(type, row)] != [int, int, int]:
            return None
        if first <= row[0] < first + GROUP:
            rows.append(Heard(row[0], row[1], row[2]))
    return (said[0], said[1], rows) if rows else None


def loaded(raw: bytes | None) -> list[Any] | None:
    """A JSON list; None for anything else."""
    try:
        said = orjson.loads(raw) if raw is not None else None
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, list) else None
