"""Converts the entries of a dump to records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hangscope.trace import operations
from hangscope.trace.flight_recorder.columns import (
    SEQ_FIELDS,
    Entries,
    bool_column,
    int_column,
    pick,
    values_of,
)
from hangscope.trace.flight_recorder.entry_groups import group_column
from hangscope.trace.flight_recorder.groups import GroupTable
from hangscope.trace.flight_recorder.p2p import mark_batches, outermost_batches, set_peers
from hangscope.trace.flight_recorder.sequence_numbers import Numbering, normalize_numbers
from hangscope.trace.flight_recorder.signatures import Signatures
from hangscope.trace.flight_recorder.stacks import Stacks
from hangscope.trace.flight_recorder.states import state_columns
from hangscope.trace.model import NONE, RECORD_DTYPE, Flag, Records, State


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a dump's records refer to; filled while they are read."""

    groups: GroupTable
    signatures: Signatures = field(default_factory=Signatures)
    stacks: Stacks = field(default_factory=Stacks)


def read_records(
    entries: Entries, rank: int, tables: Tables, *, counted: bool
) -> tuple[Records, Numbering]:
    """One record per entry, in order, and how the dump numbers them.

    ``counted``: the dump has counters of its groups, as a backend's own recorder writes them.
    """
    records = np.zeros(len(entries), RECORD_DTYPE)
    if not entries:
        return records, Numbering.USUAL
    records["rank"] = rank
    records["group"] = group_column(entries, tables.groups)
    records["signature"] = tables.signatures.of(entries)
    records["stack"] = tables.stacks.of(entries)
    records["collective_seq"] = int_column(entries, NONE, *SEQ_FIELDS)
    records["p2p_seq"] = int_column(entries, 0, "p2p_seq_id")
    records["op_id"] = int_column(entries, NONE, "op_id")
    numbered = "record_id" in entries.names
    records["record_id"] = (
        int_column(entries, NONE, "record_id") if numbered else np.arange(len(entries))
    )
    records["created_ns"] = _times(entries, "time_created")
    records["started_ns"] = _times(entries, "time_discovered_started")
    records["completed_ns"] = _times(entries, "time_discovered_completed")
    records["thread"] = int_column(entries, 0, "thread_id")
    records["timeout_ms"] = int_column(entries, 0, "timeout_ms")
    ops = [signature.op for signature in tables.signatures.table]
    p2p = np.array([operations.is_p2p(op) for op in ops], bool)[records["signature"]]
    batch = np.array([operations.is_batch(op) for op in ops], bool)
    is_batch = batch[records["signature"]]
    numbering = normalize_numbers(records, p2p, is_batch, numbered=numbered, counted=counted)
    records["state"], unknown = state_columns(entries)
    done = (records["completed_ns"] > 0) & (records["state"] < State.COMPLETED)
    records["state"][done] = State.COMPLETED
    records["root"] = int_column(entries, NONE, "root")
    records["peer"] = NONE
    flags = np.zeros(len(entries), np.uint16)
    # A dialect without states does not show what is unfinished, either.
    if unknown is not None:
        flags[unknown & (records["completed_ns"] == 0)] |= np.uint16(Flag.UNOBSERVED)
    retired = bool_column(entries, "retired")
    if retired is not None:
        flags[retired] |= np.uint16(Flag.RETIRED)
    marked = bool_column(entries, "is_p2p")
    if marked is not None:
        p2p |= marked
    is_end = np.array([op == operations.BATCH for op in ops], bool)[records["signature"]]
    is_batch = outermost_batches(records, is_batch, is_end)
    mark_batches(records, flags, p2p, is_batch, numbered=numbered)
    records["flags"] = flags
    if p2p.any():
        set_peers(records, tables.signatures, tables.groups, rank)
    return records, numbering


def _times(entries: Entries, stem: str) -> Any:
    """Nanoseconds since the epoch, 0 for null; dumps of torch 2.2 use microseconds."""
    name = pick(entries, f"{stem}_ns")
    if name is not None:
        values = [value or 0 for value in values_of(entries, name)]
        try:
            column = np.fromiter(values, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            column = int_column(entries, 0, name)
        return np.maximum(column, 0)
    micro = int_column(entries, 0, f"{stem}_us")
    return np.where((micro > 0) & (micro < (1 << 62) // 1000), micro * 1000, 0)
