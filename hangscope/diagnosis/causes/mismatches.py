"""Causes from incompatible operations of a group, and from sizes and tags of exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, verdict_of
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.differences.exchange_sizes import (
    SizeConflict,
    broken_exchanges,
    size_conflict,
)
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.pattern.deviations import decide_mismatch
from hangscope.diagnosis.pattern.majority import may_be_tie
from hangscope.diagnosis.pattern.thread_races import began_unseen, race_of_threads
from hangscope.diagnosis.records.mismatch import Mismatch, minority
from hangscope.diagnosis.wording.phrases import rank_s

_MAX_EXCHANGES = 64
"""Limit on the exchanges examined: each examination reads the splits of all members."""


def mismatch_causes(context: Context, found: list[Mismatch]) -> list[Cause]:
    """One cause per first disagreement; a later one between the same ranks is its consequence."""
    causes: list[Cause] = []
    concerned: set[int] = set()
    records = context.trace.records
    dated = sorted(
        found, key=lambda m: (min(int(records["created_ns"][p.row]) for p in m.parts), m.group)
    )
    for item in dated:
        members = item.ranks
        if not members.isdisjoint(concerned):
            continue
        culprits, decided = minority(item.parts)
        silent = _overwritten(context, item)
        if decided and _may_be_tie(context, item, len(silent)):
            culprits, decided = tuple(sorted(members)), False
        raced = race_of_threads(context, item)
        if raced:  # which came first on a rank is chance, and no rank's mistake
            culprits, decided = tuple(sorted(members)), False
        confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
        if not decided and not raced and item.aspect != "history":
            unlike = decide_mismatch(context, item)
            if unlike:
                culprits, confidence = unlike, Confidence.LIKELY
                item = item.with_last(unlike)
        elif item.aspect == "history":
            confidence = Confidence.LIKELY
        group_members = set(context.trace.groups[item.group].ranks) | members
        cause = Cause(
            verdict_of(item.aspect),
            culprits,
            began_ns=max(int(records["created_ns"][p.row]) for p in item.parts),
            confidence=confidence,
            mismatch=item,
            sides=tuple(p.ranks for p in item.parts),
        ).with_victims(context.waits.reachers(group_members) | group_members)
        cause = cause.doubted(*_doubts(context, item, silent))
        causes.append(cause)
        concerned |= cause.involved
    return causes


def _doubts(context: Context, item: Mismatch, silent: set[int]) -> Iterator[str]:
    """What is not known about a mismatch. ``silent``: members whose record of it is gone."""
    if silent:
        yield "what other members issued there is overwritten"
    if began_unseen(context, item):
        yield "which other threads of these ranks use the group was not seen"
    if hosts := _hosts_of_sides(context, item):
        yield (
            f"the sides are on different hosts ({hosts}): compare code, versions and configuration "
            "there"
        )
    if undecided := _not_yet_there(context, item):
        yield f"{rank_s(sorted(undecided))} did not come there and could make the sides equal"


def _hosts_of_sides(context: Context, item: Mismatch) -> str:
    """The hosts of each side, if no host is on two sides and one of them has several ranks."""
    ranks = context.trace.ranks
    hosts = [{ranks[r].host for r in part.ranks if r in ranks} for part in item.parts]
    known = [{host for host in side if host} for side in hosts]
    apart = sum(map(len, known)) == len(set().union(*known)) > 1
    if not apart or known != hosts or len(item.ranks) <= len(item.parts):
        return ""
    return " and ".join(", ".join(sorted(side)[:3]) for side in known[:3])


def _may_be_tie(context: Context, item: Mismatch, silent: int) -> bool:
    """Whether the sides are halves but for members without a dump, which may be on the smaller one.

    The same goes for members that lost that part of the record (``silent``).
    """
    first, second = (len(part.ranks) for part in item.parts[:2])
    if first - second <= _not_compared(context, item) or _mostly_silent(context, item):
        return True
    lost = set(context.trace.groups[item.group].ranks) - context.on_record
    return may_be_tie(first, second, len(lost) + silent)


def _not_compared(context: Context, item: Mismatch) -> int:
    """How many members torch's comparison has not come to, if a log tells nothing else.

    It goes through the ranks from 0 on and stops at the first difference: that nothing is told of
    those behind is no sign that they agree with the majority. Without a stated size there are as
    many as make a power of two, unless the last one that is known has spoken itself.
    """
    trace = context.trace
    wrote = {
        c.reporter for c in trace.claims if c.kind == "fingerprint_mismatch" and c.seq == item.seq
    }
    if not (wrote and context.of_text.issuperset(item.ranks)):
        return 0
    members = item.ranks.union(trace.groups[item.group].ranks)
    stated = any(facts.world_size for facts in trace.ranks.values())
    beyond = 0 if stated or max(members) in wrote else _to_power_of_two(max(members) + 1)
    return len(members) - len(item.ranks) + beyond


def _mostly_silent(context: Context, item: Mismatch) -> bool:
    """Whether printed text tells of fewer members what they issued there than it does not."""
    silent = set(context.trace.groups[item.group].ranks) - item.ranks
    return len(silent) > len(item.ranks) and context.of_text >= item.ranks


def _to_power_of_two(count: int) -> int:
    return (1 << (count - 1).bit_length()) - count


def _overwritten(context: Context, item: Mismatch) -> set[int]:
    """Members that have issued something at that place or later but lost the record of it."""
    front = context.front
    past = (front.group == item.group) & (front.enqueued >= item.seq) & (front.first > item.seq)
    return set(front.rank[past].tolist()) - item.ranks


def _not_yet_there(context: Context, item: Mismatch) -> set[int]:
    """Members on record that have not reached the place, if enough of them to balance its sides."""
    front = context.front
    short = (front.group == item.group) & (front.enqueued >= 0) & (front.enqueued < item.seq)
    absent = set(front.rank[short].tolist()) - item.ranks
    first, second = (len(part.ranks) for part in item.parts[:2])
    return absent if second < first <= second + len(absent) else set()


def conflict_causes(context: Context) -> list[Cause]:
    """Exchanges that everybody has reached and whose announced sizes contradict each other."""
    found: list[Cause] = []
    for place in broken_exchanges(context):
        if size_conflict(context, place) is not None:
            context.waits.add(place)
    for index, conflict in _common_rank_of_pairs(context, _conflicts(context)):
        place = context.waits.places[index]
        victims = context.waits.reachers(place.members, [index])
        cause = Cause(
            verdict_of(conflict.aspect),
            conflict.ranks,
            (index,),
            Confidence.LIKELY if conflict.decided else Confidence.AMBIGUOUS,
            place.began_ns,
            conflict=conflict.text,
        ).with_victims(victims.union(place.members))
        if conflict.aspect == "tag":
            cause = _of_tags(context, cause, place)
        # The other half of a pair says the same again; undecided causes have no victims to share.
        if not any(
            cause.victims & c.involved
            or (place.p2p and (cause.involved == c.involved or cause.culprits == c.culprits))
            for c in found
        ):
            found.append(cause)
    return found


def _conflicts(context: Context) -> list[tuple[int, SizeConflict]]:
    """The places that contradict themselves, by index, of those that everybody has reached."""
    reached = [
        (index, place)
        for index, place in enumerate(context.waits.places)
        if place.waiters
        and not place.absent
        and not (place.p2p and (place.unknown or place.behind))
    ]
    looked = [(i, size_conflict(context, place)) for i, place in reached[:_MAX_EXCHANGES]]
    return [(index, conflict) for index, conflict in looked if conflict is not None]


def _common_rank_of_pairs(
    context: Context, conflicts: list[tuple[int, SizeConflict]]
) -> list[tuple[int, SizeConflict]]:
    """The conflicts, decided against the one rank that contradicts each of several partners."""
    places = context.waits.places
    undecided = {i: frozenset(c.ranks) for i, c in conflicts if places[i].p2p and not c.decided}
    pairs = set(undecided.values())
    common = frozenset.intersection(*pairs) if len(pairs) > 1 else frozenset()
    if len(common) != 1:
        return conflicts
    return [
        (i, replace(c, ranks=tuple(common), decided=True) if i in undecided else c)
        for i, c in conflicts
    ]


def _of_tags(context: Context, cause: Cause, place: Place) -> Cause:
    """The cause as two halves that miss each other, with the places of both."""
    met = (i for i, p in enumerate(context.waits.places) if _meets(place, p))
    sides = tuple((rank,) for rank in place.members)
    return replace(cause, crossed=cause.conflict, sides=sides, places=(*cause.places, *met))


def _meets(place: Place, other: Place) -> bool:
    """Whether ``other`` is the second half of the pair that ``place`` is the first half of."""
    one, two = place.half, other.half
    return one is not None and two is not None and one.partner_row == two.row
