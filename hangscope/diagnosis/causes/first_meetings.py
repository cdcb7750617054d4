"""Ranks that may be creating a communicator, which no dump records.

A backend creates the communicator of a group, or of a pair, when its members first use it, and that
blocks each of them until all have come. The operation is recorded only after that, so the dump of a
rank in there shows a rank that waits for nobody, or is not written at all, while the rank at fault
is the one that it waits for (source: ``ProcessGroupNCCL`` of torch, ``initNCCLComm``).
"""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.first_step import FirstStep
from hangscope.diagnosis.wording.phrases import capital, rank_s, wait_s
from hangscope.trace.model import NONE

_OF_THE_ABSENT = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED, Verdict.RANK_LOST)
_MOST_NAMED = 16


def doubt_first_meetings(context: Context, causes: list[Cause]) -> list[Cause]:
    """Accuse those as well for whom an accused rank may wait while the two create a communicator.

    Nobody is named if that would be more than half of the job.
    """
    unclear = _unclear(context)
    doubtful = [cause for cause in causes if _accuses_any(cause, unclear)]
    if len(unclear) < 2 or not doubtful:
        return causes
    waiters = context.waits.waiters_at({index for cause in doubtful for index in cause.places})
    meetings = _Meetings(context, unclear, sorted(waiters))
    return [_doubt(context, c, meetings) if _accuses_any(c, unclear) else c for c in causes]


def _accuses_any(cause: Cause, unclear: set[int]) -> bool:
    """Whether it accuses an unclear rank of not having come."""
    absent = cause.verdict in _OF_THE_ABSENT and cause.mismatch is None
    return absent and not unclear.isdisjoint(cause.culprits)


def _doubt(context: Context, cause: Cause, meetings: _Meetings) -> Cause:
    others = meetings.others(meetings.unclear.intersection(cause.culprits))
    if not others:
        return cause
    named = tuple(sorted(others.union(cause.culprits)))
    reason = (
        f"which of {rank_s(named)} wait for another one of them while they create a communicator: "
        "that is not recorded"
    )
    if 2 * len(named) > max(len(context.known_ranks), 4) or len(named) > _MOST_NAMED:
        return cause.naming_nobody(reason)
    doubted = cause.accusing(named, Confidence.AMBIGUOUS).with_unknown(reason)
    if any(context.waits.places_of.get(rank) for rank in named):
        return doubted
    return replace(doubted, words=_words(context, named))


def _words(context: Context, named: tuple[int, ...]) -> Words:
    lost = [rank for rank in named if rank not in context.on_record]
    idle = [rank for rank in named if rank in context.on_record]
    both = []
    if idle:
        both.append(f"{rank_s(idle)} {wait_s(idle)} for nobody on record")
    if lost:
        both.append(f"{rank_s(lost)} left no dump")
    return Words(
        f"{capital(', '.join(both))}, and others wait for them",
        "one of them did not come, and the others may be creating a communicator with it: that "
        "happens when it is first used, blocks every member, and is not recorded",
        f"of {rank_s(named)} find the one that is in no collective, send or receive: in its log, "
        "with py-spy dump --pid while it runs, or with HANGSCOPE=1, which records what such ranks "
        "are in",
    )


def _unclear(context: Context) -> set[int]:
    """Ranks that may be creating a communicator, or be awaited by one that does.

    No source says anything about them, or they have a dump in which they wait for nobody.
    """
    waiting = context.waits.places_of
    silent = {
        rank
        for rank, facts in context.trace.ranks.items()
        if not waiting.get(rank) and not facts.finalized and _is_unseen(context, rank)
    }
    return silent.union(context.trace.missing_ranks)


def _is_unseen(context: Context, rank: int) -> bool:
    process = context.processes.get(rank)
    return process is None or not process.is_observed


class _Meetings:
    """Which of the unclear ranks may wait for which others while they create a communicator."""

    def __init__(self, context: Context, unclear: set[int], examples: list[int]) -> None:
        self._context = context
        self.unclear = unclear
        self._first = FirstStep(context, examples)
        creating = sorted(r for r in unclear if self._first.may_use_new_communicator(r))
        self._used = {rank: self._first.used_by(rank) for rank in creating}

    def others(self, accused: set[int]) -> set[int]:
        """Unclear ranks besides one of the accused for which it may wait, maybe by way of others.

        The search ends once they are too many to be named.
        """
        found: set[int] = set()
        left = list(accused)
        while left and len(found) <= _MOST_NAMED:
            rank = left.pop()
            strangers = self._strangers(rank)
            left += strangers - found - accused
            found |= strangers
        return found

    def _strangers(self, rank: int) -> set[int]:
        """Unclear ranks with which this one has used no communicator, if one of them may create
        it."""
        if rank in self._used:
            met: set[int] = {rank}
            for group, peer in self._used[rank]:
                met.update((peer,) if peer != NONE else self._context.trace.groups[group].ranks)
            return self.unclear - met
        if rank in self._context.on_record or self._came_directly(rank):
            return set()
        groups = self._context.trace.groups
        shared = {(i, NONE) for i, group in enumerate(groups) if rank in group.ranks}
        return {
            other
            for other, used in self._used.items()
            if shared.isdisjoint(used) and not any(peer == rank for _, peer in used)
        }

    def _came_directly(self, lost: int) -> bool:
        """Whether others show that no communicator is created where ranks wait for a lost one.

        It took part in the previous collective of that group.
        """
        context = self._context
        ways = [
            self._first.came_with_new_communicator(rank, context.row_of(p.group, rank, p.seq))
            for p in context.waits.places
            if lost in p.unknown and not p.p2p and not p.phase
            for rank in p.waiters[:_MOST_NAMED]
        ]
        return False in ways and True not in ways
