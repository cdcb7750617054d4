"""Reads a ring as a `Fragment`: one copy of its slots, no parsing of records."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout
from hangscope.ring.header import RingHeader
from hangscope.ring.layout import GROUP
from hangscope.ring.reader import RingReader
from hangscope.trace import clean, formats
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Fragment,
    RankFacts,
    Records,
    Signature,
    Source,
    ThreadStack,
)
from hangscope.trace.rings.batch import RingBatch
from hangscope.trace.rings.columns import Columns
from hangscope.trace.rings.damage import records_are_damaged, reject_damaged
from hangscope.trace.rings.facts import Texts, facts_of, main_thread_call
from hangscope.trace.rings.values import RingValues

_DAMAGED = "damaged: records are missing in it; its counters are used, its records are not"
_NEWEST = 64
"""The main thread's newest call is first searched in this many rows."""


def read_ring(
    path: str | os.PathLike[str],
    *,
    shown: str = "",
    batch: RingBatch | None = None,
) -> Fragment:
    """Read one rank's ring.

    Parameters
    ----------
    path:
        The ring file; its writer may be alive, hung or long dead.
    shown:
        The file's name in reports; the path by default.
    batch:
        State shared with other rings of the job.

    Raises
    ------
    hangscope.ring.reader.RingError
        If the file is not a usable ring.
    OSError
        If it cannot be opened.
    """
    batch = batch or RingBatch()
    reader = RingReader(path, batch.block.take)
    try:
        slots, missing = reader.slots()
        return fragment_of(reader, slots, missing, batch, shown=shown)
    finally:
        reader.close()


def fragment_of(
    reader: RingReader,
    slots: Records,
    missing: int,
    batch: RingBatch,
    *,
    shown: str = "",
    rank: int | None = None,
    growing: bool = False,
    observe: Callable[..., RankFacts] = facts_of,
) -> Fragment:
    """The fragment of an open ring as it is now; all texts in it are sanitised.

    Parameters
    ----------
    reader:
        The ring.
    slots, missing:
        Its records (dtype `SLOT`), which become the fragment's own, and how many are lost.
    batch:
        State shared with other rings.
    shown:
        The file's name in reports; the path by default.
    rank:
        The process's rank in its job; the header's by default.
    growing:
        A process writes it meanwhile and it will be read again: what is missing may still come.
    observe:
        Gives the facts, from what `hangscope.trace.rings.facts.facts_of` takes.
    """
    header = reader.header()  # after the slots, so that it covers all that they mention
    rank = header.rank if rank is None else rank
    table = reader.groups(header.groups_used)
    values = RingValues(reader.values(header.values_used))
    lost = missing + header.dropped
    damaged = not growing and records_are_damaged(missing, table, slots)
    if damaged:
        slots = slots[:0]
    oldest = int(slots["record_id"][0]) if len(slots) else 0
    slots, columns = batch.columns.of(slots, len(table))
    groups = values.groups(table)
    if not growing:
        reject_damaged(header, table, values)
    numbers = batch.groups.of(groups)
    rows, signatures = _records(values, slots, columns, rank, batch)
    rows["group"] = columns.group if numbers is None else numbers.take(columns.group)
    call = functools.partial(_newest_call, rows, columns, values, header.main_thread)
    facts = observe(reader, header, lost, oldest, rank=rank, texts=values, newest_call=call)
    if damaged:
        facts = replace(facts, only_active=True, newest_lost=True)
    return Fragment(
        source=Source(
            path=shown or reader.name,
            format=formats.RING,
            version=str(header.version),
            rank=rank,
            records=len(rows),
            dropped=lost,
        ),
        facts=facts,
        records=rows,
        members=_members_of(table, rank),
        groups=groups,
        common_groups=None if numbers is None else batch.groups.table,
        signatures=signatures,
        stacks=batch.stacks,
        warnings=(*_warnings(reader, header, values), *([_DAMAGED] if damaged else [])),
        timeout_s=header.timeout_s,
        implied=batch.columns.counters_of(rows, columns),
    )


def _warnings(reader: RingReader, header: RingHeader, texts: Texts) -> tuple[str, ...]:
    """What the recorder could not record, according to itself."""
    if not (header.disabled or header.values_refused or header.groups_refused):
        return ()
    name, warnings = reader.path.name, []
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


def _members_of(table: Records, rank: int) -> Records:
    """The counters in a ring's group table (dtype `GROUP`), as rows of `MEMBER_DTYPE`."""
    words = np.ascontiguousarray(table).view(np.int64).reshape(-1, _GROUP_WORDS)
    members = np.zeros(len(table), MEMBER_DTYPE)
    rows = members.view(np.int64).reshape(-1, MEMBER_DTYPE.itemsize // 8)
    rows[:, : _COUNTERS.stop - _COUNTERS.start] = words[:, _COUNTERS]
    members["rank"] = rank
    members["group"] = np.arange(len(table))
    members["left_ns"] = table["destroyed_ns"]
    return members


# A group's counters are in the same order as in the trace, after two words that are overwritten by
# rank and group.
_GROUP_WORDS = GROUP.itemsize // 8
_COUNTERS = slice(layout.group_offset("size") // 8, layout.group_offset("op_id") // 8)
assert GROUP.names is not None
assert MEMBER_DTYPE.names is not None
assert GROUP.names[8:15] == MEMBER_DTYPE.names[2:9]


def _records(
    values: RingValues, slots: Records, columns: Columns, rank: int, batch: RingBatch
) -> tuple[Records, tuple[Signature, ...]]:
    """Convert slots in place to trace records, except their group; also returns the signatures."""
    start = batch.stacks.append(values.stacks(columns.stack_ids))
    signatures, signature = _fill_sizes(
        values.signatures(columns.signature_ids), columns.signature, slots
    )
    table = slots.view(RECORD_DTYPE)
    table["signature"] = signature
    table["stack"] = columns.stack + np.int32(start)
    if len(columns.without_stack):
        table["stack"][columns.without_stack] = NONE
    table["thread"] = slots["thread"]
    table["rank"] = rank
    return table, signatures


def _fill_sizes(
    signatures: tuple[Signature, ...], place: npt.NDArray[np.int32], slots: Records
) -> tuple[tuple[Signature, ...], npt.NDArray[np.int32]]:
    """Add sizes from the records to signatures whose sizes did not fit into the ring."""
    bare = [i for i, s in enumerate(signatures) if s.input_sizes is None and s.raw]
    if not bare:
        return signatures, place
    place = place.copy()
    extended = list(signatures)
    for index in bare:
        rows = np.flatnonzero(place == index)
        sizes = np.stack([slots["input_numel"][rows], slots["output_numel"][rows]], axis=1)
        for numels in np.unique(sizes, axis=0):
            extended.append(_with_numels(signatures[index], int(numels[0]), int(numels[1])))
            place[rows[(sizes == numels).all(axis=1)]] = len(extended) - 1
    return tuple(extended), place


def _with_numels(base: Signature, input_numel: int, output_numel: int) -> Signature:
    """A signature whose sizes did not fit into the ring, with the totals of one record."""
    return Signature(
        op=base.op, raw=base.raw, backend=base.backend, input_dtypes=base.input_dtypes,
        reduce_op=base.reduce_op, input_numel=input_numel, output_numel=output_numel,
    )  # fmt: skip


def _newest_call(
    rows: Records, columns: Columns, values: RingValues, main_thread: int, after_ns: int
) -> ThreadStack | None:
    """Where the main thread issued its newest operation, if that was after a given time."""
    row = _newest_row(rows, columns, main_thread)
    if row is None or (created_ns := int(rows["created_ns"][row])) <= after_ns:
        return None
    stack = values.stack(int(columns.stack_ids[columns.stack[row]]))
    return main_thread_call(stack, created_ns)


def _newest_row(rows: Records, columns: Columns, thread: int) -> int | None:
    """The newest row of a thread that has a stack."""
    threads = rows["thread"]
    last = len(rows) - 1
    if last >= 0 and threads[last] == thread and columns.stack[last] != NONE:
        return last
    for start, stop in ((max(0, last + 1 - _NEWEST), last + 1), (0, max(0, last + 1 - _NEWEST))):
        own = (threads[start:stop] == thread) & (columns.stack[start:stop] != NONE)
        found = np.flatnonzero(own)
        if len(found):
            return start + int(found[-1])
    return None
