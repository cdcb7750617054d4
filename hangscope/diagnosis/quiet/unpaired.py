"""Sends and receives whose ends nobody observes, on a job that stands still: which lack a partner.

On a device the host issues and goes on: nothing on record tells which of these halves has finished,
and after them every rank may have issued the same collectives. What is left is to count.
"""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Side, Verdict
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.lone_halves import unpaired_halves
from hangscope.diagnosis.records.returned import from_rings
from hangscope.diagnosis.words import playbook
from hangscope.diagnosis.words.phrases import rank_s


def unpaired(context: Context, silent_s: float) -> Finding | None:
    """The finding for halves that cannot have met; None where every count agrees.

    ``silent_s``: how long no rank has issued or finished anything.
    """
    found = unpaired_halves(context.trace, from_rings(context.trace))
    if not found:
        return None
    first = min(found, key=lambda f: int(context.trace.records["created_ns"][f.row]))
    owing = tuple(sorted({f.owing for f in found}))
    waiting = tuple(sorted({f.waiting for f in found} - set(owing)))
    other = "recv" if first.surplus > 0 else "send"
    half = "send" if first.surplus > 0 else "recv"
    arrow = f"{first.source}->{first.target}"
    times = f", {abs(first.surplus)} fewer than there" if abs(first.surplus) > 1 else ""
    place = user_frames(context.stack(first.row))
    advice = playbook.by_verdict(Verdict.P2P_UNMATCHED)
    return Finding(
        Verdict.P2P_UNMATCHED,
        owing,
        waiting,
        Confidence.LIKELY if len(owing) == 1 else Confidence.AMBIGUOUS,
        f"Rank {first.owing} never issued its {other} for a {half} of rank {first.waiting} "
        f"({arrow}){times}, and nothing has moved for {silent_s:.0f} s",
        "on a device a half without its partner holds up all that comes after it, also what every "
        "rank has issued since",
        advice.fix,
        advice.playbook,
        context.group_ref(first.group),
        op=half,
        sides=(Side((first.waiting,), op=half, peer=first.owing, stack=place),),
        evidence=tuple(
            f"{rank_s((f.source,))} sent {'more' if f.surplus > 0 else 'less'} to "
            f"{rank_s((f.target,))} than was received there (by {abs(f.surplus)})"
            for f in found[:_SHOWN]
        ),
        unknowns=("which sends and receives have finished is not on record",),
    )


_SHOWN = 8
