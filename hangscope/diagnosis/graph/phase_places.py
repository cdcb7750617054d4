"""Places that are no collective: phases which all ranks must enter together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hangscope.diagnosis.graph.local_groups import local_places, members_asked_for
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place
from hangscope.diagnosis.processes.failures import WAITED_IN_VAIN
from hangscope.diagnosis.processes.host import End, Host
from hangscope.diagnosis.records.evidence import told_of_only
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import NONE, RankFacts, Trace


def phase_places(trace: Trace, front: Frontiers, hosts: Mapping[int, Host]) -> list[Place]:
    """Ranks inside ``init_process_group`` or ``new_group`` wait for those who are not."""

    groups_of = Counter(front.rank.tolist())
    defaults = [i for i, group in enumerate(trace.groups) if group.desc == "default_pg"]
    made = Counter(front.rank[np.isin(front.group, defaults)].tolist())

    def worlds(rank: int) -> int:
        """How often the rank has come out of ``init_process_group``: it may be called again."""
        facts = trace.ranks.get(rank)
        return max(made[rank], 1 if facts is not None and facts.initialized else 0)

    unrecorded = frozenset(told_of_only(trace))
    places = []
    for phase in (INIT, NEW_GROUP):
        # Whom the launcher ended in there was waiting there until then.
        inside = sorted(
            r
            for r, h in hosts.items()
            if h.phase == phase and (not h.gone or h.end is End.TORN_DOWN)
        )
        if phase == NEW_GROUP:
            places += local_places(trace, front, hosts, inside)
            inside = [r for r in inside if members_asked_for(trace.ranks[r]) is None]
        if phase == INIT:
            inside = _with_who_gave_up(trace, inside)
        if not inside:
            continue
        inside_groups = min(groups_of[r] for r in inside)
        inside_worlds = max(worlds(r) for r in inside)
        everybody = set(trace.ranks) | set(trace.missing_ranks)
        if phase == INIT:
            everybody = _called_for(trace, inside) or everybody
        absent, unknown = [], []
        for rank in sorted(everybody - set(inside)):
            facts = trace.ranks.get(rank)
            if facts is None or rank in unrecorded:
                unknown.append(rank)
            elif phase == INIT:
                if worlds(rank) <= inside_worlds:
                    absent.append(rank)
            elif groups_of[rank] <= inside_groups:
                absent.append(rank)
        since = [
            p.since_ns
            for r in inside
            for p in trace.ranks[r].phases
            if p.name == phase and p.since_ns
        ]
        places.append(
            Place(
                NONE,
                0,
                tuple(inside),
                absent=tuple(absent),
                unknown=tuple(unknown),
                phase=phase,
                began_ns=min(since, default=0),
                full_ns=max(since, default=0),
                members=tuple(sorted(everybody)),
            )
        )
    return places


def _with_who_gave_up(trace: Trace, inside: list[int]) -> list[int]:
    """The ranks inside of ``init_process_group`` and those that waited there until it timed out.

    Where all ranks are among them, nothing tells for whom they waited.
    """
    gave_up = {r for r in trace.ranks if _gave_up_meeting(trace.ranks[r])}
    everybody = set(trace.ranks) | set(trace.missing_ranks)
    return sorted({*inside, *gave_up}) if gave_up and everybody - gave_up - set(inside) else inside


def _gave_up_meeting(facts: RankFacts) -> bool:
    """Whether a rank that recorded itself failed in its first ``init_process_group``, as others
    did not come."""
    failure = facts.exception
    return (
        failure is not None
        and failure.is_main_thread
        and facts.heartbeat_ns > 0
        and facts.initialized is False
        and not facts.finalized
        and bool(WAITED_IN_VAIN.search(failure.message))
        and any(frame.name == INIT for frame in failure.stack)
    )


def _called_for(trace: Trace, inside: list[int]) -> set[int]:
    """The ranks of the world that all of ``inside`` have called ``init_process_group`` for.

    After a first world it may be a smaller one, without some of those who were in that. Empty where
    they do not agree, or have not said it themselves.
    """
    facts = [trace.ranks[rank] for rank in inside]
    sizes = {f.world_size or 0 for f in facts}
    if len(sizes) != 1 or not all(f.declared and f.finalized for f in facts):
        return set()
    size = sizes.pop()
    return set(range(size)) if max(inside) < size else set()
