"""A remark on a job that ended well, although some of its sends and receives had no counterpart.

NCCL over the network and Gloo buffer small messages: a send ends without its receive. If one rank
leaves out a receive, every later one gets the message before its own, and nothing ever waits.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.kinds import is_sending, records_where
from hangscope.diagnosis.wording.phrases import label_of
from hangscope.trace.model import Flag

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
