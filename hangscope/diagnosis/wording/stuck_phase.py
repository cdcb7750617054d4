"""All ranks have come to ``init_process_group`` or another phase, and some of them stay in it."""

from __future__ import annotations

from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.wording.phrases import capital, members_of, rank_s, title_of


def stuck_in_phase(context: Context, place: Place, everybody: str) -> Words:
    """Summary and mechanism; ``everybody``: the summary if nobody has left the phase."""
    ranks, summary = context.trace.ranks, everybody
    left = tuple(sorted({*place.members}.difference(place.waiters, place.absent, place.unknown)))
    if left:
        summary = (
            f"{capital(rank_s(place.waiters))} cannot finish {title_of(context, place)}"
            f"{members_of(context, place)}, which is over on {rank_s(left)}"
        )
    reasons = (
        "all ranks are there: the store at MASTER_ADDR is gone or unreachable, or the network "
        "between the ranks is stuck"
    )
    if place.phase == INIT:
        reasons += ", or RANK or WORLD_SIZE was changed on some of them after the start"
        if all(r in ranks and ranks[r].finalized for r in place.waiters):
            reasons += (
                ", or the store still holds addresses of the group that these ranks had destroyed "
                "before (torch with Gloo; give each init_process_group a store of its own)"
            )
    return Words(summary, reasons)
