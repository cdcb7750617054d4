"""Groups numbered by each rank for itself: one number, several groups.

The watchdog of torch 2.3 names a group by how many groups the process had created before. Number 1
is the first tensor group on some ranks and the second on others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.trace.model import NONE, Group, Trace


def split_logged_numbers(trace: Trace) -> Trace:
    """The trace with a separate group for each rank that uses an ambiguous number.

    The labels of a log reveal it: a place in a group belongs to one rank.
    """
    taken: dict[tuple[int, int], int] = {}
    shared = False
    for claim in trace.claims:
        place = claim.details.get("place")
        if claim.reporter is not None and type(place) is int and claim.group >= 0:
            known = taken.setdefault((claim.group, place), claim.reporter)
            shared |= known != claim.reporter and _is_number(trace.groups[claim.group])
    if not shared:
        return trace
    return apart(trace, [i for i, group in enumerate(trace.groups) if _is_number(group)])


def _is_number(group: Group) -> bool:
    return group.name.isdigit() and group.name != "0" and not group.desc


def apart(trace: Trace, ambiguous: list[int]) -> Trace:
    """The trace with one copy of each group per rank, without member lists."""
    records, members = trace.records.copy(), trace.members.copy()
    records["peer"][np.isin(records["group"], ambiguous)] = NONE
    groups = list(trace.groups)
    moved: dict[tuple[int, int], int] = {}
    for index in ambiguous:
        number = trace.groups[index].name
        uses = [(table, table["group"] == index) for table in (records, members)]
        here = np.unique(np.concatenate([table["rank"][rows] for table, rows in uses]))
        # The first copy takes over the group's index: no other index moves.
        places = np.array([index, *range(len(groups), len(groups) + len(here) - 1)][: len(here)])
        for rank, place in zip(here.tolist(), places.tolist(), strict=True):
            if place == len(groups):
                groups.append(trace.groups[index])
            groups[place] = Group(f"{number} of rank {rank}", "", ())
            moved[index, rank] = place
        for table, rows in uses:
            if rows.any():
                table["group"][rows] = places[np.searchsorted(here, table["rank"][rows])]
    claims = tuple(
        replace(c, group=moved.get((c.group, c.reporter), c.group)) if c.reporter is not None else c
        for c in trace.claims
    )
    return replace(trace, records=records, members=members, groups=tuple(groups), claims=claims)
