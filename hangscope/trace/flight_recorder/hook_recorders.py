"""Recorders that hang on hooks: fields of the same names with other meanings.

torchcomms' recorder has one counter for all communicators of the process, begins at 0 and counts
sends and receives with it; it notes that an operation is over by retiring it, with a duration, and
mostly leaves its state as it was. torch's own hook for backends without a recorder counts in
``pg_status`` what it calls ``op_id``; for backends that do not report when an operation is over
(UCC, MPI, plugins) it retires each when it is issued. That hook is what records NCCL from torch
2.15 on, where the backend calls itself ``nccl2``; what is sent and received in a batch it takes for
finished at once. Sources: torchcomms' ``hooks/fr``, ``c10d/hooks/FlightRecorderHook``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.flight_recorder.columns import Entries, pick, values_of
from hangscope.trace.flight_recorder.coverage import SMALLEST_BUFFER
from hangscope.trace.model import NONE, Flag, Records, State, flagged

_NATIVE = frozenset({"nccl", "gloo", "xccl", "hccl", "mccl", "cncl", "bccl", "rccl"})
"""Backends that record themselves: what they retire has ended, well or not."""

_AT_ONCE_NS = 50_000
"""No send or receive is issued, carried out and found to be over within this time."""

Bools = npt.NDArray[np.bool_]


def settle_retired(records: Records, entries: Entries, backends: set[str]) -> bool:
    """Read what retiring means where the state stays behind it.

    Entries that have a duration are over. Where none is over and all are retired, one after the
    other, retiring tells nothing: whether they are over is unknown.

    Returns
    -------
    bool
        Whether the recorder retires what it issues.
    """
    retired = flagged(records["flags"], Flag.RETIRED)
    retired &= records["state"] < State.COMPLETED
    if not retired.any():
        return False
    name = pick(entries, "duration_ms")
    if name is not None:
        lasted = np.array(
            [v if type(v) in (int, float) and v >= 0 else -1.0 for v in values_of(entries, name)]
        )
        over = retired & (lasted >= 0) & (lasted < 1e12)
        records["state"][over] = State.COMPLETED
        ended = records["created_ns"][over] + (lasted[over] * 1e6).astype(np.int64)
        records["completed_ns"][over] = np.where(records["created_ns"][over] > 0, ended, 0)
        retired &= ~over
    ids = records["record_id"]
    gapless = bool((np.diff(ids) == 1).all())
    gapless &= int(ids[0]) == 0 or len(ids) >= SMALLEST_BUFFER
    if len(ids) < 2 or not retired.all() or not gapless or backends & _NATIVE:
        return False
    records["flags"] |= np.uint16(Flag.UNOBSERVED)
    records["flags"] &= ~np.uint16(Flag.RETIRED)
    return True


def hide_ends_of_batches(records: Records, backends: set[str]) -> None:
    """Take back the ends of sends and receives that were noted when they were issued.

    What stands in a batch is carried out when the batch ends; until then the hook finds a Work that
    stands for nothing and calls it completed. Where most pairs of a group ended at once, the others
    were only noted a little later. What lies before a collective that has ended is over anyhow.
    """
    ended = flagged(records["flags"], Flag.P2P)
    ended &= (records["state"] == State.COMPLETED) & (records["created_ns"] > 0)
    ended &= records["completed_ns"] > 0
    if backends & _NATIVE or not ended.any():
        return
    at_once = ended & (records["completed_ns"] - records["created_ns"] <= _AT_ONCE_NS)
    for group in np.unique(records["group"][at_once]).tolist():
        here = records["group"] == group
        few = 2 * int((here & at_once).sum()) < int((here & ended).sum())
        unseen = here & (at_once if few else ended)
        seen = np.flatnonzero(here & ~ended & (records["state"] == State.COMPLETED))
        unseen[: int(seen[-1]) if len(seen) else 0] = False
        records["state"][unseen] = State.SCHEDULED
        records["completed_ns"][unseen] = 0
        records["flags"][unseen] |= np.uint16(Flag.UNOBSERVED)
        records["flags"][unseen] &= ~np.uint16(Flag.RETIRED)


def counted_ids(enqueued: int, own: Records) -> bool:
    """Whether a group's counter in ``pg_status`` counts ``op_id``, not sequence numbers."""
    if not len(own) or enqueued < 0:
        return False
    last = own[-1]
    numbers = (int(last["collective_seq"]), int(last["p2p_seq"]))
    return int(last["op_id"]) == enqueued and enqueued not in numbers


def number_of_id(op_id: int, own: Records) -> int:
    """The sequence number of the collective with an ``op_id``; -1 where there is none."""
    found = np.flatnonzero((own["op_id"] == op_id) & ~flagged(own["flags"], Flag.P2P))
    return int(own["collective_seq"][found[-1]]) if len(found) and op_id >= 0 else NONE
