"""What a path says: the rank, the attempt, and a form of it that is fit to be shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hangscope.trace import clean

_SUFFIXES = re.compile(
    r"(?:\.(?:gz|jsonl?|ndjson|pickle|pkl|pt|bin|dump|trace|txt|log|out|err|stderr|stdout|dat))+$",
    re.I,
)
_LABELLED_END = re.compile(r"(?:^|[^a-z])rank[_\-.]?(\d{1,7})$", re.I)
_TRAILING = re.compile(r"(?<!\d)(\d{1,7})$")
_STAMPS = re.compile(r"[_\-.]\d{10,19}(?=$|[_\-.])")
_OTHER_NUMBERS = re.compile(
    r"(?:^|[_\-.])(?:pid|proc|local[_\-]?rank|of|world(?:[_\-]?size)?|ws|step|iter(?:ation)?)"
    r"[_\-.=]?\d+(?=$|[_\-.])",
    re.I,
)
_OF_A_NODE = re.compile(
    r"(?:^|[^a-z])(?P<what>worker|node|machine)(?:[_\-.]?rank)?[_\-.]?(?P<number>\d{1,5})(?!\d)",
    re.I,
)
_OF_LOG = re.compile(
    r"(?<![a-z])(?<!local[_\-.])(?<!group[_\-.])(?<!node[_\-.])(?<!machine[_\-.])(?<!\b[tpdec]p[_\-.])"
    r"(?<!_[tpdec]p[_\-.])rank[_\-.]?(\d{1,7})(?!\d)",
    re.I,
)
"""A rank in a log's name; those of a node, in one of its nodes or in a dimension are others."""
_LOCAL = re.compile(r"(?:^|[^a-z])local[_\-.]?rank[_\-.]?(\d{1,4})(?!\d)", re.I)
_PID = re.compile(r"(?:^|[^a-z])pid[_\-.=]?(\d{1,9})(?!\d)", re.I)
_OF_STACKS = re.compile(r"stack|traceback|faulthandler|py-?spy|dump", re.I)
_LABELLED = re.compile(r"(?:^|[^a-z])rank[_\-.]?(\d{1,7})(?!\d)", re.I)
_DATES = re.compile(
    r"[_\-.]?(?:19|20)\d\d[_\-.]?[01]\d[_\-.]?[0-3]\d(?:[T_\-.]?\d{2}[_\-:.]?\d{2}(?:[_\-:.]?\d{2})?)?"
)
_ATTEMPT = re.compile(r"^(?:attempt|restart|retry|try|generation|gen)[_\-.]?(\d{1,6})$", re.I)


def shown(path: str | Path) -> str:
    """The path as reports may print it: no control characters, no escape sequences."""
    return clean.name(os.fsdecode(os.fsencode(str(path)))) or "?"


def rank_of_dump(path: Path) -> int | None:
    """The rank in a dump's name, or in the nearest folder's where the name has none.

    The last number counts (``nccl_trace_rank_node-7_3``, ``_dump_3.json``), because host names in
    front of it may hold numbers of their own; a number labelled as rank wins over a mere one, and
    numbers labelled as something else (``_pid_4711``, ``_of_8``) count nowhere.
    """
    stem = without_dates(_SUFFIXES.sub("", path.name))
    stem = _OTHER_NUMBERS.sub("", _SUFFIXES.sub("", stem))
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
    """A path without the dates and moments in it."""
    return _STAMPS.sub("", _DATES.sub("", path))


def pid_of_stacks(path: Path) -> int | None:
    """The process in the name of a file with the stacks of one: faulthandler does not write it."""
    stem = without_dates(_SUFFIXES.sub("", path.name))
    found = _PID.search(stem) or (_OF_STACKS.search(stem) and _TRAILING.search(stem))
    return _number(found) if found else None


def rank_of_log(path: Path) -> int | None:
    """The rank in a log's name: only where it is labelled, or the name is nothing but a number.

    torchrun writes ``<run id>/attempt_<n>/<local rank>/stderr.log``: a folder that is only a number
    is a local rank there, which the caller must check against the number of nodes.
    """
    stem = _SUFFIXES.sub("", path.name)
    for name in (stem, *(folder.name for folder in list(path.parents)[:2])):
        found = _OF_LOG.findall(name)
        if found:
            return int(found[-1] if name == stem and _LABELLED_END.search(name) else found[0])
    return None


def is_of_a_node(path: Path) -> bool:
    """Whether a log is called after one of several nodes, or pods, that need not be the first."""
    found = _OF_A_NODE.search(path.name)
    return found is not None and (found["what"].lower() == "worker" or int(found["number"]) > 0)


def local_rank_of_log(path: Path) -> int | None:
    """That in a log's name, or torchrun's: the folder above ``stderr.log`` or ``error.json``."""
    named = _LOCAL.search(path.name)
    if named:
        return int(named[1])
    if path.name in ("stderr.log", "stdout.log", "error.json") and re.fullmatch(
        r"\d{1,4}", path.parent.name
    ):
        return int(path.parent.name)
    return None


def attempt_of(path: Path) -> int | None:
    """The attempt that a folder's name on the path states (``attempt_1``)."""
    for folder in path.parents:
        found = _ATTEMPT.match(folder.name)
        if found:
            return int(found.group(1))
    return None


def _number(found: re.Match[str]) -> int:
    return int(next(group for group in found.groups() if group is not None))
