"""A watchdog's message: its writer, its group, and the numbers in it.

White space is optional everywhere, because terminals wrap these lines in the middle of words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.trace.job_log.evidence.notes import UNKNOWN_GROUP, GroupId
from hangscope.trace.job_log.lines.line import LogLine

LABEL = re.compile(
    r"\[PG(?:\s*ID\s*(?P<id>\d+)\s*PG\s*GUID\s*(?P<guid>[^\s()\]]+)\s*|\s+(?P<name>[^\s()\]]+)\s*)"
    r"(?:\((?P<desc>[^)]*)\))?\s*Rank\s*(?P<rank>\d+)\s*\]|\[Rank\s*(?P<old>\d{1,7})\s*\]"
)
"""A group's label, or that of versions which name no group."""
_IN_GROUP = re.compile(LABEL.pattern.rpartition("|")[0])
_MOST = 1 << 62
"""Larger numbers are damage, or the recorder's value for "none" (2**64 - 1)."""


@dataclass(frozen=True, slots=True)
class Message:
    """A watchdog's message, and its writer according to its label or the line's prefix."""

    line: LogLine
    at_ns: int
    rank: int | None
    group: GroupId
    place: int | None
    """The writer's rank inside the group."""


def message_of(line: LogLine, at_ns: int) -> Message:
    """The message of a line."""
    group, place = _label(line.text)
    rank = line.rank if line.rank is not None else _rank_without_prefix(group, place)
    return Message(line, at_ns, rank, group, place)


def _label(text: str) -> tuple[GroupId, int | None]:
    """The group in a message's label, and the rank inside it."""
    found = _IN_GROUP.search(text) or LABEL.search(text)
    if found and found["rank"]:
        name = found.group("guid") or found.group("name") or ""
        desc = found.group("desc") or ("default_pg" if name == "0" else "")
        return (name, desc), int(found.group("rank")[:8])
    return UNKNOWN_GROUP, int(found["old"]) if found else None


def _rank_without_prefix(group: GroupId, place: int | None) -> int | None:
    """Before torch 2.2 only the message states a rank, and that is the rank inside a group.

    It is taken for the global rank if the group is unknown, as it is usually the default one then.
    """
    if place is None:
        return None
    if group == UNKNOWN_GROUP or group[1] == "default_pg":
        return place
    return None


def number(text: str | None) -> int | None:
    """The number in a text, without blanks from a wrapped line; None for damage."""
    if text is None:
        return None
    digits = text[:20] if text.isdecimal() else re.sub(r"\D", "", text)[:20]
    number = int(digits) if digits else None
    return None if number is not None and number > _MOST else number
