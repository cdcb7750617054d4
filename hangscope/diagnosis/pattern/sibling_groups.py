"""Groups of the same kind, and who in them runs the same program as a given rank.

Groups of one kind run the same program, place by place: the first members of all pipelines are
first stages. Where ranks are placed by hand (spare nodes, a leader chosen for each host), the
places may differ from group to group. Then a rank does what *another* place of a sibling does, and
the member at its own place there is no measure of it.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.habits import tensors_of
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.trace.model import NONE

_MAX_SIBLINGS = 16
_MAX_PLACES = 64
"""More places of a sibling are not searched for one that runs a rank's program."""
_ENOUGH = 2
"""One equal half may be chance."""

Half = tuple[object, ...]
"""One half of a pair: operation, partner's place, tensors, line."""
Halves = dict[int, tuple[Half, ...]]
"""Per p2p number the halves that a rank issued under it in one group."""


def siblings(context: Context, group: int) -> list[int]:
    """Groups of the same kind and size without common ranks, a few of them."""
    groups = context.trace.groups
    own = groups[group]
    if own.desc == "default_pg" or len(own.ranks) < 2:
        return []
    members = set(own.ranks)
    alike = context.groups_alike[context.kinds[group], len(own.ranks)]
    return list(islice((i for i in alike if members.isdisjoint(groups[i].ranks)), _MAX_SIBLINGS))


def counterparts(context: Context, rank: int, group: int) -> dict[int, int]:
    """Per sibling of ``group`` the rank at the same place.

    Empty for a rank that is no member of the group.
    """
    ranks = context.trace.groups[group].ranks
    if rank not in ranks:
        return {}
    place, groups = ranks.index(rank), context.trace.groups
    return {other: groups[other].ranks[place] for other in siblings(context, group)}


def halves_of(context: Context, rank: int, group: int) -> Halves:
    """What a rank sent to and received from whom in a group; without receives from any source."""
    records = context.records_in(rank, group)
    records = records[records["peer"] >= 0]
    ranks = context.trace.groups[group].ranks
    place = {r: i for i, r in enumerate(ranks)}
    # The same stack has a different number in another rank's ring.
    numbers = np.unique(records["stack"]).tolist()
    lines = {n: user_frames(context.trace.stacks[n]) if n != NONE else () for n in numbers}
    result: Halves = {}
    for record in records:
        signature = context.trace.signatures[int(record["signature"])]
        seq = int(record["p2p_seq"])
        partner = place.get(int(record["peer"]), -1)
        half = (signature.op, partner, tensors_of(signature), lines[int(record["stack"])])
        result[seq] = (*result.get(seq, ()), half)
    return result
