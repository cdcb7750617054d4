"""A rank that began a round of sends and receives alone, while all others have met elsewhere."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.pattern.deviations import furthest_counterpart

_COMPANY = 2
"""At least so many ranks that met, and so many unmatched halves, put the rank elsewhere in the
wrong."""


def extra_round(context: Context, ranks: set[int], places: list[Place]) -> tuple[int, ...]:
    """The only rank with a whole row of unmatched halves, while all others have met elsewhere.

    They wait for it in a collective, and no counterpart in a sibling group has reached such a row.
    The exchange of one batch is not a row: one call issues all of it.
    """
    waiting = {r for p in places if p.p2p for r in p.waiters} & ranks
    met = [p for p in places if not p.p2p and not waiting.intersection(p.waiters)]
    others = {r for p in met for r in p.waiters}
    if (
        len(waiting) != 1
        or len(met) != 1
        or len(others) < _COMPANY
        or not ranks - waiting <= others
    ):
        return ()
    (rank,) = waiting
    begun = [(p.group, p.seq) for p in places if p.p2p and rank in p.waiters]
    if any(furthest_counterpart(context, rank, group) >= number for group, number in begun):
        return ()
    if any(half.rank == rank and half.matched for half in context.pending_halves):
        return ()  # another one takes part in that round
    lone = max((_lone_calls(context, rank, peer) for peer in others), default=0)
    return (rank,) if waiting == set(met[0].targets) and lone >= _COMPANY else ()


def _lone_calls(context: Context, rank: int, peer: int) -> int:
    """How many unfinished calls of a rank name a peer of which no half for them is known; a batch
    counts once."""
    return len(
        {
            (half.group, int(context.trace.records["p2p_seq"][half.row]))
            for half in context.pending_halves
            if (half.rank, half.peer) == (rank, peer) and not half.matched
        }
    )
