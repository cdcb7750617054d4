"""What a backend's own counter says about device operations whose end no recorder observes."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.records.coverage import end_is_unseen
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.trace.model import NONE, Trace


def counted_by_backend(trace: Trace, row: int) -> bool:
    """Whether a counter at this record (-1: none) is the backend's own: nothing else observes the
    end."""
    return row != NONE and end_is_unseen(trace, row)


def counts_as_unfinished(trace: Trace, front: Frontiers, row: int, low: int, pairs: Ints) -> bool:
    """Whether the backend counts the collective in a rank's newest record as unfinished.

    The record that the counter points to must be a device's, too: then the counter is the backend's
    own rather than one derived from completions that the recorder saw.

    Parameters
    ----------
    row, low:
        The rank's newest record, and its oldest.
    pairs:
        The rank's rows of ``front``.
    """
    if front.p2p[row] or not end_is_unseen(trace, row):
        return False
    record, older = trace.records[row], trace.records[low:row]
    done = int(front.completed[pairs[front.group[pairs] == record["group"]]][0])
    here = (older["group"] == record["group"]) & (older["collective_seq"] == done)
    counted = low + np.flatnonzero(here & front.collective[low:row])
    last = int(counted[0]) if len(counted) else NONE
    return counted_by_backend(trace, last) and 0 < done < int(record["collective_seq"])
