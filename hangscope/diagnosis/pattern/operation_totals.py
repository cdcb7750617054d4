"""What ranks had issued in one group by the time they reached the same operation of another.

Ranks at the same operation have issued equally much before it: members of a group equally many
collectives, counterparts in sibling groups equally many sends and receives. The total alone shows
who left one out or issued one too many, even if finished operations are no longer recorded (only
unfinished entries listed, or the ring has wrapped).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.habits import tensors_of
from hangscope.diagnosis.pattern.sibling_groups import siblings
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.frontier import UNKNOWN
from hangscope.trace.model import NONE, Flag, flagged

_ENOUGH = 2
"""So many others must agree: of two that differ, either may be the odd one."""
Standing = tuple[object, ...]


class Total(NamedTuple):
    """Where a rank had got to, and what it had issued in a group until then, or `UNKNOWN`."""

    standing: Standing
    collectives: int
    pairs: int


def outliers_by_total(
    context: Context,
    ranks: Iterable[int],
    groups: Iterable[int],
    fellow_suspects: Collection[int] = (),
) -> tuple[int, ...]:
    """Those of ``ranks`` that had issued more or less in one of the groups than all others that
    reached the same operation; empty if that holds for several of them making up half or more.

    ``fellow_suspects``: their counterparts elsewhere, which are just as suspect. With any, only
    members of the group itself are asked: siblings without any may be another stage.
    """
    suspects = sorted(set(ranks))
    totals = _Totals(context, frozenset(fellow_suspects))
    odd: set[int] = set()
    for group in groups:
        members = context.trace.groups[group].ranks
        here = [rank for rank in suspects if rank in members]
        if here:
            odd.update(totals.odd(group, here))
    few = len(odd) * 2 < len(suspects) or (len(odd) == 1 and len(suspects) > 1)
    return tuple(sorted(odd)) if few else ()


class _Totals:
    """Queries on one trace."""

    def __init__(self, context: Context, fellow_suspects: frozenset[int]) -> None:
        self.context = context
        self.fellow_suspects = fellow_suspects

    def odd(self, group: int, ranks: Iterable[int]) -> set[int]:
        """Of these members, those that differ from all ranks that reached the same operation.

        Members that have exchanged more or less than their counterparts are odd only if another
        member has exchanged as much as its own. Otherwise the others may have done so as well,
        uncounted (it is one mistake of all), or the same place may be another stage elsewhere.
        """
        members = self.context.trace.groups[group].ranks
        asked = [r for r in members if r not in self.fellow_suspects]
        own = {r: total for r in asked if (total := self.at_newest(r, group)) is not None}
        collectives: dict[Standing, Counter[int]] = {}
        for total in own.values():
            collectives.setdefault(total.standing, Counter())[total.collectives] += 1
        found: set[int] = set()
        more_or_fewer: set[int] = set()
        as_usual = False
        alike = [] if self.fellow_suspects else siblings(self.context, group)
        place = {rank: at for at, rank in enumerate(members)}
        for rank in ranks:
            mine = own.get(rank)
            if mine is None:
                continue
            same, pairs = collectives[mine.standing].copy(), Counter[int]()
            same[mine.collectives] -= 1
            for other in alike:
                counterpart = self.context.trace.groups[other].ranks[place[rank]]
                theirs = self.at_newest(counterpart, other)
                if theirs is not None and theirs.standing == mine.standing:
                    same[theirs.collectives] += 1
                    pairs[theirs.pairs] += 1
            if _differs(mine.collectives, +same):
                found.add(rank)
            if _differs(mine.pairs, +pairs):
                more_or_fewer.add(rank)
            as_usual |= mine.pairs != UNKNOWN and mine.pairs in +pairs
        if as_usual:
            found |= more_or_fewer
        return found

    def at_newest(self, rank: int, group: int) -> Total | None:
        """As `_at_newest`; every member of a large group is asked about by all of its siblings."""
        known = self.context.totals
        if (rank, group) not in known:
            known[rank, group] = self._at_newest(rank, group)
        total: Total | None = known[rank, group]
        return total

    def _at_newest(self, rank: int, group: int) -> Total | None:
        """What a rank had issued in a group when it reached its newest operation of any other
        group.

        At that operation all ranks have issued equally much; in the group itself that is the
        question. None if nothing of another group is recorded.
        """
        context, trace = self.context, self.context.trace
        low, high = context.bounds.get(rank, (0, 0))
        part = trace.records[low:high]
        outside = np.flatnonzero((part["group"] != group) & (part["signature"] != NONE))
        if not len(outside):
            return None
        row = int(low + outside[-1])
        record = trace.records[row]
        signature = trace.signatures[int(record["signature"])]
        standing = (
            context.kinds[int(record["group"])],
            (int(record["collective_seq"]), int(record["p2p_seq"])),
            (signature.op, tensors_of(signature)),
            user_frames(context.stack(row)),
        )
        if row == context.last_row(rank):
            return Total(
                standing, self._issued(rank, group), pairs_issued(self.context, rank, group)
            )
        before = part[: row - low]
        before = before[before["group"] == group]
        if not len(before) or _lists_unfinished(self.context, rank):
            return Total(standing, UNKNOWN, UNKNOWN)
        last = before[-1]
        return Total(standing, int(last["collective_seq"]), int(last["p2p_seq"]))

    def _issued(self, rank: int, group: int) -> int:
        """How many collectives of a group a rank has issued by now.

        In a group with p2p as well, a counter covers both.
        """
        if group not in self.context.with_collectives or group in self.context.with_p2p:
            return UNKNOWN
        if _lists_unfinished(self.context, rank) and group in self.context.with_one_sided:
            return UNKNOWN  # a root may have issued and finished more since, unlisted
        return _counted(self.context, rank, group)


def pairs_issued(context: Context, rank: int, group: int) -> int:
    """How many sends and receives (a batch counts once) a rank has issued in a group, or `UNKNOWN`.

    If only unfinished ones are listed, batches stay listed, as torch never notes their end. What
    the counters of a group count, whose operations are all over and unlisted, its siblings show.
    """
    size = len(context.trace.groups[group].ranks)
    alike = set(context.groups_alike[context.kinds[group], size])
    if alike.isdisjoint(context.with_p2p):
        return UNKNOWN
    listed = context.records_in(rank, group)[-1:]
    if _lists_unfinished(context, rank):
        listed = listed[flagged(listed["flags"], Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH)]
    shared = not alike.isdisjoint(context.with_collectives)
    counted = 0 if shared else _counted(context, rank, group)
    return max(*listed["p2p_seq"].tolist(), counted, 0) or UNKNOWN


def _lists_unfinished(context: Context, rank: int) -> bool:
    facts = context.trace.ranks.get(rank)
    return facts is not None and facts.only_active


def _counted(context: Context, rank: int, group: int) -> int:
    """A counter's value, if it counts one kind of operation only."""
    front = context.front
    number: int = context.p2p_counts.get((rank, group), UNKNOWN)
    for pair in context.pairs_of_rank.get(rank, ()):
        if front.group[pair] == group:
            number = max(number, int(front.enqueued[pair]))
    return number


def _differs(number: int, others: Counter[int]) -> bool:
    """Whether several others agree on another number."""
    if number == UNKNOWN or len(others) != 1 or UNKNOWN in others:
        return False
    ((usual, many),) = others.items()
    return usual != number and many >= _ENOUGH
