"""Two halves that miss each other: a receive from the wrong rank, a send to the wrong one.

Rank 1 waits for a send of rank 0, and a send of rank 2 to rank 1 lies there without a receive.
Either rank 0 left its send out, or rank 1 asks the wrong rank: one mistake explains both halves,
whichever it is. What passed between the three before tells them apart.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.habits import left_partner
from hangscope.diagnosis.records.evidence import hidden_ranks
from hangscope.diagnosis.records.kinds import is_sending, which
from hangscope.diagnosis.records.pairing import Half, pending_halves
from hangscope.diagnosis.words.phrases import rank_s
from hangscope.trace.model import NONE, Flag, flagged

_OF_PAIRS = (Verdict.P2P_UNMATCHED, Verdict.DEADLOCK_CYCLE, Verdict.RANK_LOST)
_ACCUSING = (Verdict.P2P_UNMATCHED, Verdict.MISSING_RANK, Verdict.RANK_EXITED)


def doubt_crossed_pairs(context: Context, causes: list[Cause]) -> None:
    """Where a rank is accused for one half that never came: was it asked for by mistake?"""
    strays = _strays(context)
    for cause in causes:
        if _tell_stray(context, cause, strays):
            continue
        half = _own_half(context, cause)
        if half is not None and _tell_wrong_partner(context, cause, half):
            continue
        half = _only_half(context, cause)
        if half is None:
            continue
        pairs = _Pairs(context, half)
        rival = pairs.rival()
        if rival == NONE or pairs.asked_before():
            continue
        usual = pairs.paired_before(rival)
        if not usual and cause.verdict is not Verdict.P2P_UNMATCHED:
            continue  # the accused is known to be elsewhere: that is why its half is missing
        accused = set(cause.culprits)
        cause.culprits = (half.rank,) if usual else tuple(sorted({half.rank, *accused}))
        cause.confidence = Confidence.LIKELY if usual else Confidence.AMBIGUOUS
        cause.verdict = Verdict.P2P_UNMATCHED
        cause.victims = (cause.victims | accused | {rival}) - set(cause.culprits)
        _show(context, cause, half, rival)
        cause.crossed = _words(half, rival, usual=usual)


def _strays(context: Context) -> list[tuple[Half, int]]:
    """Halves whose line had always named one other rank until now, and that rank.

    Where several ranks turn to somebody new it is the program that does.
    """
    found = []
    for place in context.waits.places:
        half = place.half
        if half is None or half.peer == NONE or half.matched or half.rank not in place.waiters:
            continue
        usual = left_partner(context, half)
        if usual != NONE and not _Pairs(context, half).asked_before():
            found.append((half, usual))
    return found if len({half.rank for half, _ in found}) == 1 else []


def _tell_stray(context: Context, cause: Cause, strays: list[tuple[Half, int]]) -> bool:
    """A rank that names somebody new while the rank it always named waits for it is at fault.

    Where a rank that left nothing is accused, or the usual partner left nothing and the new one is
    accused, either may be. Returns whether the cause speaks of it.
    """
    if cause.verdict not in _OF_PAIRS or not strays:
        return False
    half, usual = strays[0]
    involved = {*cause.culprits, *cause.victims}
    told = cause.verdict is not Verdict.DEADLOCK_CYCLE and half.rank in cause.culprits
    if half.rank not in involved or told:
        return False
    left_waiting = any(
        p.half is not None
        and usual in p.waiters
        and p.half.peer == half.rank
        and p.half.is_send != half.is_send
        and not p.half.matched
        for p in context.waits.places
    )
    lost = cause.verdict is Verdict.RANK_LOST
    doubtful = usual not in context.bounds and cause.culprits in ((half.peer,), (usual,))
    if not left_waiting and not doubtful:
        return False
    sure = left_waiting and not lost
    named = (half.rank,) if sure else tuple(sorted({half.rank, *cause.culprits}))
    cause.victims = involved - set(named)
    cause.confidence = Confidence.LIKELY if sure else Confidence.AMBIGUOUS
    if left_waiting:
        _show(context, cause, half, usual)
        cause.crossed = _words(half, usual, usual=True)
    else:
        does = "sends to" if half.is_send else "waits for"
        gone = ", which left no dump" if usual not in context.bounds else ""
        cause.crossed = (
            f"Rank {half.rank} {does} rank {half.peer} at a line that had always named rank "
            f"{usual}{gone}"
        )
    if lost:
        cause.crossed += f", and {rank_s(cause.culprits)} left no dump" if left_waiting else ""
    cause.culprits, cause.verdict = named, Verdict.P2P_UNMATCHED
    return True


def _own_half(context: Context, cause: Cause) -> Half | None:
    """The one half that never meets its partner in which the single accused waits itself."""
    if cause.verdict is not Verdict.P2P_UNMATCHED or len(cause.culprits) != 1:
        return None
    (accused,) = cause.culprits
    halves = [context.waits.places[i].half for i in context.waits.places_of.get(accused, ())]
    own = [half for half in halves if half is not None and half.matched is False]
    return own[0] if len(own) == 1 else None


def _tell_wrong_partner(context: Context, cause: Cause, half: Half) -> bool:
    """Say so, where the accused asks somebody it never had to do with for what another offers.

    Returns whether it does.
    """
    pairs = _Pairs(context, half)
    rival = pairs.rival(overlooked=True)
    if rival == NONE or pairs.asked_before() or not pairs.paired_before(rival):
        return False
    _show(context, cause, half, rival)
    cause.crossed = _words(half, rival, usual=True)
    return True


def _only_half(context: Context, cause: Cause) -> Half | None:
    """The one half for whose partner a single rank is accused."""
    if cause.verdict not in _ACCUSING or len(cause.culprits) != 1:
        return None
    (accused,) = cause.culprits
    asking = [p for p in (context.waits.places[i] for i in cause.places) if accused in p.targets]
    halves = [p.half for p in asking if p.half is not None and p.half.peer == accused]
    if len(halves) != 1 or halves[0].matched:
        return None
    # A collective that the accused does not join either is a reason of its own, unless it was
    # issued after the half and its members wait for the asking rank as well.
    half = halves[0]
    if any(not p.p2p and half.rank not in p.targets for p in asking):
        return None
    return half


def _show(context: Context, cause: Cause, half: Half, rival: int) -> None:
    """The two halves are the sides, and the accused where it may be wrong as well."""
    places = context.waits.places
    own = [i for i, p in enumerate(places) if p.half is half]
    met = [
        i
        for i, p in enumerate(places)
        if p.half is not None and p.half.rank == rival and p.half.peer == half.rank
    ]
    cause.places = own + met + [i for i in cause.places if i not in own + met]
    others = {rival, *(set(cause.culprits) - {half.rank})}
    cause.sides = [(half.rank,), *((rank,) for rank in sorted(others))]


class _Pairs:
    """Sends and receives around one half that waits."""

    def __init__(self, context: Context, half: Half) -> None:
        trace = context.trace
        records = trace.records
        flags = records["flags"]
        rows = np.flatnonzero(
            flagged(flags, Flag.P2P)
            & ~flagged(flags, Flag.COALESCED_BATCH)
            & (records["group"] == half.group)
            & ((records["rank"] == half.rank) | (records["peer"] == half.rank))
        )
        self._half = half
        self._rank = records["rank"][rows].astype(np.int64)
        self._peer = records["peer"][rows].astype(np.int64)
        self._is_send = which(trace, is_sending, rows)
        self._hidden = hidden_ranks(trace)
        self._open = pending_halves(trace, context.front, self._hidden)

    def _count(self, rank: int, peer: int, *, sends: bool) -> int:
        """How many sends (receives) of ``rank`` name ``peer``."""
        hits = (self._rank == rank) & (self._peer == peer) & (self._is_send == sends)
        return int(np.count_nonzero(hits))

    def rival(self, *, overlooked: bool = False) -> int:
        """The one rank whose half towards the waiting rank has no partner, or -1.

        ``overlooked``: of several the one of whose halves the fewest were taken; the others are
        only further on.
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
        """The rival where records begin in the middle: counts are off, what is left alone is not.

        Only one with whom the waiting rank had to do before counts.
        """
        half = self._half
        found = {
            h.rank
            for h in self._open
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
        """Whether such pairs of the waiting rank and its rival have met before."""
        return self._count(self._half.rank, rival, sends=self._half.is_send) > 0


def _words(half: Half, rival: int, *, usual: bool) -> str:
    if half.is_send:
        asks, offers = f"sends to rank {half.peer}", f"rank {rival} waits for a send of rank"
    else:
        asks, offers = f"waits for rank {half.peer}", f"rank {rival} has sent to rank"
    past = f", as before; it never had to do with rank {half.peer}" if usual else ""
    return f"Rank {half.rank} {asks} while {offers} {half.rank}{past}"
