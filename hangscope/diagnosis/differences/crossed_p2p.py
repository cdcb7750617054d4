"""Two halves that miss each other: a receive from, or a send to, the wrong rank.

Rank 1 waits for a send of rank 0, while a send of rank 2 to rank 1 has no receive. Either rank 0
left its send out, or rank 1 asks the wrong rank: one mistake explains both halves. What the three
exchanged before decides which.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.kinds import is_sending, records_where
from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE

_OF_PAIRS = (Verdict.P2P_UNMATCHED, Verdict.DEADLOCK_CYCLE)
_ACCUSING = (Verdict.P2P_UNMATCHED, Verdict.MISSING_RANK, Verdict.RANK_EXITED)


def doubt_crossed_p2p(context: Context, causes: list[Cause]) -> list[Cause]:
    """If a rank is accused of one missing half, check whether that half was requested by
    mistake."""
    return [
        _of_wrong_partner(context, cause) or _of_rival(context, cause) or cause for cause in causes
    ]


def _own_half(context: Context, cause: Cause) -> Half | None:
    """The one unmatched half in which the only accused rank waits itself."""
    if cause.verdict not in _OF_PAIRS or len(cause.culprits) != 1:
        return None
    (accused,) = cause.culprits
    halves = [p.half for p in context.waits.of(accused)]
    own = [half for half in halves if half is not None and half.matched is False]
    return own[0] if len(own) == 1 else None


def _of_wrong_partner(context: Context, cause: Cause) -> Cause | None:
    """The accused asks a rank it never dealt with for what another rank offers, if so."""
    half = _own_half(context, cause)
    if half is None:
        return None
    pairs = _Pairs(context, half)
    rival = pairs.rival(overlooked=True)
    if rival == NONE or pairs.asked_before() or not pairs.paired_before(rival):
        return None
    found = replace(cause, verdict=Verdict.P2P_UNMATCHED)
    return _between(context, found, half, rival, usual=True)


def _of_rival(context: Context, cause: Cause) -> Cause | None:
    """The waiter asks the wrong rank, if another one offers what it waits for."""
    half = _only_half(context, cause)
    if half is None:
        return None
    pairs = _Pairs(context, half)
    rival = pairs.rival()
    if rival == NONE or pairs.asked_before():
        return None
    usual = pairs.paired_before(rival)
    if not usual and cause.verdict is not Verdict.P2P_UNMATCHED:
        return None  # the accused is known to be elsewhere, which is why its half is missing
    named = (half.rank,) if usual else tuple(sorted({half.rank, *cause.culprits}))
    found = cause.accusing(named, Confidence.LIKELY if usual else Confidence.AMBIGUOUS)
    found = replace(found.with_victims([rival]), verdict=Verdict.P2P_UNMATCHED)
    return _between(context, found, half, rival, usual=usual)


def _only_half(context: Context, cause: Cause) -> Half | None:
    """The one half for whose partner a single rank is accused."""
    if cause.verdict not in _ACCUSING or len(cause.culprits) != 1:
        return None
    (accused,) = cause.culprits
    asking = [p for p in context.waits.at(cause.places) if accused in p.targets]
    # A pair that is complete waits for the accused only as long as the accused is held up.
    halves = [
        p.half
        for p in asking
        if p.half is not None and p.half.peer == accused and not p.half.matched
    ]
    if len(halves) != 1:
        return None
    # A collective that the accused does not join either is a reason of its own, unless it was
    # issued after the half and its members wait for the asking rank as well.
    half = halves[0]
    if any(not p.p2p and half.rank not in p.targets for p in asking):
        return None
    return half


def _between(context: Context, cause: Cause, half: Half, rival: int, *, usual: bool) -> Cause:
    """The cause as two halves: they become its sides, and are accused where they may be wrong."""
    places = context.waits.places
    own = [i for i, p in enumerate(places) if p.half is half]
    met = [
        i
        for i, p in enumerate(places)
        if p.half is not None and p.half.rank == rival and p.half.peer == half.rank
    ]
    others = {rival, *cause.culprits} - {half.rank}
    sides = tuple((rank,) for rank in (half.rank, *sorted(others)))
    crossed = _words(half, rival, usual=usual)
    return replace(cause.with_first(own + met), sides=sides, crossed=crossed)


class _Pairs:
    """Sends and receives around one waiting half."""

    def __init__(self, context: Context, half: Half) -> None:
        records = context.trace.records
        rows = context.halves_around(half.rank)
        rows = rows[records["group"][rows] == half.group]
        self._half = half
        self._rank = records["rank"][rows].astype(np.int64)
        self._peer = records["peer"][rows].astype(np.int64)
        self._is_send = records_where(context.trace, is_sending, rows)
        self._hidden = context.hidden
        self._context = context

    def _count(self, rank: int, peer: int, *, sends: bool) -> int:
        """How many sends (or receives) of ``rank`` name ``peer``."""
        hits = (self._rank == rank) & (self._peer == peer) & (self._is_send == sends)
        return int(np.count_nonzero(hits))

    def rival(self, *, overlooked: bool = False) -> int:
        """The one rank with an unmatched half towards the waiting rank, or -1.

        ``overlooked``: of several, the one with the fewest matched halves; the others are merely
        further ahead.
        """
        half = self._half
        if half.rank in self._hidden or half.peer in self._hidden:
            return self._left_alone()
        mine = (self._rank == half.rank) & (self._is_send == half.is_send)
        if (self._peer[mine] < 0).any():
            return NONE  # a receive from any source may have taken it
        others = self._peer == half.rank
        others &= (self._is_send != half.is_send) & (self._rank != half.peer)
        found: list[tuple[int, int]] = []
        for rank in np.unique(self._rank[others]).tolist():
            offered = self._count(rank, half.rank, sends=not half.is_send)
            taken = self._count(half.rank, rank, sends=half.is_send)
            if rank not in self._hidden and offered > taken:
                found.append((taken, rank))
        found.sort()
        if len(found) > 1 and overlooked and found[0][0] < found[1][0]:
            return found[0][1]
        return found[0][1] if len(found) == 1 else NONE

    def _left_alone(self) -> int:
        """The rival if records start in the middle: counts are off, but unmatched halves are not.

        Only a rank that the waiting rank dealt with before counts.
        """
        half = self._half
        found = {
            h.rank
            for h in self._context.pending_halves
            if h.peer == half.rank and h.is_send != half.is_send and not h.matched
        }
        found -= {half.peer}
        return found.pop() if len(found) == 1 and self.paired_before(min(found)) else NONE

    def asked_before(self) -> bool:
        """Whether the waiting rank has asked the accused before, or the accused has served it."""
        half = self._half
        asked = self._count(half.rank, half.peer, sends=half.is_send)
        return asked > 1 or self._count(half.peer, half.rank, sends=not half.is_send) > 0

    def paired_before(self, rival: int) -> bool:
        """Whether such halves of the waiting rank and its rival have matched before."""
        return self._count(self._half.rank, rival, sends=self._half.is_send) > 0


def _words(half: Half, rival: int, *, usual: bool) -> str:
    if half.is_send:
        asks, offers = f"sends to rank {half.peer}", f"rank {rival} waits for a send of rank"
    else:
        asks, offers = f"waits for rank {half.peer}", f"rank {rival} has sent to rank"
    past = f", as before; it never had to do with rank {half.peer}" if usual else ""
    return f"Rank {half.rank} {asks} while {offers} {half.rank}{past}"
