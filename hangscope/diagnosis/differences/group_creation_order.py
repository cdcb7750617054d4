"""Ranks that create their groups in a different order than the others.

Groups are named after the number of the ``new_group`` call, and only members keep a group. So each
rank shows for some numbers which ranks they stand for. Two ranks contradict each other if they have
different members for one number, or if one is past a number that it has no group for although the
other lists it as a member. The smallest set of ranks whose removal resolves all contradictions is
named.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import NEW_GROUP, Place, detail_in
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace import formats
from hangscope.trace.model import NONE, RankFacts, Trace

_SHOWN = 16
"""The recorder's detail of a call shows this many members."""
_MAX_EDGES = 4096
_NUMBER = re.compile(r"[1-9]\d{0,8}")

_CALL = re.compile(r"call (\d{1,9})\b(?:, )?(.*)", re.DOTALL)
"""The recorder's detail of the phase."""
_RANKS = re.compile(r"ranks ([\d,]+)")


@dataclass(frozen=True, slots=True)
class Call:
    """A ``new_group`` call that a rank is in: its number, its members as far as shown, and the full
    detail."""

    number: int
    members: tuple[int, ...]
    words: str


Reports = dict[int, dict[int, tuple[int, ...]]]
"""number of the call -> rank -> members it stands for there"""
Edge = tuple[int, int, int]
"""number of a call, and two ranks that contradict each other about it"""
Calls = dict[int, Call]
"""rank -> the call it is in"""


def with_creation_order(context: Context, causes: list[Cause]) -> list[Cause]:
    """``causes``, plus one if ranks contradict each other about groups that hold them up.

    It replaces a cause about ``new_group`` that only counted calls, unless that named the same
    ranks.
    """
    calls = {rank: call for rank, f in context.trace.ranks.items() if (call := call_of(f))}
    may_omit_unused = _may_omit_unused(context)
    if may_omit_unused and not calls:
        return causes
    reports = _reports(context, calls)
    under_way = {(call.number, rank) for rank, call in calls.items()}
    edges = _contradictions(reports, _past(reports, calls), under_way, may_omit_unused)
    if not edges or not _held_up(context, edges):
        return causes
    culprits, decided = _fewest(edges)
    counted = [c for c in causes if c.conflict and _is_new_group(context, c)]
    if any(c.culprits == culprits for c in counted):
        return causes
    cause = _cause(context, reports, calls, culprits, decided, edges)
    if not calls:
        cause = cause.doubted("that groups are named after calls of new_group is inferred")
    return [c for c in causes if c not in counted] + [cause]


def _numbered(trace: Trace) -> dict[int, tuple[int, tuple[int, ...]]]:
    """For each group of the newest world its number and members."""
    newest = max((g.epoch for g in trace.groups), default=0)
    return {
        i: (int(g.name), g.ranks)
        for i, g in enumerate(trace.groups)
        if g.epoch == newest and g.ranks and _NUMBER.fullmatch(g.name)
    }


def _reports(context: Context, calls: Calls) -> Reports:
    trace = context.trace
    reports: Reports = defaultdict(dict)
    numbered = _numbered(trace)
    for rank, group in zip(
        trace.members["rank"].tolist(), trace.members["group"].tolist(), strict=True
    ):
        if group in numbered:
            number, ranks = numbered[group]
            reports[number][rank] = ranks
    for rank, call in calls.items():
        if call.members:
            reports[call.number].setdefault(rank, call.members)
    return reports


def _may_omit_unused(context: Context) -> bool:
    """Whether not everything comes from rings: groups that were never used may then be missing."""
    return any(s.format not in (formats.RING, formats.JOURNAL) for s in context.trace.sources)


def _past(reports: Reports, calls: Calls) -> dict[int, int]:
    """Per rank the highest number it is known to have reached."""
    past = {rank: call.number for rank, call in calls.items()}
    for number, by_rank in reports.items():
        for rank in by_rank:
            past[rank] = max(past.get(rank, 0), number)
    return past


def _contradictions(
    reports: Reports, past: dict[int, int], under_way: set[tuple[int, int]], may_omit_unused: bool
) -> list[Edge]:
    """(number, rank, rank) of pairs that cannot have created the same groups.

    A rank past a number without having its group contradicts those that list it there: all of them
    or, if groups created long ago may be unrecorded (``may_omit_unused``), those whose call is
    ``under_way``.
    """
    edges: list[Edge] = []
    for number, by_rank in sorted(reports.items()):
        lists: dict[tuple[int, ...], list[int]] = defaultdict(list)
        members: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for rank, ranks in sorted(by_rank.items()):
            lists[ranks[:_SHOWN]].append(rank)
            members[ranks[:_SHOWN]].update(ranks)
        # If each list is confirmed by all its members, every part of the job numbers its own
        # groups; that this is legitimate is certain only once all have returned from the call.
        apart = {
            key
            for key, by in lists.items()
            if members[key] <= set(by) and not any((number, r) in under_way for r in by)
        }
        for key, by in lists.items():
            for other, rest in lists.items():
                if key < other and not {key, other} <= apart:
                    edges += [(number, a, b) for a in by for b in rest]
            silent = [r for r in members[key] if r not in by_rank and past.get(r, 0) > number]
            sure = [a for a in by if not may_omit_unused or (number, a) in under_way]
            edges += [(number, a, b) for a in sure for b in silent]
            if len(edges) > _MAX_EDGES:
                return edges[:_MAX_EDGES]
    return edges


def _fewest(edges: list[Edge]) -> tuple[tuple[int, ...], bool]:
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


def _is_new_group(context: Context, cause: Cause) -> bool:
    return any(place.phase == NEW_GROUP for place in context.waits.at(cause.places))


def _held_up(context: Context, edges: list[Edge]) -> bool:
    """Whether one of the contradicting ranks waits for anything."""
    involved = {r for _, a, b in edges for r in (a, b)}
    return any(not involved.isdisjoint(p.waiters) for p in context.waits.places)


def _cause(
    context: Context,
    reports: Reports,
    calls: Calls,
    culprits: tuple[int, ...],
    decided: bool,
    edges: list[Edge],
) -> Cause:
    trace = context.trace
    about = [n for n, a, b in edges if not decided or {a, b} & set(culprits)]
    number = next((n for n in about if reports[n].keys() & set(culprits)), about[0])
    place = Place(
        NONE,
        NONE,
        tuple(sorted(calls)),
        members=tuple(sorted(trace.ranks)),
        phase=NEW_GROUP,
        began_ns=_since_ns(trace),
    )
    conflict = _conflict(reports[number], number, culprits, edges)
    confidence = Confidence.LIKELY if trace.missing_ranks else Confidence.CERTAIN
    involved = {r for _, a, b in edges for r in (a, b)}
    rest = tuple(sorted(involved - set(culprits)))
    return Cause(
        Verdict.COLLECTIVE_MISMATCH,
        culprits,
        (context.waits.add(place),),
        confidence if decided else Confidence.AMBIGUOUS,
        began_ns=1,
        victims=frozenset(trace.ranks.keys() - set(culprits)),
        sides=(rest, culprits) if calls.keys() >= involved and rest else (),
        conflict=conflict,
        words=_words(culprits, decided, f"call {number} of new_group is {conflict}"),
    )


def _since_ns(trace: Trace) -> int:
    """When the first of the ranks in ``new_group`` entered it."""
    newest = [phase for facts in trace.ranks.values() for phase in facts.phases[-1:]]
    return min((p.since_ns for p in newest if p.name == NEW_GROUP and p.since_ns), default=1)


def _conflict(
    by_rank: Mapping[int, tuple[int, ...]],
    number: int,
    culprits: tuple[int, ...],
    edges: list[Edge],
) -> str:
    """``for ranks 0, 1 on rank 0 and for ranks 2, 3 on ranks 1-3``: what one call creates where."""
    sides: dict[str, list[int]] = defaultdict(list)
    for rank, ranks in sorted(by_rank.items()):
        sides[rank_s(ranks)].append(rank)
    silent = {r for n, a, b in edges if n == number for r in (a, b)} - by_rank.keys()
    if silent:
        sides["others"] += sorted(silent)
    odd_first = sorted(sides.items(), key=lambda item: not set(item[1]) & set(culprits))
    return " and ".join(f"for {what} on {rank_s(by)}" for what, by in odd_first)


def _words(culprits: tuple[int, ...], decided: bool, where: str) -> Words:
    who = rank_s(culprits).capitalize() if decided else "Ranks"
    verb = "makes" if decided and len(culprits) == 1 else "make"
    what = "other groups than the others" if decided else "different groups"
    return Words(
        f"{who} {verb} {what}, or in another order: {where}",
        "every rank must create every group, in the same order: members are matched by the "
        "number of the call",
    )


def call_of(facts: RankFacts) -> Call | None:
    """The numbered call of ``new_group`` that a rank is in, if any."""
    detail = detail_in(facts, NEW_GROUP)
    found = _CALL.match(detail) if detail is not None else None
    if found is None:
        return None
    ranks = _RANKS.search(found[2])
    members = tuple(int(r) for r in ranks[1].split(",") if r) if ranks is not None else ()
    return Call(int(found[1]), members, found[2])


def name_different_calls(context: Context, place: Place, cause: Cause) -> Cause:
    """If all ranks are in ``new_group`` but in different calls of it, say so."""
    calls = {rank: call_of(context.trace.ranks[rank]) for rank in place.waiters}
    by_number: dict[int, list[int]] = defaultdict(list)
    made = set()
    for rank, call in calls.items():
        if call is None:
            return cause
        by_number[call.number].append(rank)
        made.add(call.words)
    if len(by_number) < 2 or len(made) > 1:
        # Different groups may be created at one time, each by the ranks that wait for it.
        return cause
    sides = sorted(by_number.items(), key=lambda item: (-len(item[1]), item[0]))
    decided = len(sides[0][1]) > len(sides[1][1])
    conflict = " while ".join(
        f"{rank_s(ranks)} {'is' if len(ranks) == 1 else 'are'} in call {number} of new_group"
        for number, ranks in reversed(sides)
    )
    return replace(
        cause,
        verdict=Verdict.COLLECTIVE_MISMATCH,
        culprits=tuple(sorted(r for _, ranks in sides[decided:] for r in ranks)),
        confidence=Confidence.CERTAIN if decided else Confidence.AMBIGUOUS,
        sides=tuple(tuple(ranks) for _, ranks in sides),
        conflict=conflict,
    )
