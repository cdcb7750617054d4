"""Recorders built on hooks, which use the same field names with other meanings.

torchcomms' recorder has one counter for all communicators of the process, starts at 0 and also
counts sends and receives. It marks an operation as over by retiring it with a duration, and mostly
leaves its state unchanged. torch's own hook for backends without a recorder stores ``op_id``
numbers in ``pg_status``. For backends that do not report completion (UCC, MPI, plugins), it retires
each operation when it is issued. From torch 2.15 on, this hook also records NCCL, where the backend
calls itself ``nccl2``; it considers sends and receives in a batch completed at once. Sources:
torchcomms' ``hooks/fr``, ``c10d/hooks/FlightRecorderHook``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.flight_recorder.columns import Entries, pick, values_of
from hangscope.trace.flight_recorder.coverage import SMALLEST_BUFFER
from hangscope.trace.model import NONE, Flag, Records, State, flagged

_NATIVE = frozenset({"nccl", "gloo", "xccl", "hccl", "mccl", "cncl", "bccl", "rccl"})
"""Backends with their own recorder: what they retire has ended, successfully or not."""

_AT_ONCE_NS = 50_000
"""No send or receive is issued, carried out and found complete within this time."""

Bools = npt.NDArray[np.bool_]


def interpret_retired(records: Records, entries: Entries, backends: set[str]) -> bool:
    """Interpret retired entries whose state is not completed.

    Entries with a duration are over. If none is over and all are retired, without a gap, retirement
    says nothing, and whether they are over is unknown.

    Returns
    -------
    bool
        Whether the recorder retires operations when they are issued.
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


def discard_batched_completions(records: Records, backends: set[str]) -> None:
    """Discard completions of sends and receives that were recorded at issue.

    Operations of a batch run when the batch ends; until then the hook sees a placeholder Work and
    calls it completed. If most sends and receives of a group completed at once, the others were
    merely noticed a little later. Whatever precedes a completed collective is over in any case.
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


def counts_op_ids(enqueued: int, own: Records) -> bool:
    """Whether a group's counter in ``pg_status`` counts ``op_id`` instead of sequence numbers."""
    if not len(own) or enqueued < 0:
        return False
    last = own[-1]
    numbers = (int(last["collective_seq"]), int(last["p2p_seq"]))
    return int(last["op_id"]) == enqueued and enqueued not in numbers


def seq_of_op_id(op_id: int, own: Records) -> int:
    """The sequence number of the collective with an ``op_id``; -1 if there is none."""
    found = np.flatnonzero((own["op_id"] == op_id) & ~flagged(own["flags"], Flag.P2P))
    return int(own["collective_seq"][found[-1]]) if len(found) and op_id >= 0 else NONE
