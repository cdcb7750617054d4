"""Remarks on jobs without a finding: waits not long enough to count, messages nobody received.

Somebody who looks after a minute should not read "healthy" and nothing else. And NCCL over the
network and Gloo buffer small messages: a send ends without its receive. If one rank leaves out a
receive, every later one gets the message before its own, and nothing ever waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.kinds import is_sending, records_where
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.diagnosis.wording.phrases import label_of, rank_s, title_of, wait_s
from hangscope.trace.model import Flag


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
        f"{rank_s(place.waiters)} {wait_s(place.waiters)}{where}, for {waited} so far; it counts as"
        f" a hang after {lasting(context.trace.timeout_s)} (HANGSCOPE_TIMEOUT)"
    )


_MOST_SHOWN = 3


def lost_messages(context: Context) -> str | None:
    """Which ranks sent more than was received, or less; None if there are none.

    Only channels are compared whose two ranks have everything on record and ended cleanly.
    """
    trace = context.trace
    whole = {
        rank
        for rank, facts in trace.ranks.items()
        if facts.oldest_record_id <= 1 and not facts.only_active and not facts.dropped
        if context.processes[rank].end is End.CLEAN
    }
    records = trace.records
    flags = records["flags"]
    pairs = (flags & int(Flag.P2P) != 0) & (flags & int(Flag.COALESCED_BATCH) == 0)
    if not pairs.any() or not whole:
        return None
    sends = records_where(trace, is_sending)
    rank, peer = records["rank"].astype(np.int64), records["peer"].astype(np.int64)
    good = pairs & (flags & int(Flag.FAILED) == 0)
    source, target = np.where(sends, rank, peer)[good], np.where(sends, peer, rank)[good]
    channels, which = np.unique(
        np.stack([records["group"][good], source, target], axis=1), axis=0, return_inverse=True
    )
    sent = np.bincount(which.reshape(-1), sends[good], len(channels)).astype(int)
    received = np.bincount(which.reshape(-1), ~sends[good], len(channels)).astype(int)
    # A receive from any source may have taken anybody's message.
    open_ended = {(group, end) for group, begin, end in channels.tolist() if begin < 0}
    uneven = [
        (group, begin, end, out, into)
        for (group, begin, end), out, into in zip(
            channels.tolist(), sent.tolist(), received.tolist(), strict=True
        )
        if out != into and {begin, end} <= whole and (group, end) not in open_ended
    ]
    said = [
        f"rank {begin} sent rank {end} {out} messages in {label_of(context, group)}, "
        f"which received {into}"
        for group, begin, end, out, into in uneven[:_MOST_SHOWN]
    ]
    if not said:
        return None
    more = f"; and {len(uneven) - len(said)} more pairs" if len(uneven) > len(said) else ""
    return (
        f"{'; '.join(said)}{more}: nothing waited for the rest, but from the odd one on each "
        "message may have been taken for another"
    )
