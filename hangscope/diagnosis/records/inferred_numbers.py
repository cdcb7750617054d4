"""Infers sequence numbers for collectives without one by aligning the records of a group's members.

A recorder with one counter for several things does not show, once its oldest records are
overwritten, which collective of the group a record is. But members issue the same operations in the
same order, nothing finishes before every member has issued it, and usually all have finished
equally many.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.agreement import Terms, terms
from hangscope.diagnosis.records.alignment import Side, shift
from hangscope.trace.model import Flag, Records, State, Trace, flagged

_LOST = 1000
"""Inferred numbers start here in groups of which no member has its own: it is not the first
operation."""

Rows = npt.NDArray[np.int64]


def with_inferred_numbers(trace: Trace) -> tuple[Trace, frozenset[int]]:
    """The trace with a number for every collective that lacks one, and the groups affected.

    The reference is a member that knows its numbers, else the one with most records. That two
    numbers mean the same operation is then an inference. Counters of such a group counted something
    else, and are dropped.
    """
    records = trace.records
    inside = int(Flag.P2P | Flag.COALESCED_MEMBER | Flag.SYNTHETIC)
    collective = ~flagged(records["flags"], inside)
    lost = collective & (records["collective_seq"] == 0) & (records["created_ns"] > 0)
    if not lost.any():
        return trace, frozenset()
    kinds = _kinds(trace)
    numbers = records["collective_seq"].copy()
    groups = np.unique(records["group"][lost])
    for group in groups.tolist():
        rows = np.flatnonzero(collective & (records["group"] == group))
        cuts = np.flatnonzero(np.diff(records["rank"][rows])) + 1
        _lay(records, numbers, kinds, np.split(rows, cuts))
    made = records.copy()
    made["collective_seq"] = numbers
    members = trace.members[~np.isin(trace.members["group"], groups)]
    return replace(trace, records=made, members=members), frozenset(groups.tolist())


def _lay(records: Records, numbers: Rows, kinds: Rows, members: list[Rows]) -> None:
    """Fill in ``numbers`` of one group's rows, given per member in order of issue."""
    known = [rows for rows in members if (numbers[rows] > 0).all()]
    measure = max(known or members, key=len)
    if not known:
        numbers[measure] = _LOST + len(measure) + np.arange(len(measure))
    side = _side(records, kinds, measure)
    last = int(numbers[measure[-1]])
    for rows in members:
        if rows is measure or (numbers[rows] > 0).all():
            continue
        ahead = shift(_side(records, kinds, rows), side)
        numbers[rows] = np.maximum(last + ahead - np.arange(len(rows))[::-1], 0)


def _side(records: Records, kinds: Rows, rows: Rows) -> Side:
    part = records[rows]
    return Side(
        kinds[part["signature"]],
        part["created_ns"],
        np.where(part["state"] == State.COMPLETED, part["completed_ns"], 0),
        part["state"] != State.COMPLETED,
    )


def _kinds(trace: Trace) -> Rows:
    """Numbers the signatures by what all members of a group must issue alike; never two in a
    row."""
    known: dict[Terms, int] = {}
    bound = [terms(signature) for signature in trace.signatures]
    return np.array([2 * known.setdefault(one, len(known)) for one in bound], np.int64)
