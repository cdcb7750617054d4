"""Dialects in which a case is written, and the part of it that any recorder can have seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from tools.simulator.case import Case
from tools.simulator.execute import Issued

EPOCH_NS = 1_760_000_000 * 1_000_000_000


def nanoseconds(seconds: float) -> int:
    """Epoch nanoseconds of a virtual moment; 0 for never."""
    return 0 if seconds == inf else EPOCH_NS + int(seconds * 1e9)


@dataclass(frozen=True)
class Dialect:
    """The format of one collector. ``version`` is the dump version; ``hosts``: whether processes
    were observed as well."""

    name: str
    version: str
    json: bool = False
    only_active: bool = False
    frames: bool = True
    status: bool = True
    hosts: bool = False
    log: bool = False


DIALECTS = {
    d.name: d
    for d in (
        Dialect("ring", "1", hosts=True),
        Dialect("pickle 2.10", "2.10"),
        Dialect("pickle 2.9, no frames", "2.9", frames=False),
        Dialect("pickle 2.9, only active", "2.9", frames=False, only_active=True),
        Dialect("pickle 2.4", "2.4"),
        Dialect("pickle 2.0", "2.0", status=False),
        Dialect("pickle 1.5", "1.5", status=False),
        Dialect("list (torch 2.2)", "none", status=False),
        Dialect("json 2.5", "2.5", json=True, frames=False),
        Dialect("json 2.10, only active", "2.10", json=True, frames=False, only_active=True),
        Dialect("job log", "log", log=True, only_active=True, frames=False),
    )
}


def visible(case: Case, rank: int) -> list[tuple[Issued, bool]]:
    """Operations a rank had issued when its dump was taken, and whether each had finished."""
    limit = case.at[rank]
    if rank in case.run.died:
        limit = min(limit, case.run.died[rank])
    return [
        (item, item.completed <= limit) for item in case.run.issued[rank] if item.created <= limit
    ]


def frames_of(item: Issued) -> list[dict[str, Any]]:
    """The stack of the call that issued an operation, in the dump's format."""
    name, file, line = item.op.site
    library = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    return [
        {"name": item.op.name or "send", "filename": library, "line": 2800},
        {"name": name, "filename": file, "line": line},
        {"name": "main", "filename": "/srv/job/train.py", "line": 200},
        {"name": "<module>", "filename": "/srv/job/train.py", "line": 240},
    ]


def pg_id(case: Case, rank: int, group: int) -> int:
    """Local number of a group on a rank: how many groups the rank joined before it."""
    mine = [i for i, g in enumerate(case.run.job.groups) if rank in g.ranks]
    return mine.index(group)
