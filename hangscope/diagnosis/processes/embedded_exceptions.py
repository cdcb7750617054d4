"""Exceptions of helper processes, which a rank re-raises with their traceback as the message.

The helper is a data loader worker, a pool worker or an actor. Only that text shows what went wrong,
and at which line of the user's code; the rank's own stack ends where it waited for the helper.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.trace.model import NONE, ExceptionFacts, Frame, Trace

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)', re.M)
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_FAILED_ON = re.compile(r"CheckpointException ranks:\s*dict_keys\(\[([\d, ]+)\]\)")
_OF_RANKS = re.compile(r"\branks?\b", re.I)
_CAUGHT = re.compile(r"Caught \w+ in ([^\n]{1,80}?)\.?\s*(?:\n|$)")


def with_original_exceptions(trace: Trace) -> Trace:
    """The trace with exceptions raised in helper processes in place of those that re-raise them."""
    found = {}
    places = own_places(trace)
    for rank, facts in trace.ranks.items():
        if facts.exception is not None and _TRACEBACK in facts.exception.message:
            first = original(facts.exception, places.get(rank, rank))
            if first is not facts.exception:
                found[rank] = replace(facts, exception=first)
    return replace(trace, ranks={**trace.ranks, **found}) if found else trace


def failed_ranks(message: str) -> frozenset[int] | None:
    """Which ranks failed, if all raise because some did; empty if the message does not say which.

    None if the message is about the rank itself.
    """
    said = _FAILED_ON.search(message)
    if said is not None:
        return frozenset(int(number) for number in said[1].split(",") if number.strip())
    before = message[: message.find(_TRACEBACK)] if _TRACEBACK in message else ""
    return frozenset() if _OF_RANKS.search(before) else None


def own_places(trace: Trace) -> dict[int, int]:
    """Per rank the number used for it in messages that all raise because some failed.

    These number the members of the group that worked together: one in which all members raise
    except those that failed. Ranks with no such known group are left out.
    """
    known = {
        rank: failed
        for rank, facts in trace.ranks.items()
        if facts.exception is not None and (failed := failed_ranks(facts.exception.message))
    }
    named = frozenset().union(*known.values())
    for group in trace.groups if known else ():
        silent = {place for place, rank in enumerate(group.ranks) if rank not in known}
        if silent <= named and known.keys() <= set(group.ranks):
            return {rank: place for place, rank in enumerate(group.ranks)}
    return {}


def original(exception: ExceptionFacts, rank: int = NONE) -> ExceptionFacts:
    """The exception at the end of the embedded traceback; the exception itself if that is unclear.

    ``rank``: the raising rank, as such messages number it.

    The helper's frames come first (they are the innermost), then those of the rank.
    """
    own = failed_ranks(exception.message)
    if own is not None and own != {rank}:
        return exception  # another rank's exception, reported to all
    inner = exception.message[exception.message.rfind(_TRACEBACK) + len(_TRACEBACK) :]
    frames = [
        Frame(match["name"], match["file"], int(match["line"])) for match in _FRAME.finditer(inner)
    ]
    ends = [
        match
        for line in inner.splitlines()
        if line.strip() and not line[0].isspace() and (match := _LAST_LINE.match(line))
    ]
    if not frames or not ends:
        return exception
    caught = _CAUGHT.search(exception.message)
    where = f" (in {caught[1]})" if caught else ""
    return replace(
        exception,
        type_name=ends[0]["type"],
        message=(ends[0]["text"] or "") + where,
        stack=(*reversed(frames), *exception.stack),
    )
