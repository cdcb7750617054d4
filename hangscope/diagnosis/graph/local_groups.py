"""Groups created by their members only (``use_local_synchronization``): who waits for whom.

Such calls have no number shared by all ranks. They are matched by their member list, and a rank
that has created more groups with that list than another is ahead of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from hangscope.diagnosis.graph.places import NEW_GROUP, Place, detail_in
from hangscope.diagnosis.processes.process_state import ProcessState
from hangscope.diagnosis.records.coverage import known_only_from_journal
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import NONE, RankFacts, Trace

_LOCAL = "members only"
"""How the recorder's detail of this phase begins."""
_RANKS = re.compile(_LOCAL + r", ranks ((?:\d{1,9},)*\d{1,9})")


def members_asked_for(facts: RankFacts) -> tuple[int, ...] | None:
    """Members of the group that a rank is creating with ``use_local_synchronization``; None if it
    is not.

    Empty if there were too many to list.
    """
    detail = detail_in(facts, NEW_GROUP)
    if detail is None or not detail.startswith(_LOCAL):
        return None
    found = _RANKS.fullmatch(detail)
    return tuple(sorted({int(rank) for rank in found[1].split(",")})) if found else ()


def local_places(
    trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState], inside: list[int]
) -> list[Place]:
    """Where the ranks of ``inside`` that are creating such a group wait: one place per member
    list."""
    asking: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in inside:
        members = members_asked_for(trace.ranks[rank])
        if members is not None:
            asking[members].append(rank)
    if not asking:
        return []
    made = _made(trace, front)
    unrecorded = frozenset(known_only_from_journal(trace))
    places = []
    for members, waiters in sorted(asking.items()):
        here = max(made[rank, members] for rank in waiters)
        others = [rank for rank in members if rank not in waiters]
        silent = [rank for rank in others if rank not in processes or rank in unrecorded]
        past = [rank for rank in others if made[rank, members] > here]
        places.append(
            Place(
                NONE,
                0,
                tuple(waiters),
                absent=tuple(r for r in others if r not in silent and r not in past),
                unknown=tuple(silent),
                done=tuple(past),
                phase=NEW_GROUP,
                blind=not members,
                began_ns=min(trace.ranks[rank].phases[-1].since_ns for rank in waiters),
                full_ns=max(trace.ranks[rank].phases[-1].since_ns for rank in waiters),
                members=members,
            )
        )
    return places


def _made(trace: Trace, front: Frontiers) -> Counter[tuple[int, tuple[int, ...]]]:
    """How many such groups with one member list a rank has created; other groups have numeric
    names."""
    lists = {
        number: tuple(sorted(group.ranks))
        for number, group in enumerate(trace.groups)
        if group.ranks and not group.name.isdigit()
    }
    pairs = zip(front.rank.tolist(), front.group.tolist(), strict=True)
    return Counter((rank, lists[number]) for rank, number in pairs if number in lists)
