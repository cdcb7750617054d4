"""Phases that all ranks must enter together, as places."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place, detail_in
from hangscope.diagnosis.observability import unrecorded
from hangscope.diagnosis.processes.failures import waited_in_vain
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import NONE, RankFacts, Trace


def phase_places(
    trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
) -> list[Place]:
    """Ranks inside ``init_process_group`` or ``new_group`` wait for ranks that are not."""
    found = []
    joining = _with_who_gave_up(trace, _inside(processes, INIT), INIT)
    if joining:
        worlds = _worlds(trace, front)
        latest = max(worlds[r] for r in joining)
        found.append(_place(trace, INIT, joining, worlds, latest, _called_for(trace, joining)))
    making = _with_who_gave_up(trace, _inside(processes, NEW_GROUP), NEW_GROUP)
    found += local_places(trace, front, processes, making)
    making = [r for r in making if members_asked_for(trace.ranks[r]) is None]
    if making:
        groups = Counter(front.rank.tolist())
        found.append(_place(trace, NEW_GROUP, making, groups, min(groups[r] for r in making)))
    return found


def _inside(processes: Mapping[int, ProcessState], phase: str) -> list[int]:
    """Ranks in a phase. A rank that the launcher ended inside counts as waiting there until
    then."""
    return sorted(
        r
        for r, h in processes.items()
        if h.phase == phase and (not h.gone or h.end is End.TORN_DOWN)
    )


def _worlds(trace: Trace, front: Frontiers) -> Counter[int]:
    """How often each rank has completed ``init_process_group``, which may be called repeatedly."""
    defaults = [i for i, group in enumerate(trace.groups) if group.desc == "default_pg"]
    worlds = Counter(front.rank[np.isin(front.group, defaults)].tolist())
    worlds.update({r: 1 for r, f in trace.ranks.items() if f.initialized and not worlds[r]})
    return worlds


def _place(
    trace: Trace,
    phase: str,
    inside: list[int],
    times: Counter[int],
    limit: int,
    called_for: AbstractSet[int] = frozenset(),
) -> Place:
    """The place where ranks inside a phase wait for ranks that have not entered it.

    Parameters
    ----------
    times, limit:
        How often each rank has been through the phase, and the highest count of a rank still due.
    called_for:
        Ranks they wait for; all ranks of the job if unknown.
    """
    everybody = set(called_for) or {*trace.ranks, *trace.missing_ranks}
    others = sorted(everybody.difference(inside))
    nameless = (everybody - trace.ranks.keys()).union(unrecorded(trace))
    phases = [p for r in inside for p in trace.ranks[r].phases if p.name == phase]
    since = [p.since_ns for p in phases if p.since_ns]
    return Place(
        NONE,
        0,
        tuple(inside),
        absent=tuple(r for r in others if r not in nameless and times[r] <= limit),
        unknown=tuple(r for r in others if r in nameless),
        phase=phase,
        began_ns=min(since, default=0),
        full_ns=max(since, default=0),
        members=tuple(sorted(everybody)),
    )


def _with_who_gave_up(trace: Trace, inside: list[int], phase: str) -> list[int]:
    """Ranks inside a phase, plus those that waited there until they timed out.

    If that is every rank, nothing shows whom they waited for.
    """
    gave_up = {r for r, facts in trace.ranks.items() if _gave_up_meeting(facts, phase)}
    everybody = set(trace.ranks) | set(trace.missing_ranks)
    return sorted({*inside, *gave_up}) if gave_up and everybody - gave_up - set(inside) else inside


def _gave_up_meeting(facts: RankFacts, phase: str) -> bool:
    """Whether a recording rank failed in its first ``init_process_group``, or in ``new_group``,
    because others did not come."""
    failure = facts.exception
    return (
        failure is not None
        and failure.is_main_thread
        and facts.heartbeat_ns > 0
        and facts.initialized is (phase != INIT)
        and not facts.finalized
        and waited_in_vain(failure)
        and any(frame.name == phase for frame in failure.stack)
    )


def _called_for(trace: Trace, inside: list[int]) -> set[int]:
    """Ranks of the world that all of ``inside`` passed to ``init_process_group``.

    A second world may be smaller and lack ranks of the first. Empty if they disagree or did not
    say.
    """
    facts = [trace.ranks[rank] for rank in inside]
    sizes = {f.world_size or 0 for f in facts}
    if len(sizes) != 1 or not all(f.declared and f.finalized for f in facts):
        return set()
    size = sizes.pop()
    return set(range(size)) if max(inside) < size else set()


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
    untold = unrecorded(trace)
    places = []
    for members, waiters in sorted(asking.items()):
        here = max(made[rank, members] for rank in waiters)
        others = [rank for rank in members if rank not in waiters]
        silent = [rank for rank in others if rank not in processes or rank in untold]
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
