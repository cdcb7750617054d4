"""What torch tells of a process group: name, description, members, backend.

torch knows the members of the groups that its own functions make. One made by hand, from a store, a
place and a size, may span several jobs: trainers and inference engines share one to hand weights
over, fault-tolerant training has one across its replicas. Its places are no ranks of this job, even
where whoever made it has noted them as 0, 1, 2, ...
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

OUTSIDE = -1
"""Stands for a member of which it is not known whether it is a rank of this job."""
_TORCHS_NAME = re.compile(r"\d+|[0-9a-f]{40}")
"""What ``new_group`` and the like call a group: its number, or a hash of its ranks."""


class GroupInfo(NamedTuple):
    """``ranks`` in the order of the members' places; this process's is ``group_rank``."""

    name: str
    desc: str
    ranks: list[int]
    group_rank: int
    backend: str


def group_info(process_group: Any, rank: int) -> GroupInfo:
    """What is to be recorded of a group. ``rank``: this process's in its job."""
    name, desc = _text(process_group, "group_name"), _text(process_group, "group_desc")
    place, size = int(process_group.rank()), int(process_group.size())
    ranks = _listed(process_group)
    backend = _backend_names(process_group)
    if size > 1 and _by_hand(process_group, name, ranks, place, rank):
        ranks = [rank if other == place else OUTSIDE for other in range(size)]
        label = name or desc or "unnamed"
        return GroupInfo(f"{name}@{_meeting(process_group)}", label, ranks, place, backend)
    return GroupInfo(name, desc, ranks or list(range(size)), place, backend)


def _by_hand(process_group: Any, name: str, ranks: list[int], place: int, rank: int) -> bool:
    """Whether a list of members is none of ranks of this job."""
    import torch.distributed.distributed_c10d as c10d

    torchs = _TORCHS_NAME.fullmatch(name) is not None
    if not ranks:
        return not torchs  # torch forgets its own ones as well, once they are destroyed
    try:
        if process_group is c10d._world.default_pg:
            return False
    except Exception:
        return False
    if ranks != list(range(len(ranks))):
        return False  # somebody has listed ranks, not just counted places
    return ranks[place : place + 1] != [rank] or not torchs


def _listed(process_group: Any) -> list[int]:
    """The members as torch lists them; empty for a group that it has not made."""
    import torch.distributed.distributed_c10d as c10d

    try:
        return [int(rank) for rank in c10d.get_process_group_ranks(process_group)]
    except Exception:
        return []


def _meeting(process_group: Any) -> str:
    """Where the members of a group have found each other, as far as its store tells."""
    try:
        store = process_group.get_group_store()
        store = getattr(store, "_underlying_non_prefix_store", store)
        return f"{store.host}:{store.port}"
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
