"""Groups of the same kind, which run the same program, place by place."""

from __future__ import annotations

from itertools import islice

from hangscope.diagnosis.context import Context

_MAX_SIBLINGS = 16


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
