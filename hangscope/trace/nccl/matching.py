"""Finds the record of each operation that NCCL told about.

Torch calls NCCL inside the call that is recorded, in one process with one clock: an operation
belongs to the newest record before it whose operation calls such a function. Two communicators
never share a record: the second one's operations bypass torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.ring.device_layout import OperationFlag
from hangscope.ring.device_reader import DeviceRing
from hangscope.trace.model import NONE, Flag, Group, Records, Signature, flagged
from hangscope.trace.nccl.functions import called_bits, expected_count, function_bits

Ints = npt.NDArray[np.int64]

_STEPS_BACK = 16
"""So many records may be issued by other threads, or in other groups, before NCCL is called."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Per signature, and per group, what an operation must agree with."""

    called: Ints
    counts: Ints
    sizes: Ints

    @classmethod
    def of(cls, signatures: tuple[Signature, ...], groups: tuple[Group, ...]) -> Tables:
        """The tables of a trace; index -1, "unknown", is their last entry."""
        return cls(
            np.array([*map(called_bits, signatures), 0], np.int64),
            np.array([*map(expected_count, signatures), NONE], np.int64),
            np.array([*(len(g.ranks) or g.size or 0 for g in groups), 0], np.int64),
        )


def records_of_operations(records: Records, tables: Tables, ring: DeviceRing) -> Ints:
    """Per operation of a device ring, the index of its record among a rank's, or -1.

    Parameters
    ----------
    records:
        Of one rank, in order of issue.
    tables:
        Of the trace.
    ring:
        What NCCL told in this rank's process.
    """
    operations = ring.operations
    found = np.full(len(operations), NONE, np.int64)
    if not len(records) or not len(operations):
        return found
    order = np.argsort(records["created_ns"], kind="stable")
    at = np.searchsorted(records["created_ns"][order], operations["enqueued_ns"], "right") - 1
    bits = function_bits(operations["func"])
    ranks = ring.communicators["ranks"][operations["communicator"] - 1]
    open_ = ~flagged(operations["flags"], OperationFlag.REPLAYED)
    for back in range(_STEPS_BACK):
        tried = np.flatnonzero(open_ & (at - back >= 0))
        if not len(tried):
            break
        row = order[at[tried] - back]
        fits = _fits(records[row], tables, operations[tried], bits[tried], ranks[tried])
        found[tried[fits]] = row[fits]
        open_[tried[fits]] = False
    found = _batches_for_members(records, found)
    _leave_to_the_first(found, operations["communicator"])
    return found


def _fits(
    records: Records, tables: Tables, operations: Records, bits: Ints, ranks: Ints
) -> npt.NDArray[np.bool_]:
    """Whether each record may have called the operation beside it."""
    pair = flagged(records["flags"], Flag.P2P)
    two_ways = pair & flagged(operations["flags"], OperationFlag.P2P)
    fits: npt.NDArray[np.bool_] = (tables.called[records["signature"]] & bits != 0) | two_ways
    size = tables.sizes[records["group"]]
    # Torch makes a communicator of their own for two members that send to each other.
    fits &= (ranks == 0) | (size == 0) | (ranks == size) | ((ranks == 2) & pair)
    wanted = tables.counts[records["signature"]]
    fits &= (wanted < 0) | (wanted == operations["count"].astype(np.int64))
    return fits


def _leave_to_the_first(found: Ints, communicator: Ints) -> None:
    """Take from each record what other communicators than the first one's did."""
    matched = np.flatnonzero(found >= 0)
    rows, first = np.unique(found[matched], return_index=True)
    owner = communicator[matched[first]]
    of_row = np.searchsorted(rows, found[matched])
    found[matched[owner[of_row] != communicator[matched]]] = NONE


def _batches_for_members(records: Records, found: Ints) -> Ints:
    """Replace members of a batch, which NCCL carries out as a whole, by the batch's own record."""
    member = flagged(records["flags"], Flag.COALESCED_MEMBER)
    if not member.any():
        return found
    batches = np.flatnonzero(flagged(records["flags"], Flag.COALESCED_BATCH))
    for number in np.flatnonzero(found >= 0).tolist():
        row = int(found[number])
        if member[row]:
            later = batches[(batches > row) & (records["group"][batches] == records["group"][row])]
            found[number] = later[0] if len(later) else NONE
    return found
