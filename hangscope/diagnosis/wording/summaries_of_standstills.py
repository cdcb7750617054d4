"""An operation or phase in which all are and that nobody finishes, in words."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.observability import cut_short
from hangscope.diagnosis.wording.phrases import (
    capital,
    members_are_untold,
    members_of,
    never_began,
    rank_s,
    subject,
    title_of,
    verb,
    waiters_of,
)
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks


def stuck(context: Context, cause: Cause, place: Place) -> Words:
    title = title_of(context, place)
    accused = cause.culprits[0] if cause.culprits else None
    twice = duplicate_ranks(context.trace).get(accused) if accused is not None else None
    if twice:
        return Words(
            f"{capital(twice.partition(';')[0])}; {title} cannot finish",
            "messages for that rank reach one of its processes, and the other one waits",
        )
    facts = context.trace.ranks.get(accused) if accused is not None else None
    if facts is not None and facts.process_state == "stopped":
        return Words(
            f"{subject(cause.culprits)} {verb(cause.culprits, 'is')} stopped inside {title}"
            f"{members_of(context, place)}",
            f"{rank_s(cause.culprits)} issued the operation and was stopped before its part "
            "was done",
        )
    shown = "All ranks that this excerpt shows" if cut_short(context.trace) else "All members"
    everybody = f"{shown} are in {title}{members_of(context, place)} and none finishes"
    if place.phase:
        return _stuck_in_phase(context, place, everybody)
    if place.not_begun and set(cause.culprits) >= place.not_begun.keys():
        idle = rank_s(place.not_begun)
        return Words(
            never_began(place, f"{title}{members_of(context, place)}"),
            f"it has begun on {waiters_of(place)}; the device of {idle} is held up by something "
            "else (a kernel, a copy, a wait for an event) that is no recorded communication",
        )
    if place.p2p:
        return Words(
            f"Both halves of {title} were issued and neither finishes",
            "sender and receiver use different tags, or the network or a device is stuck",
        )
    if accused is not None:
        return Words(
            f"{subject(cause.culprits)} cannot finish {title}, which has completed on a peer",
            "its device, the link to it, or what the process runs there is stuck",
        )
    if members_are_untold(context, place):
        return Words(
            f"{capital(waiters_of(place))} {verb(place.waiters, 'is')} in {title} and cannot "
            "finish it; who else belongs to the group is not told",
            "the others of the group did not come, or the network, a device or the library is "
            "stuck",
        )
    return Words(
        everybody,
        "all members issued the same operation: the network, a device or the library is stuck",
    )


def _stuck_in_phase(context: Context, place: Place, everybody: str) -> Words:
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
