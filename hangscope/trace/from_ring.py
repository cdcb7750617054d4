"""Reads a HangScope ring as a `Fragment`: one copy of its slots, no parsing of records."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout
from hangscope.ring.header import RingHeader
from hangscope.ring.layout import GROUP, SLOT
from hangscope.ring.reader import RingReader
from hangscope.ring.reader_once import OneTimeReader
from hangscope.trace import clean, formats
from hangscope.trace.merge_records import counters_of
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Fragment,
    Records,
    Signature,
    Source,
    Stack,
    ThreadStack,
)
from hangscope.trace.ring_batch import RingBatch
from hangscope.trace.ring_facts import Texts, facts_of, main_call
from hangscope.trace.ring_values import RingValues

_NEWEST = 64
"""So many rows are looked through first for the main thread's newest call."""


def looks_like_ring(prefix: bytes) -> bool:
    """Whether a file that begins so is a ring of some version."""
    return prefix.startswith(layout.PREFIX)


def read_ring(
    path: str | os.PathLike[str],
    *,
    records: bool = True,
    shown: str = "",
    batch: RingBatch | None = None,
) -> Fragment:
    """One rank's ring.

    Parameters
    ----------
    path:
        The ring file; its writer may be alive, hung or long dead.
    records:
        False reads header and group table only.
    shown:
        The file's name as reports print it; the path by default.
    batch:
        What it shares with other rings of its job.

    Raises
    ------
    hangscope.ring.reader.RingError
        If the file is no usable ring.
    OSError
        If it cannot be opened.
    """
    batch = batch or RingBatch()
    reader = OneTimeReader(path, batch.block.take)
    try:
        return fragment_of(reader, records=records, batch=batch, shown=shown)
    finally:
        reader.close()


def fragment_of(
    reader: RingReader,
    *,
    records: bool = True,
    batch: RingBatch | None = None,
    shown: str = "",
    newest: int | None = None,
) -> Fragment:
    """The fragment of an open ring, as it is now; every text in it is fit to be printed.

    ``batch``: what it shares with others; without one, all stacks are decoded at once. ``newest``:
    so many records at most.
    """
    lazy, batch = batch is not None, batch or RingBatch()
    since = max(0, reader.header().last_record_id - newest) if newest is not None else 0
    slots, torn = reader.slots(since) if records else (np.zeros(0, SLOT), 0)
    header = reader.header()  # after the slots: what they mention is counted there
    table = reader.groups(header.groups_used)
    values = RingValues(reader.values(header.values_used), batch.recent)
    rank = header.rank
    lost = torn + header.dropped
    oldest = int(slots["record_id"][0]) if len(slots) else 0
    rows, signatures, stacks = _records(values, slots, rank, len(table), batch)
    call = functools.partial(_newest_call, rows, header.main_thread, stacks)
    facts = facts_of(reader, header, lost, oldest, texts=values, newest_call=call)
    return Fragment(
        source=Source(
            path=shown or str(reader.path),
            format=formats.RING,
            version=str(header.version),
            rank=rank,
            records=len(rows),
            dropped=lost,
        ),
        facts=facts,
        records=rows,
        members=members_of(table, rank, np.arange(len(table))),
        groups=values.groups(table),
        signatures=signatures,
        stacks=stacks if lazy else tuple(stacks),
        warnings=_warnings(reader.path.name, header, values),
        timeout_s=header.timeout_s,
        implied=counters_of(rows, len(table)) if len(rows) else None,
    )


def _warnings(name: str, header: RingHeader, texts: Texts) -> tuple[str, ...]:
    """What the recorder says it could not record."""
    if not (header.disabled or header.values_refused or header.groups_refused):
        return ()
    warnings = []
    if disabled := texts.text(header.disabled):
        warnings.append(f"{name}: recording stopped early: {clean.name(disabled)}")
    if header.values_refused:
        warnings.append(
            f"{name}: the table of stacks and signatures is full; "
            f"{header.values_refused} later ones are missing"
        )
    if header.groups_refused:
        warnings.append(f"{name}: some process groups are missing, the table was full")
    return tuple(warnings)


def members_of(table: Records, rank: int | npt.NDArray[Any], group: npt.NDArray[Any]) -> Records:
    """The counters in entries of a group table, as rows of `MEMBER_DTYPE`.

    Parameters
    ----------
    table:
        Shape (groups,), dtype `GROUP`.
    rank, group:
        Whose they are, and where the groups stand in the trace's table.
    """
    words = np.ascontiguousarray(table).view(np.int64).reshape(-1, _GROUP_WORDS)
    members: Records = words[:, _COUNTERS].copy().view(MEMBER_DTYPE).reshape(-1)
    members["rank"] = rank
    members["group"] = group
    return members


# A group's counters stand in the order they have in the trace, behind two numbers that give way to
# rank and group.
_GROUP_WORDS = GROUP.itemsize // 8
_COUNTERS = slice(layout.group_offset("size") // 8, layout.group_offset("op_id") // 8)
assert GROUP.names is not None
assert MEMBER_DTYPE.names is not None
assert GROUP.names[8:15] == MEMBER_DTYPE.names[2:]


def _records(
    values: RingValues, slots: Records, rank: int, group_count: int, batch: RingBatch
) -> tuple[Records, tuple[Signature, ...], Sequence[Stack]]:
    """Slots turned, where they lie, into trace records; with the signatures and stacks they use."""
    group, signature_ids, stack_ids = _mentioned(slots)
    group -= np.uint32(1)  # a slot without a group has the highest number of all now
    if int(group.max(initial=0)) >= group_count:
        slots = slots[group < group_count]
        group, signature_ids, stack_ids = _mentioned(slots)
        group -= np.uint32(1)
    used_signatures, signature = batch.signature_ids.of(signature_ids)
    used_stacks, stack = batch.stack_ids.of(stack_ids)
    stack += np.int32(batch.stacks.append(values.stacks(used_stacks)))
    if len(used_stacks) and used_stacks[0] == 0:
        stack[stack_ids == 0] = NONE
    signatures, signature = _fill_sizes(values.signatures(used_signatures), signature, slots)
    table = slots.view(RECORD_DTYPE)
    table["group"] = group
    table["signature"], table["stack"] = signature, stack
    table["thread"] = slots["thread"]
    table["rank"] = rank
    return table, signatures, batch.stacks


_SLOT_WORDS = SLOT.itemsize // 4
_MENTIONED = SLOT.fields["group"][1] // 4  # type: ignore[index]
assert SLOT.names is not None
assert SLOT.names[8:11] == ("group", "signature", "stack")


def _mentioned(slots: Records) -> npt.NDArray[np.uint32]:
    """Group, signature and stack of all slots, copied out of them in one walk: shape (3, slots)."""
    words = np.ascontiguousarray(slots).view(np.uint32).reshape(-1, _SLOT_WORDS)
    return np.ascontiguousarray(words[:, _MENTIONED : _MENTIONED + 3].T)


def _fill_sizes(
    signatures: tuple[Signature, ...], place: npt.NDArray[np.int32], slots: Records
) -> tuple[tuple[Signature, ...], npt.NDArray[np.int32]]:
    """Give signatures whose sizes did not fit into the ring the sizes that stand in the records."""
    bare = [i for i, s in enumerate(signatures) if s.input_sizes is None and s.raw]
    if not bare:
        return signatures, place
    place = place.copy()
    extended = list(signatures)
    for index in bare:
        rows = np.flatnonzero(place == index)
        sizes = np.stack([slots["input_numel"][rows], slots["output_numel"][rows]], axis=1)
        for numels in np.unique(sizes, axis=0):
            extended.append(with_numels(signatures[index], int(numels[0]), int(numels[1])))
            place[rows[(sizes == numels).all(axis=1)]] = len(extended) - 1
    return tuple(extended), place


def with_numels(base: Signature, input_numel: int, output_numel: int) -> Signature:
    """A signature whose sizes did not fit into the ring, with the totals of one record."""
    return Signature(
        op=base.op, raw=base.raw, backend=base.backend, input_dtypes=base.input_dtypes,
        reduce_op=base.reduce_op, input_numel=input_numel, output_numel=output_numel,
    )  # fmt: skip


def _newest_call(
    rows: Records, main_thread: int, stacks: Sequence[Stack], after_ns: int
) -> ThreadStack | None:
    """Where the main thread issued its newest operation, if it did so after a time."""
    row = rows[-1] if len(rows) else None
    if row is None or row["thread"] != main_thread or row["stack"] == NONE:
        row = None
        for part in (rows[-_NEWEST:], rows[:-_NEWEST]):
            found = np.flatnonzero((part["thread"] == main_thread) & (part["stack"] != NONE))
            if len(found):
                row = part[found[-1]]
                break
    if row is None or int(row["created_ns"]) <= after_ns:
        return None
    return main_call(stacks[int(row["stack"])], int(row["created_ns"]))


__all__ = ["fragment_of", "looks_like_ring", "read_ring"]
