"""A remark on a job that stands still, or stood still when it was ended, but not for long enough.

Somebody who looks at it after a minute should not read "healthy" and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.diagnosis.wording.phrases import does, rank_s, title_of


def tolerated_wait(context: Context, places: Sequence[Place]) -> str | None:
    """Say who has waited longest, for whom, and when that will count as a hang.

    Parameters
    ----------
    places:
        Where ranks wait, or waited until the end, each for less than the time limit.

    Returns
    -------
    str or None
        None if no wait is longer than the pace of the job explains.
    """
    least_s = standstill_s(context.trace)
    long = [
        place
        for place in places
        if place.waiters
        and not place.weak
        and not is_lock(place)
        and context.blocked_s(place) >= least_s
    ]
    if not long:
        return None
    # Ranks may wait for others that wait themselves: where nobody does, it began.
    waiting = {rank for place in long for rank in place.waiters}
    origins = [p for p in long if p.targets and waiting.isdisjoint(p.targets)]
    place = max(origins or long, key=context.blocked_s)
    waited = lasting(context.blocked_s(place))
    whom = f" for {rank_s(place.targets)}" if place.targets else ""
    where = f"{whom} in {title_of(context, place)}"
    if not context.trace.live:
        return (
            f"{rank_s(place.waiters)} had waited{where} for {waited} when the job was ended: too"
            " short to tell a hang from a slow start"
        )
    return (
        f"{does(place.waiters, 'waits')}{where}, for {waited} so far; it counts as"
        f" a hang after {lasting(context.trace.timeout_s)} (HANGSCOPE_TIMEOUT)"
    )
