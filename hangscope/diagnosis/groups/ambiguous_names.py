"""Names that hide several groups: dumps whose entries do not tell their groups, or all the same.

Where nobody lists members, a name is taken for one group. What is on record may contradict that: a
rank's numbers run backwards, as no group's do, or ranks have finished under one number what no
group carries out together. Then nothing tells whose calls belong together.
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
"""Those of which every member passes as much."""
_Keys = npt.NDArray[np.int64]


def with_hidden_groups_apart(trace: Trace) -> Trace:
    """The trace with a group of its own for each rank that uses a name which hides several.

    There the rank's collectives bear numbers in their order of issue.
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
    """The records of collectives with a number, in groups whose members no source lists."""
    records = trace.records
    none = Flag.P2P | Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH | Flag.SYNTHETIC
    told = ~flagged(records["flags"], none) & (records["collective_seq"] > 0)
    return np.flatnonzero(told & unlisted[records["group"]] & (records["group"] >= 0))


def _places(trace: Trace, rows: npt.NDArray[np.intp]) -> _Keys:
    """One number for the rank and group of each record."""
    of_rank = trace.records["rank"][rows].astype(np.int64) * max(len(trace.groups), 1)
    keys: _Keys = of_rank + trace.records["group"][rows]
    return keys


def _running_backwards(trace: Trace, rows: npt.NDArray[np.intp]) -> list[int]:
    """Groups in which a rank's numbers fall: it issued what came later under a smaller number."""
    keys = _places(trace, rows)
    order = np.argsort(keys, kind="stable")
    numbers = trace.records["collective_seq"][rows][order]
    falls = (np.diff(numbers) < 0) & (np.diff(keys[order]) == 0)
    groups = trace.records["group"][rows][order][1:][falls]
    return [int(group) for group in np.unique(groups)]


def _finished_apart(trace: Trace, rows: npt.NDArray[np.intp]) -> list[int]:
    """Groups in which ranks have finished, under one number, what nobody carries out together."""
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
    """Per signature the first that members may carry out together with it; -1 where that is open.

    Records without a signature (-1) find the last entry.
    """
    first: dict[tuple[str, int | None], int] = {}
    found = []
    for index, signature in enumerate(trace.signatures):
        what = terms(signature)
        numel = None if what.op == _UNEVEN else what.numel
        told = what.op == _UNEVEN or (what.op in _OF_ALL and numel is not None)
        found.append(first.setdefault((what.op, numel), index) if told else NONE)
    return np.array([*found, NONE], np.int64)


def _in_order(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """1, 2, ... for the records of each rank, in its order of issue."""
    keys = _places(trace, rows)
    order = np.argsort(keys, kind="stable")
    fresh = np.flatnonzero(np.diff(keys[order], prepend=-1) != 0)
    counted = np.arange(len(rows)) - np.repeat(fresh, np.diff([*fresh, len(rows)])) + 1
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = counted
    return numbers
