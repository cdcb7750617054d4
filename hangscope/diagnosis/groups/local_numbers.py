"""Names that stand for several groups.

The oldest dumps, and the watchdog of torch 2.3, name a group by how many groups the process had
created before. Number 1 is the first tensor group on some ranks and the second on others, and
nothing shows which ranks belong together. Entries of other dumps name no group, or all the same
one; the records may contradict that: a rank's numbers run backwards, which cannot happen in one
group, or ranks have finished incompatible operations under one number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.agreement import terms
from hangscope.trace.model import NONE, Flag, Group, State, Trace, flagged


def split_local_numbers(trace: Trace, sizes: dict[int, int]) -> Trace:
    """The trace with a separate group for each rank that uses a possibly ambiguous number.

    ``sizes``: members per group as operations show them. Number 0 is the whole job, and so is a
    number whose operations have as many parts as there are ranks. If some rank uses every number
    that anybody uses, the numbers are local and ambiguous; if none does, they are job-wide and
    nothing is done, unless more ranks use a number than its operations have parts (once old records
    are gone, no rank may show all numbers).
    """
    ambiguous = ambiguous_numbers(trace, sizes)
    return apart(trace, ambiguous) if ambiguous else trace


def ambiguous_numbers(trace: Trace, sizes: dict[int, int]) -> list[int]:
    """The groups whose number may be ambiguous, as in `split_local_numbers`."""
    if any(group.desc for group in trace.groups if not _is_unknown(group)):
        return []  # whoever wrote these dumps knew the groups' names
    used = _numbers(trace)
    everything = set().union(*used.values())
    users = Counter(number for numbers in used.values() for number in numbers)
    shared = any(
        users[int(group.name or "0")] > sizes.get(i, len(trace.ranks))
        for i, group in enumerate(trace.groups)
        if used and not _is_unknown(group)
    )
    if not shared and everything not in used.values():
        return []
    return [
        i
        for i, group in enumerate(trace.groups)
        if group.name not in ("", "0")
        and sizes.get(i) != len(trace.ranks)
        and not _is_unknown(group)
    ]


def split_logged_numbers(trace: Trace) -> Trace:
    """The same for logs, whose labels reveal it: a place in a group belongs to one rank."""
    taken: dict[tuple[int, int], int] = {}
    shared = False
    for claim in trace.claims:
        place = claim.details.place
        if claim.reporter is not None and type(place) is int and claim.group >= 0:
            known = taken.setdefault((claim.group, place), claim.reporter)
            shared |= known != claim.reporter and _is_number(trace.groups[claim.group])
    if not shared:
        return trace
    return apart(trace, [i for i, group in enumerate(trace.groups) if _is_number(group)])


def _is_unknown(group: Group) -> bool:
    """Whether it is a nameless group mentioned by a log next to the dumps."""
    return group.name.startswith("?")


def _is_number(group: Group) -> bool:
    return group.name.isdigit() and group.name != "0" and not group.desc


def apart(trace: Trace, ambiguous: list[int]) -> Trace:
    """The trace with one copy of each group per rank, without member lists."""
    records, members = trace.records.copy(), trace.members.copy()
    records["peer"][np.isin(records["group"], ambiguous)] = NONE
    groups = list(trace.groups)
    moved: dict[tuple[int, int], int] = {}
    for index in ambiguous:
        number = trace.groups[index].name
        uses = [(table, table["group"] == index) for table in (records, members)]
        here = np.unique(np.concatenate([table["rank"][rows] for table, rows in uses]))
        # The first copy takes over the group's index: no other index moves.
        places = np.array([index, *range(len(groups), len(groups) + len(here) - 1)][: len(here)])
        for rank, place in zip(here.tolist(), places.tolist(), strict=True):
            if place == len(groups):
                groups.append(trace.groups[index])
            groups[place] = Group(f"{number} of rank {rank}", "", ())
            moved[index, rank] = place
        for table, rows in uses:
            if rows.any():
                table["group"][rows] = places[np.searchsorted(here, table["rank"][rows])]
    claims = tuple(
        replace(c, group=moved.get((c.group, c.reporter), c.group)) if c.reporter is not None else c
        for c in trace.claims
    )
    return replace(trace, records=records, members=members, groups=tuple(groups), claims=claims)


def _numbers(trace: Trace) -> dict[int, set[int]]:
    """Per rank the numbers of the groups it used; empty if any group has another kind of name."""
    names = ["" if _is_unknown(group) else group.name or "0" for group in trace.groups]
    if not all(name.isdigit() for name in names if name):
        return {}
    used: dict[int, set[int]] = {}
    records = trace.records
    pairs = np.unique(records["rank"].astype(np.int64) * len(names) + records["group"])
    for pair in pairs.tolist():
        rank, group = divmod(pair, len(names))
        if names[group]:
            used.setdefault(rank, set()).add(int(names[group]))
    return used


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
