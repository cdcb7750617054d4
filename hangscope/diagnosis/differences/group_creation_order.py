"""Ranks that create their groups in a different order than the others.

Groups are named after the number of the ``new_group`` call, and only members keep a group. So each
rank shows for some numbers which ranks they stand for. Two ranks contradict each other if they have
different members for one number, or if one is past the call that another, which lists it as a
member, is in. The smallest set of ranks whose removal resolves all contradictions is named.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import NEW_GROUP, Place, detail_in
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE, Trace

_SHOWN = 16
"""The recorder's detail of a call shows this many members."""
_MAX_EDGES = 4096
_NUMBER = re.compile(r"[1-9]\d{0,8}")
_CALL = re.compile(r"call (\d{1,9})\b(?:, )?(?:ranks ([\d,]+))?")
"""The recorder's detail of the phase."""

_Members = tuple[int, ...]


class _Edge(NamedTuple):
    """Two ranks that contradict each other about a call."""

    number: int
    one: int
    other: int


def with_creation_order(context: Context, causes: list[Cause]) -> list[Cause]:
    """``causes``, plus one if ranks contradict each other about groups that hold them up."""
    calls = _calls(context.trace)
    said = _said(context.trace, calls)
    edges = _contradictions(said, calls) if calls else []
    involved = {rank for edge in edges for rank in edge[1:]}
    if involved.isdisjoint(r for place in context.waits.places for r in place.waiters):
        return causes
    culprits, decided = _fewest(edges)
    about = [e.number for e in edges if not decided or {*e[1:]} & set(culprits)]
    number = next((n for n in about if said[n].keys() & set(culprits)), about[0])
    at_odds = {rank for edge in edges if edge.number == number for rank in edge[1:]}
    conflict = _conflict(said[number], culprits, at_odds)
    who = rank_s(culprits).capitalize() if decided else "Ranks"
    verb = "makes" if decided and len(culprits) == 1 else "make"
    rest = tuple(sorted(involved.difference(culprits)))
    phases = [p for r in calls for p in context.trace.ranks[r].phases if p.name == NEW_GROUP]
    began_ns = min((phase.since_ns for phase in phases), default=0)
    place = Place(
        NONE,
        NONE,
        tuple(sorted(calls)),
        members=tuple(sorted(context.trace.ranks)),
        phase=NEW_GROUP,
        began_ns=began_ns,
    )
    confidence = Confidence.LIKELY if context.trace.missing_ranks else Confidence.CERTAIN
    cause = Cause(
        Verdict.COLLECTIVE_MISMATCH,
        culprits,
        (context.waits.add(place),),
        confidence if decided else Confidence.AMBIGUOUS,
        began_ns=began_ns,
        victims=frozenset(context.trace.ranks.keys() - set(culprits)),
        sides=(rest, culprits) if calls.keys() >= involved and rest else (),
        conflict=conflict,
        words=Words(
            f"{who} {verb} other groups than the others, or in another order: call {number} of "
            f"new_group is {conflict}",
            "every rank must create every group, in the same order: members are matched by the "
            "number of the call",
        ),
    )
    return [*causes, cause]


def _calls(trace: Trace) -> dict[int, tuple[int, _Members]]:
    """Per rank the numbered call of ``new_group`` that it is in, and its members if shown."""
    details = {rank: detail_in(facts, NEW_GROUP) for rank, facts in trace.ranks.items()}
    found = {rank: _CALL.match(detail) for rank, detail in details.items() if detail is not None}
    return {
        rank: (int(call[1]), tuple(map(int, filter(None, (call[2] or "").split(",")))))
        for rank, call in found.items()
        if call is not None
    }


def _said(trace: Trace, calls: dict[int, tuple[int, _Members]]) -> dict[int, dict[int, _Members]]:
    """Number of a call -> rank -> the members it stands for there, in the newest world."""
    newest = max((g.epoch for g in trace.groups), default=0)
    said: dict[int, dict[int, _Members]] = defaultdict(dict)
    for rank, index in zip(
        trace.members["rank"].tolist(), trace.members["group"].tolist(), strict=True
    ):
        group = trace.groups[index] if index >= 0 else None
        if group and group.epoch == newest and group.ranks and _NUMBER.fullmatch(group.name):
            said[int(group.name)][rank] = group.ranks[:_SHOWN]
    for rank, (number, members) in calls.items():
        if members:
            said[number].setdefault(rank, members)
    return said


def _contradictions(
    said: dict[int, dict[int, _Members]], calls: dict[int, tuple[int, _Members]]
) -> list[_Edge]:
    """Pairs of ranks that cannot have created the same groups.

    If each list of members is confirmed by all of them, and all have returned from the call, every
    part of the job numbers its own groups.
    """
    reached = {rank: number for rank, (number, _) in calls.items()}
    for number, by_rank in said.items():
        reached |= {rank: max(reached.get(rank, 0), number) for rank in by_rank}
    edges: list[_Edge] = []
    for number, by_rank in sorted(said.items()):
        inside = {rank for rank in by_rank if calls.get(rank, (0,))[0] == number}
        sides: dict[_Members, list[int]] = defaultdict(list)
        for rank, members in sorted(by_rank.items()):
            sides[members].append(rank)
        apart = {m for m, by in sides.items() if set(m) <= set(by) and inside.isdisjoint(by)}
        for members, by in sides.items():
            for theirs, rest in sides.items():
                if members < theirs and not {members, theirs} <= apart:
                    edges += [_Edge(number, a, b) for a in by for b in rest]
            past = [r for r in members if r not in by_rank and reached.get(r, 0) > number]
            edges += [_Edge(number, a, b) for a in inside.intersection(by) for b in past]
            if len(edges) > _MAX_EDGES:
                return edges[:_MAX_EDGES]
    return edges


def _fewest(edges: list[_Edge]) -> tuple[tuple[int, ...], bool]:
    """The smallest set of ranks that resolves all contradictions, and whether it is unique."""
    rest = {(min(a, b), max(a, b)) for _, a, b in edges}
    chosen: list[int] = []
    while rest:
        degrees = Counter(r for pair in rest for r in pair)
        (first, most), *others = degrees.most_common(2)
        if others and others[0][1] == most:
            return tuple(sorted({*chosen, *(r for pair in rest for r in pair)})), False
        chosen.append(first)
        rest = {pair for pair in rest if first not in pair}
    return tuple(sorted(chosen)), True


def _conflict(said: dict[int, _Members], culprits: tuple[int, ...], at_odds: set[int]) -> str:
    """``for ranks 0, 1 on rank 0 and for ranks 2, 3 on ranks 1-3``: what one call creates where."""
    sides: dict[str, list[int]] = defaultdict(list)
    for rank, ranks in sorted(said.items()):
        sides[rank_s(ranks)].append(rank)
    silent = at_odds - said.keys()
    if silent:
        sides["others"] += sorted(silent)
    odd_first = sorted(sides.items(), key=lambda item: not set(item[1]) & set(culprits))
    return " and ".join(f"for {what} on {rank_s(by)}" for what, by in odd_first)
