"""Ranks that may be creating a communicator, which no dump records.

A backend creates the communicator of a group, or of a pair, when its members first use it, and that
blocks each of them until all have come. The operation is recorded only after that, so the dump of a
rank in there shows a rank that waits for nobody, or is not written at all, while the rank at fault
is the one that it waits for (source: ``ProcessGroupNCCL`` of torch, ``initNCCLComm``).
"""

from __future__ import annotations

from collections.abc import Collection

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import NEVER_CAME, Confidence, Verdict
from hangscope.diagnosis.observability import cut_off, snapshots
from hangscope.diagnosis.wording.phrases import capital, does, rank_s
from hangscope.trace.model import NONE

_OF_THE_ABSENT = NEVER_CAME | {Verdict.RANK_LOST}
_MOST_NAMED = 16
_MOST_COMPARED = 256
_STEPS = 2
"""A step of one rank may have so many times as many operations as that of another."""

_Communicator = tuple[int, int]
"""The kind of a group and, if two members have their own communicator, how far apart they are."""


def or_meeting_first(context: Context, cause: Cause) -> Cause:
    """The cause, with those accused as well for whom an accused rank may wait while the two create
    a communicator. Nobody is named if that would be more than half of the job."""
    if cause.verdict not in _OF_THE_ABSENT or cause.mismatch is not None or cause.crossed:
        return cause
    unclear = _unclear(context)
    accused = unclear.intersection(cause.culprits)
    if not accused or len(unclear) < 2:
        return cause
    meetings = _Meetings(context, unclear)
    others = set().union(*(meetings.strangers(rank) for rank in sorted(accused)[:_MOST_NAMED]))
    if others.issubset(cause.culprits):
        return cause
    named = tuple(sorted(others.union(cause.culprits)))
    reason = (
        f"which of {rank_s(named)} wait for another one of them while they create a communicator: "
        "that is not recorded"
    )
    if 2 * len(named) > max(len(context.known_ranks), 4) or len(named) > _MOST_NAMED:
        return cause.naming_nobody(reason)
    lost = [rank for rank in named if rank not in context.on_record]
    idle = [rank for rank in named if rank in context.on_record]
    both = [f"{does(idle, 'waits')} for nobody on record"] if idle else []
    both += [f"{rank_s(lost)} left no record"] if lost else []
    words = Words(
        f"{capital(', '.join(both))}, and others wait for them",
        "one of them did not come, and the others may be creating a communicator with it: that "
        "happens when it is first used, blocks every member, and is not recorded",
        f"of {rank_s(named)} find the one that is in no collective, send or receive: in its log, "
        "with py-spy dump --pid while it runs, or with HANGSCOPE=1, which records what such ranks "
        "are in",
    )
    return Cause(
        cause.verdict,
        named,
        cause.places,
        Confidence.AMBIGUOUS,
        cause.began_ns,
        cause.victims.difference(named),
        words=words,
        unknowns=(*cause.unknowns, reason),
    )


def _unclear(context: Context) -> set[int]:
    """Ranks that may be creating a communicator, or be awaited by one that does.

    No source says anything about them, or they have a dump in which they wait for nobody.
    """
    waiting = context.waits.places_of
    silent = {
        rank
        for rank, facts in context.trace.ranks.items()
        if not waiting.get(rank) and not facts.finalized and not context.is_observed(rank)
    }
    return silent.union(context.trace.missing_ranks)


class _Meetings:
    """Which ranks may use a communicator for the first time, and with whom."""

    def __init__(self, context: Context, unclear: Collection[int]) -> None:
        self._context = context
        self._unclear = unclear
        whole = sorted(snapshots(context.trace) - context.hidden - cut_off(context.trace))
        self._whole = whole[:_MOST_COMPARED]
        """Ranks whose records begin with their first operation."""
        self._used = {rank: self._communicators(rank) for rank in self._whole}
        firsts = (max(map(used.index, used), default=-1) for used in self._used.values())
        self._most = _STEPS * max(1 + max(firsts, default=0), 1)
        """How many operations a rank may have issued that has not met all its partners."""

    def strangers(self, rank: int) -> set[int]:
        """Unclear ranks with which this one has used no communicator, if one of them may create
        it."""
        if rank in self._used:
            return self._not_met(rank) if self._may_create(rank) else set()
        if rank in self._context.on_record or self._came_directly(rank):
            return set()
        idle = self._used.keys() & self._unclear
        return {r for r in idle if self._may_create(r) and rank in self._not_met(r)}

    def _not_met(self, rank: int) -> set[int]:
        """Unclear ranks that share a group with this one, in no communicator that it has used."""
        trace = self._context.trace
        beside = {r for group in trace.groups if rank in group.ranks for r in group.ranks}
        low, high = self._context.bounds.get(rank, (0, 0))
        part, met = trace.records[low:high], {rank}
        for group, peer in set(zip(part["group"].tolist(), part["peer"].tolist(), strict=True)):
            met.update((peer,) if peer != NONE else trace.groups[group].ranks)
        return beside.intersection(self._unclear) - met

    def _may_create(self, rank: int) -> bool:
        """Whether the rank's next operation may be the first one of a communicator.

        If all ranks that had done the same before went on with a communicator that they had used,
        so does this one. One that another member has used exists.
        """
        used = self._used[rank]
        if len(used) > self._most:
            return False
        own = self._context.streams.of(rank).what
        after = set()
        for other, theirs in self._used.items():
            what = self._context.streams.of(other).what
            if len(what) > len(own) and (what[: len(own)] == own).all():
                after.add(theirs[len(own)])
        return not after or not all(one in used or self._exists(rank, one) for one in after)

    def _exists(self, rank: int, one: _Communicator) -> bool:
        """Whether another member of such a communicator of the rank has an operation in it."""
        kind, away = one
        for group, other in enumerate(self._context.trace.groups):
            if self._context.streams.kind_of(group) != kind or rank not in other.ranks:
                continue
            at = other.ranks.index(rank)
            partners = (
                other.ranks if away == NONE else (other.ranks[(at + away) % len(other.ranks)],)
            )
            for partner in partners[:_MOST_COMPARED]:
                part = self._context.records_in(partner, group)
                if partner != rank and (part["peer"] == (rank if away != NONE else NONE)).any():
                    return True
        return False

    def _came_directly(self, lost: int) -> bool:
        """Whether others show that no communicator is created where ranks wait for a lost one.

        It took part in the previous collective of that group.
        """
        ways = set()
        for place in self._context.waits.places:
            if lost not in place.unknown or place.p2p or place.phase:
                continue
            for rank in {*place.waiters[:_MOST_NAMED]} & self._used.keys():
                row = self._context.row_of(place.group, rank, place.seq)
                at = row - self._context.bounds[rank][0]
                used = self._used[rank][: max(at, 0)]
                mine = self._used[rank][at]
                since = max((i for i, one in enumerate(used) if one == mine), default=-1) + 1
                ways.add(set(used[since:]).issubset(used[:since]))
        return ways == {True}

    def _communicators(self, rank: int) -> list[_Communicator]:
        """What each operation of the rank used."""
        stream, groups = self._context.streams.of(rank), self._context.trace.groups
        part = self._context.trace.records[stream.rows]
        alone = self._context.front.p2p[stream.rows] & (part["peer"] >= 0)
        found = []
        for kind, group, peer, pair in zip(
            stream.kinds.tolist(),
            part["group"].tolist(),
            part["peer"].tolist(),
            alone.tolist(),
            strict=True,
        ):
            ranks = groups[group].ranks
            known = pair and peer in ranks and rank in ranks
            away = (ranks.index(peer) - ranks.index(rank)) % len(ranks) if known else NONE
            found.append((kind, away))
        return found
