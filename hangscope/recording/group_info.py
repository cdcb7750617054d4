"""What torch knows about a process group: name, description, members, backend.

torch knows the members of groups made by its own functions. A group constructed by hand, from a
store, a rank and a size, may span several jobs: trainers and inference engines share one to
transfer weights, fault-tolerant training has one across its replicas. Its group ranks are not ranks
of this job, even if whoever made it registered them as 0, 1, 2, ...
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

OUTSIDE = -1
"""Stands for a member that may not be a rank of this job."""
_TORCHS_NAME = re.compile(r"\d+|[0-9a-f]{40}")
"""Group names given by ``new_group`` and the like: a number, or a hash of the ranks."""


class GroupInfo(NamedTuple):
    """Description of a group; ``ranks`` are in group-rank order, ``group_rank`` is our own."""

    name: str
    desc: str
    ranks: list[int]
    group_rank: int
    backend: str


def group_info(process_group: Any, rank: int) -> GroupInfo:
    """Describe a group for the record. ``rank`` is this process's global rank."""
    name, desc = _name(process_group), _text(process_group, "group_desc")
    place, size = int(process_group.rank()), int(process_group.size())
    ranks = _members(process_group)
    backend = _backend_names(process_group)
    if size > 1 and _is_custom(process_group, name, ranks, place, rank):
        ranks = [rank if other == place else OUTSIDE for other in range(size)]
        label = name or desc or "unnamed"
        return GroupInfo(f"{name}@{_store_address(process_group)}", label, ranks, place, backend)
    return GroupInfo(name, desc, ranks or list(range(size)), place, backend)


def _is_custom(process_group: Any, name: str, ranks: list[int], place: int, rank: int) -> bool:
    """Whether a group was constructed by hand, so that its members are not ranks of this job."""
    import torch.distributed.distributed_c10d as c10d

    torchs = _TORCHS_NAME.fullmatch(name) is not None
    if not ranks:
        return not torchs  # torch also forgets the members of its own groups once destroyed
    try:
        if process_group is c10d._world.default_pg:
            return False
    except Exception:
        return False
    if ranks != list(range(len(ranks))):
        return False  # these are listed ranks, not just counted members
    return ranks[place : place + 1] != [rank] or not torchs


def _members(process_group: Any) -> list[int]:
    """The members as torch lists them; empty for a group that torch has not made."""
    import torch.distributed.distributed_c10d as c10d

    try:
        return [int(rank) for rank in c10d.get_process_group_ranks(process_group)]
    except Exception:
        return []


def _store_address(process_group: Any) -> str:
    """The address of a group's store; empty if it has none."""
    try:
        store = process_group.get_group_store()
        store = getattr(store, "_underlying_non_prefix_store", store)
        return f"{store.host}:{store.port}"
    except Exception:
        return ""


def _name(process_group: Any) -> str:
    """Its own, or that which torch keeps beside a group that is written in Python."""
    import torch.distributed.distributed_c10d as c10d

    if own := _text(process_group, "group_name"):
        return own
    try:
        return str(c10d._world.pg_names[process_group])
    except Exception:
        return ""


def _text(process_group: Any, attribute: str) -> str:
    try:
        return str(getattr(process_group, attribute))
    except Exception:
        return ""


def _backend_names(process_group: Any) -> str:
    """``gloo``, ``nccl``, or ``cpu:gloo,cuda:nccl`` where devices have different ones."""
    import torch.distributed.distributed_c10d as c10d

    try:
        # Without a backend asked for, torch picks one for each device and calls that "undefined".
        config = str(c10d._world.pg_backend_config[process_group])
        names = {part.rpartition(":")[2] for part in config.split(",")}
        return names.pop() if len(names) == 1 else config
    except Exception:
        pass
    for ask in (lambda: c10d.get_backend(process_group), process_group.name):
        try:
            return str(ask())
        except Exception:
            continue
    return "unknown"
