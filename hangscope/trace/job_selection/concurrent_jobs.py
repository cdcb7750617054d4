"""Dumps of several jobs that ran beside each other, collected into one place.

Attempts of one job follow each other; the newest counts. Jobs of one launch run at the same time
and have the same ranks: their dumps must neither be mixed nor taken for attempts.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hangscope.trace import clean
from hangscope.trace.model import NONE, Flag, Fragment, State, flagged

_DIGITS = re.compile(r"\d+")
_COPIED_NS = 60 * 10**9
"""Files of two jobs whose dates are closer than this may have got them when they were copied."""
_AT_ONCE_NS = 10 * 10**9
"""A file that is dated so soon after its newest record has the date at which it was written."""
_SEVERAL = 2
_NEXT = 16
"""So many dumps of one rank are compared with each: a rank may have dumped every few seconds."""


@dataclass(slots=True)
class _Set:
    """Dumps that belong together by their place: one folder, one kind of name."""

    key: str
    fragments: list[Fragment] = field(default_factory=list)

    def groups(self) -> set[tuple[str, tuple[int, ...]]]:
        """Groups with their members, as the dumps list them."""
        return {(g.name, g.ranks) for f in self.fragments for g in f.groups if g.ranks}


@dataclass(slots=True)
class _Job:
    sets: list[_Set]

    def fragments(self) -> list[Fragment]:
        return [f for s in self.sets for f in s.fragments]


def of_one_job(dumps: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The dumps of one job, and a line for each other one that ran at the same time.

    Of several jobs the one in which something is unfinished counts, of several of those the one
    that has issued something last. Dumps of one rank are of different processes where they have no
    time of issue in common.
    """
    by_rank: dict[int, list[Fragment]] = defaultdict(list)
    for dump in dumps:
        if dump.facts.rank != NONE and _times(dump).size:
            by_rank[dump.facts.rank].append(dump)
    for own in by_rank.values():
        own.sort(key=lambda dump: int(_times(dump).min()))
    foreign = {
        frozenset((id(a), id(b)))
        for own in by_rank.values()
        for i, a in enumerate(own)
        for b in own[i + 1 : i + _NEXT]
        if _beside(a, b)
    }
    if not foreign:
        return list(dumps), []
    jobs = _jobs(dumps, foreign)
    if len(jobs) < _SEVERAL:
        return list(dumps), []
    jobs.sort(key=lambda j: (_waits(j), max(map(_last, j.fragments()), default=0)), reverse=True)
    kept = set(map(id, jobs[0].fragments()))
    notes = [
        f"{clean.name(job.sets[0].key)}: dumps of another job that ran at the same time "
        f"({len({f.facts.rank for f in job.fragments()})} ranks); ignored"
        for job in jobs[1:]
    ]
    return [f for f in dumps if id(f) in kept], notes


def _jobs(dumps: Sequence[Fragment], foreign: set[frozenset[int]]) -> list[_Job]:
    sets: dict[str, _Set] = {}
    for dump in dumps:
        sets.setdefault(key := _place(dump), _Set(key)).fragments.append(dump)
    set_of = {id(f): s.key for s in sets.values() for f in s.fragments}
    apart = {frozenset(set_of[i] for i in pair) for pair in foreign}
    if any(len(pair) == 1 for pair in apart):
        return []  # nothing tells the files of one from those of the other
    jobs: list[_Job] = []
    for one in sorted(sets.values(), key=lambda s: (-len(s.fragments), s.key)):
        fit = [
            job for job in jobs if not any(frozenset((one.key, s.key)) in apart for s in job.sets)
        ]
        if fit:
            max(fit, key=lambda job: _kinship(one, job)).sets.append(one)
        else:
            jobs.append(_Job([one]))
    return jobs


def _place(dump: Fragment) -> str:
    """The folder and the kind of name; of a file with several ranks the file."""
    folder, name = os.path.split(dump.source.path)
    return f"{folder or '.'}/{_DIGITS.sub('#', name)}"


def _kinship(one: _Set, job: _Job) -> tuple[int, bool]:
    groups = one.groups()
    shared = sum(len(groups & s.groups()) for s in job.sets)
    return shared, any(os.path.dirname(s.key) == os.path.dirname(one.key) for s in job.sets)


def _times(dump: Fragment) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    created = dump.records["created_ns"]
    return np.asarray(created[created > 0])


def _beside(a: Fragment, b: Fragment) -> bool:
    """Whether two dumps of one rank are of processes that lived at the same time."""
    one, two = _times(a), _times(b)
    if np.intersect1d(one, two).size:
        return False
    if one.min() > two.min():
        one, two, a, b = two, one, b, a
    if two.min() <= one.max():
        return True
    # The one that began first may have hung while the other ran; its file is older then or newer.
    written, other = a.facts.observed_ns, b.facts.observed_ns
    dated = abs(written - other) > _COPIED_NS or 0 < other - two.max() < _AT_ONCE_NS
    return bool(two.min() <= written and dated)


def _last(dump: Fragment) -> int:
    return int(dump.records["created_ns"].max(initial=0))


def _waits(job: _Job) -> int:
    """2 where something is unfinished, 1 where that is not known, 0 where all is over."""
    flags, states = (
        np.concatenate([f.records[column] for f in job.fragments()])
        for column in ("flags", "state")
    )
    left = (states != State.COMPLETED) & ~flagged(flags, Flag.COALESCED_MEMBER)
    known = left & ~flagged(flags, Flag.UNOBSERVED)
    return 2 if known.any() else int(left.any())
