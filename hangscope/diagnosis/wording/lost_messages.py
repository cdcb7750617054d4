"""A remark on a job that ended well, although some of its sends and receives had no counterpart.

NCCL over the network and Gloo buffer small messages: a send ends without its receive. If one rank
leaves out a receive, every later one gets the message before its own, and nothing ever waits.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

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
    whole = [
        rank
        for rank, facts in trace.ranks.items()
        if facts.oldest_record_id <= 1 and not facts.only_active and not facts.dropped
        if context.processes[rank].end is End.CLEAN
    ]
    records = trace.records
    flags = records["flags"]
    pairs = (flags & int(Flag.P2P) != 0) & (flags & int(Flag.COALESCED_BATCH) == 0)
    if not pairs.any() or not whole:
        return None
    sends = records_where(trace, is_sending)
    rank, peer = records["rank"].astype(np.int64), records["peer"].astype(np.int64)
    table = pd.DataFrame(
        {
            "group": records["group"].astype(np.int64),
            "source": np.where(sends, rank, peer),
            "target": np.where(sends, peer, rank),
            "sent": sends,
            "received": ~sends,
        }
    )[pairs & (flags & int(Flag.FAILED) == 0)]
    # A receive from any source may have taken anybody's message.
    open_ended = table.loc[table["source"] < 0, ["group", "target"]].drop_duplicates()
    counts = table.groupby(["group", "source", "target"]).sum().reset_index()
    uneven = counts[
        (counts["sent"] != counts["received"])
        & counts["source"].isin(whole)
        & counts["target"].isin(whole)
        & ~pd.MultiIndex.from_frame(counts[["group", "target"]]).isin(
            pd.MultiIndex.from_frame(open_ended)
        )
    ]
    said = [
        f"rank {row.source} sent rank {row.target} {row.sent} messages in "
        f"{label_of(context, row.group)}, which received {row.received}"
        for row in uneven.head(_MOST_SHOWN).itertuples()
    ]
    if not said:
        return None
    more = f"; and {len(uneven) - len(said)} more pairs" if len(uneven) > len(said) else ""
    return (
        f"{'; '.join(said)}{more}: nothing waited for the rest, but from the odd one on each "
        "message may have been taken for another"
    )
