"""Finds the dumps in a document: collectors wrap them and combine several ranks.

Nothing here trusts a shape: the search is bounded in depth and in steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hangscope.trace import clean
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder.columns import SEQ_FIELDS
from hangscope.trace.model import MAX_RANK, NONE

MAX_DEPTH = 8
MAX_STEPS = 200_000

_MARKS = ("entries", "pg_config", "pg_status", "nccl_comm_state", "comm_lib_version")
_RANK_KEYS = ("rank", "global_rank")
_RANK_LABEL = re.compile(r"(?:.*[_\-. /])?(?:global)?(?:rank|worker)?[_\-. ]?(\d{1,8})", re.I)


def find_dumps(document: Any, rank: int | None) -> list[tuple[int | None, Any]]:
    """(rank, dump) for every dump in a document; ``rank`` is the rank in the file's name.

    Raises
    ------
    Unreadable
        If there is none; the text says what the document is instead.
    """
    if looks_like_entry(document) and not is_dump(document):
        document = [document]  # a file with one entry per line, and only one line
    steps = [MAX_STEPS]
    dumps = _search(document, rank, 0, steps)
    found = [part for own, dump in dumps for part in _by_rank(own, dump)]
    if len(found) > 1:  # the file's name cannot apply to all of them
        found = [(own if own != rank else _stated_rank(dump), dump) for own, dump in found]
    if not found:
        raise Unreadable(_what_else(document))
    return found


def _search(
    node: Any, rank: int | None, depth: int, steps: list[int]
) -> Iterator[tuple[int | None, Any]]:
    steps[0] -= 1
    if depth > MAX_DEPTH or steps[0] < 0:
        return
    if is_dump(node):
        stated = _stated_rank(node)
        yield (rank if stated is None else stated), node
    elif isinstance(node, Mapping):
        stated = _stated_rank(node)
        rank = rank if stated is None else stated
        for key, value in node.items():
            if isinstance(value, (Mapping, list)):
                named = _RANK_LABEL.fullmatch(clean.as_name(key))
                inside = clean.as_int(named.group(1), NONE, high=MAX_RANK) if named else NONE
                yield from _search(value, rank if inside == NONE else inside, depth + 1, steps)
    elif isinstance(node, list):
        for item in node:
            if isinstance(item, (Mapping, list)):
                yield from _search(item, rank, depth + 1, steps)


def _by_rank(rank: int | None, dump: Any) -> Iterator[tuple[int | None, Any]]:
    """Split a dump whose entries state their rank, if they are of several ranks.

    If all of them state the same rank, it is used if nothing else gives one.
    """
    document, entries = parts_of(dump)
    if not isinstance(entries, list) or not entries or _stated_rank(entries[0]) is None:
        yield rank, dump
        return
    parts: dict[int | None, list[Any]] = {}
    for entry in entries:
        parts.setdefault(_stated_rank(entry), []).append(entry)
    parts.pop(None, None)
    if len(parts) == 1:
        yield (next(iter(parts)) if rank is None else rank), dump
        return
    # The counters belong to one of the ranks, but to which is unknown.
    shared = {key: value for key, value in document.items() if key != "pg_status"}
    for own, part in parts.items():
        yield own, {**shared, "rank": own, "entries": part}


def is_dump(document: Any) -> bool:
    """Whether this is one rank's dump: a bare list of entries, or an object that holds one."""
    if isinstance(document, Mapping):
        return any(key in document for key in _MARKS)
    return isinstance(document, list) and bool(document) and looks_like_entry(document[0])


def looks_like_entry(value: Any) -> bool:
    """Whether this has an operation and a sequence number."""
    return (
        isinstance(value, Mapping)
        and "profiling_name" in value
        and any(key in value for key in SEQ_FIELDS)
    )


def parts_of(dump: Any) -> tuple[Mapping[str, Any], Any]:
    """A dump as (its fields, its raw entries)."""
    return (dump, dump.get("entries", [])) if isinstance(dump, Mapping) else ({}, dump)


def _stated_rank(document: Any) -> int | None:
    """The rank that a document itself states."""
    if isinstance(document, Mapping):
        for key in _RANK_KEYS:
            rank = clean.as_int(document.get(key), NONE, low=0, high=MAX_RANK)
            if rank != NONE:
                return rank
    return None


_OTHERS = (
    ("coll_perf", "timings of finished collectives by NCCL's inspector, which tell of no hang"),
    ("traceEvents", "a timeline of a profiler, which tells of no hang"),
    ("device_traces", "a memory snapshot"),
)


def _what_else(document: Any) -> str:
    first = document[0] if isinstance(document, list) and document else document
    for key, what in _OTHERS if isinstance(first, Mapping) else ():
        if key in first:
            return f"{what} (it holds {key}); not used"
    if isinstance(document, Mapping):
        return _what_object(document)
    if not isinstance(document, list):
        return f"no Flight Recorder dump (it holds a single {type(document).__name__})"
    if not document:
        return "an empty list, no Flight Recorder dump"
    if isinstance(first, Mapping):
        return f"no Flight Recorder dump (a list of objects with {names_of(first)})"
    return "no Flight Recorder dump (a list of something else)"


def _what_object(document: Mapping[Any, Any]) -> str:
    for key, value in document.items():
        if "error" in clean.as_name(key).lower():
            reason = clean.as_name(value)[:120]
            return f"a placeholder instead of a dump ({clean.as_name(key)}: {reason})"
    if not document:
        return "an empty object, no Flight Recorder dump"
    return f"no Flight Recorder dump (its keys are {names_of(document)})"


def names_of(mapping: Mapping[Any, Any]) -> str:
    """Some keys of an object, for a message."""
    keys = ", ".join(clean.as_name(key) or "?" for key in list(mapping)[:6])
    return keys[:100]
