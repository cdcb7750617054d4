"""Names that stand for several groups: dumps whose entries name no group, or all the same one.

Without member lists, a name is taken for one group. The records may contradict that: a rank's
numbers run backwards, which cannot happen in one group, or ranks have finished incompatible
operations under one number. Then nothing shows whose calls belong together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.groups.local_numbers import apart
from hangscope.diagnosis.records.agreement import terms
from hangscope.trace.model import NONE, Flag, State, Trace, flagged

_UNEVEN = "all_to_all"
"""Its sizes follow the data: members pass different ones."""
_OF_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations for which every member passes the same amount."""
_Keys = npt.NDArray[np.int64]


def split_ambiguous_names(trace: Trace) -> Trace:
    """The trace with a separate group for each rank that uses an ambiguous name.

    In these groups the rank's collectives are numbered in order of issue.
    """
    unlisted = np.array([not group.listed for group in trace.groups] or [False], bool)
    rows = _collectives(trace, unlisted)
    hidden = {*_running_backwards(trace, rows), *_finished_apart(trace, rows)}
    if not hidden:
        return trace
    names = np.array(sorted(hidden))
    inside = rows[np.isin(trace.records["group"][rows], names)]
    counted = trace.members[~np.isin(trace.members["group"], names)]
    found = apart(replace(trace, members=counted), names.tolist())
    found.records["collective_seq"][inside] = _in_order(found, inside)
    return found


def _collectives(trace: Trace, unlisted: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Rows of numbered collectives in groups whose members no source lists."""
    records = trace.records
    none = Flag.P2P | Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH | Flag.SYNTHETIC
    collective = ~flagged(records["flags"], none) & (records["collective_seq"] > 0)
    return np.flatnonzero(collective & unlisted[records["group"]] & (records["group"] >= 0))


def _places(trace: Trace, rows: npt.NDArray[np.intp]) -> _Keys:
    """One number for the rank and group of each record."""
    of_rank = trace.records["rank"][rows].astype(np.int64) * max(len(trace.groups), 1)
    keys: _Keys = of_rank + trace.records["group"][rows]
    return keys


def _running_backwards(trace: Trace, rows: npt.NDArray[np.intp]) -> list[int]:
    """Groups in which a rank's numbers decrease: it issued something later under a smaller
    number."""
    keys = _places(trace, rows)
    order = np.argsort(keys, kind="stable")
    numbers = trace.records["collective_seq"][rows][order]
    falls = (np.diff(numbers) < 0) & (np.diff(keys[order]) == 0)
    groups = trace.records["group"][rows][order][1:][falls]
    return [int(group) for group in np.unique(groups)]


def _finished_apart(trace: Trace, rows: npt.NDArray[np.intp]) -> list[int]:
    """Groups in which ranks have finished incompatible operations under one number."""
    records = trace.records
    kinds = _kinds(trace)[records["signature"][rows]]
    over = records["state"][rows] == int(State.COMPLETED)
    over &= ~flagged(records["flags"][rows], Flag.UNOBSERVED)
    rows, kinds = rows[over & (kinds >= 0)], kinds[over & (kinds >= 0)]
    width = int(records["collective_seq"][rows].max(initial=0)) + 1
    places = records["group"][rows].astype(np.int64) * width + records["collective_seq"][rows]
    used = np.unique(places * (len(trace.signatures) + 1) + kinds) // (len(trace.signatures) + 1)
    return [int(group) for group in np.unique(used[1:][used[1:] == used[:-1]] // width)]


def _kinds(trace: Trace) -> npt.NDArray[np.int64]:
    """Per signature the first compatible one; -1 if open.

    Records without a signature (-1) index the last entry.
    """
    first: dict[tuple[str, int | None], int] = {}
    found = []
    for index, signature in enumerate(trace.signatures):
        what = terms(signature)
        numel = None if what.op == _UNEVEN else what.numel
        comparable = what.op == _UNEVEN or (what.op in _OF_ALL and numel is not None)
        found.append(first.setdefault((what.op, numel), index) if comparable else NONE)
    return np.array([*found, NONE], np.int64)


def _in_order(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """1, 2, ... for the records of each rank, in order of issue."""
    keys = _places(trace, rows)
    order = np.argsort(keys, kind="stable")
    fresh = np.flatnonzero(np.diff(keys[order], prepend=-1) != 0)
    counted = np.arange(len(rows)) - np.repeat(fresh, np.diff([*fresh, len(rows)])) + 1
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = counted
    return numbers
