"""Groups that every rank has numbered for itself: one number, several groups.

The oldest dumps name a group by how many the process had made before it. Number 1 is the first
tensor group on some ranks and the second on others, and nothing says who belongs together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.trace.model import NONE, Group, Trace


def with_groups_apart(trace: Trace, sizes: dict[int, int]) -> Trace:
    """The trace with a group of its own for each rank that uses a number which may mean several.

    ``sizes`` are members per group as the operations show them. Number 0 is everybody's, and so is
    one whose operations have as many parts as there are ranks. Where no rank uses all the numbers
    that anybody uses, they were given to the whole job, and nothing is done.
    """
    if any(group.desc for group in trace.groups):
        return trace  # whoever wrote these dumps knew the groups' names
    used = _numbers(trace)
    everything = set().union(*used.values())
    if everything not in used.values():
        return trace
    ambiguous = [
        i
        for i, group in enumerate(trace.groups)
        if group.name not in ("", "0") and sizes.get(i) != len(trace.ranks)
    ]
    if not ambiguous:
        return trace
    records, members = trace.records.copy(), trace.members.copy()
    groups = list(trace.groups)
    for index in ambiguous:
        first, number = True, trace.groups[index].name
        for rank in sorted(used):
            mine = (records["group"] == index) & (records["rank"] == rank)
            counted = (members["group"] == index) & (members["rank"] == rank)
            if not mine.any() and not counted.any():
                continue
            apart = Group(f"{number} of rank {rank}", "", ())
            if first:  # its place in the table is taken over, so that no other index moves
                groups[index] = apart
                first = False
                continue
            groups.append(apart)
            records["group"][mine] = len(groups) - 1
            members["group"][counted] = len(groups) - 1
            records["peer"][mine] = NONE
    taken_over = np.isin(records["group"], ambiguous)
    records["peer"][taken_over] = NONE
    return replace(trace, records=records, members=members, groups=tuple(groups))


def _numbers(trace: Trace) -> dict[int, set[int]]:
    """Per rank the numbers of the groups it used; empty where a group has another name."""
    names = [group.name or "0" for group in trace.groups]
    if not all(name.isdigit() for name in names):
        return {}
    used: dict[int, set[int]] = {}
    records = trace.records
    pairs = np.unique(records["rank"].astype(np.int64) * len(names) + records["group"])
    for pair in pairs.tolist():
        rank, group = divmod(pair, len(names))
        used.setdefault(rank, set()).add(int(names[group]))
    return used
