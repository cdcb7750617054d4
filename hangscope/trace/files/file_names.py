"""Extracts rank and attempt from a path, and makes paths printable."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hangscope.trace import clean

_SUFFIXES = re.compile(
    r"(?:\.(?:gz|jsonl?|ndjson|pickle|pkl|pt|bin|dump|trace|txt|log|out|err|stderr|stdout|dat))+$",
    re.I,
)
_OUTPUT = re.compile(r"\.(?:log|txt|out|err|stdout|stderr)(?:\.gz)?$", re.I)
_LABELLED_END = re.compile(r"(?:^|[^a-z])rank[_\-.]?(\d{1,7})$", re.I)
_TRAILING = re.compile(r"(?<!\d)(\d{1,7})$")
_STAMPS = re.compile(r"[_\-.]\d{10,19}(?=$|[_\-.])")
_OTHER_NUMBERS = re.compile(
    r"(?:^|[_\-.])(?:pid|proc|local[_\-]?rank|of|world(?:[_\-]?size)?|ws|step|iter(?:ation)?)"
    r"[_\-.=]?\d+(?=$|[_\-.])",
    re.I,
)
_OTHER_PLACES = re.compile(
    r"(?<=[_\-.])(?:node|host|gpu|device|dev|cuda|pg|group|attempt|restart|try|part|shard|copy)"
    r"[_\-.]?\d+(?=$|[_\-.])",
    re.I,
)
"""Numbers that are labelled as something else, in a name that labels its rank."""
_RANK_NUMBER = re.compile(r"(?<![a-z])(?<!local[_\-.])rank[_\-.]?\d{1,7}(?=$|[_.])", re.I)
"""No dash follows: ``rank_10-0-0-1_15`` is the host 10-0-0-1."""
_NODE = re.compile(
    r"(?:^|[^a-z])(?P<what>worker|node|machine)(?:[_\-.]?rank)?[_\-.]?(?P<number>\d{1,5})(?!\d)",
    re.I,
)
_LOG_RANK = re.compile(
    r"(?<![a-z])(?<!local[_\-.])(?<!group[_\-.])(?<!node[_\-.])(?<!machine[_\-.])(?<!\b[tpdec]p[_\-.])"
    r"(?<!_[tpdec]p[_\-.])rank[_\-.]?(\d{1,7})(?!\d)",
    re.I,
)
"""A global rank in a log's name; ranks of a node, in a node or in a mesh dimension do not count."""
_LOCAL_RANK = re.compile(r"(?:^|[^a-z])local[_\-.]?rank[_\-.]?(\d{1,4})(?!\d)", re.I)
_PID = re.compile(r"(?:^|[^a-z])pid[_\-.=]?(\d{1,9})(?!\d)", re.I)
_STACK_FILE = re.compile(r"stack|traceback|faulthandler|py-?spy|dump", re.I)
_LABELLED = re.compile(r"(?:^|[^a-z])rank[_\-.]?(\d{1,7})(?!\d)", re.I)
_DATES = re.compile(
    r"[_\-.]?(?:19|20)\d\d[_\-.]?[01]\d[_\-.]?[0-3]\d(?:[T_\-.]?\d{2}[_\-:.]?\d{2}(?:[_\-:.]?\d{2})?)?"
)
_ATTEMPT = re.compile(r"^(?:attempt|restart|retry|try|generation|gen)[_\-.]?(\d{1,6})$", re.I)


def printable_path(path: str | Path) -> str:
    """The path without control characters or escape sequences, for reports."""
    return clean.name(os.fsdecode(os.fsencode(str(path)))) or "?"


def rank_of_dump(path: Path) -> int | None:
    """The rank in a dump's name, or, if there is none, in the nearest folder's name.

    The last number counts (``nccl_trace_rank_node-7_3``, ``_dump_3.json``), because host names in
    front of it may contain numbers. A number labelled as rank takes precedence over a bare one.
    Numbers with other labels (``_pid_4711``, ``_of_8``) never count; those that a host's name may
    end in as well (``_gpu_1``, ``_pg0``) do not if another number is labelled as rank.
    """
    stem = without_dates(_SUFFIXES.sub("", path.name))
    stem = _OTHER_NUMBERS.sub("", _SUFFIXES.sub("", stem))
    if (named := _RANK_NUMBER.search(stem)) is not None:
        stem = stem[: named.end()] + _OTHER_PLACES.sub("", stem[named.end() :])
    for pattern in (_LABELLED_END, _TRAILING, _LABELLED):
        found = pattern.search(stem)
        if found:
            return _number(found)
    for folder in list(path.parents)[:3]:
        found = _LABELLED.search(folder.name) or re.fullmatch(r"(\d{1,7})", folder.name)
        if found:
            return _number(found)
    return None


def without_dates(path: str) -> str:
    """The path without dates and timestamps."""
    return _STAMPS.sub("", _DATES.sub("", path))


def pid_of_stacks(path: Path) -> int | None:
    """The pid in the name of a file with a process's stacks; faulthandler itself writes none."""
    stem = without_dates(_SUFFIXES.sub("", path.name))
    found = _PID.search(stem) or (_STACK_FILE.search(stem) and _TRAILING.search(stem))
    return _number(found) if found else None


def rank_of_log(path: Path) -> int | None:
    """The rank in a log's name, if it is labelled as one.

    The folders of torchrun's ``<run id>/attempt_<n>/<local rank>/stderr.log`` are local ranks,
    which the caller must check against the number of nodes.
    """
    stem = _SUFFIXES.sub("", path.name)
    for name in (stem, *(folder.name for folder in list(path.parents)[:2])):
        found = _LOG_RANK.findall(name)
        if found:
            return int(found[-1] if name == stem and _LABELLED_END.search(name) else found[0])
    return None


def is_output(path: Path) -> bool:
    """Whether a file is named like what a process prints, rather than like a dump."""
    return _OUTPUT.search(path.name) is not None


def names_a_node(path: Path) -> bool:
    """Whether a log is named after one of several nodes or pods, possibly not the first."""
    found = _NODE.search(path.name)
    return found is not None and (found["what"].lower() == "worker" or int(found["number"]) > 0)


def local_rank_of_log(path: Path) -> int | None:
    """The local rank in a log's name, or in torchrun's folder above ``stderr.log`` or
    ``error.json``.
    """
    named = _LOCAL_RANK.search(path.name)
    if named:
        return int(named[1])
    if path.name in ("stderr.log", "stdout.log", "error.json") and re.fullmatch(
        r"\d{1,4}", path.parent.name
    ):
        return int(path.parent.name)
    return None


def attempt_of(path: Path) -> int | None:
    """The attempt in the name of a folder on the path (``attempt_1``)."""
    for folder in path.parents:
        found = _ATTEMPT.match(folder.name)
        if found:
            return int(found.group(1))
    return None


def _number(found: re.Match[str]) -> int:
    return int(next(group for group in found.groups() if group is not None))
