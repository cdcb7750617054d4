"""Keeps one job where dumps of several jobs that ran at the same time lie in one place.

Attempts of one job follow each other, and the newest counts. Jobs of one launch run concurrently
and number their ranks alike, so their dumps must be neither mixed nor mistaken for attempts.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from hangscope.trace import clean
from hangscope.trace.model import NONE, Flag, Fragment, State, flagged

_DIGITS = re.compile(r"\d+")
_COPIED_NS = 60 * 10**9
"""If the dates of two jobs' files are closer than this, copying the files may have set both."""
_AT_ONCE_NS = 10 * 10**9
"""A file dated this soon after its newest record still has the date at which it was written."""
_SEVERAL = 2
_NEXT = 16
"""How many later dumps of its rank each dump is compared with; a rank may dump every few
seconds."""


_Dumps = dict[str, list[Fragment]]
"""Dumps by what belongs together according to its path: one folder, one file name pattern."""


def keep_one_job(dumps: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Return the dumps of one job, and a note on each other job that ran at the same time.

    A job with unfinished operations is preferred; among several of those, the one that issued an
    operation last. Two dumps of one rank come from different processes if no operation was issued
    at the same time in both. If the files are numbered by host, none is returned.
    """
    by_rank: dict[int, list[Fragment]] = defaultdict(list)
    for dump in dumps:
        if dump.facts.rank != NONE and _issue_times(dump).size:
            by_rank[dump.facts.rank].append(dump)
    for own in by_rank.values():
        own.sort(key=lambda dump: int(_issue_times(dump).min()))
    foreign = {
        frozenset((id(a), id(b)))
        for own in by_rank.values()
        for i, a in enumerate(own)
        for b in own[i + 1 : i + _NEXT]
        if _ran_concurrently(a, b)
    }
    if not foreign:
        return list(dumps), []
    if _count_within_hosts(dumps, max(map(len, by_rank.values()))):
        keys = list(dict.fromkeys(_set_key(dump) for dump in dumps))
        return [], [
            f"{clean.name(', '.join(keys[:_SEVERAL]))}: the numbers in these names count within a "
            "host, so nothing tells whose dumps they are; put the global rank at the end of each"
        ]
    jobs = _jobs(dumps, foreign)
    if len(jobs) < _SEVERAL:
        return list(dumps), []
    jobs.sort(
        key=lambda job: (_unfinished_level(_all(job)), max(map(_last_issued_ns, _all(job)))),
        reverse=True,
    )
    kept = set(map(id, _all(jobs[0])))
    notes = [
        f"{clean.name(next(iter(job)))}: dumps of another job that ran at the same time "
        f"({len({f.facts.rank for f in _all(job)})} ranks); ignored"
        for job in jobs[1:]
    ]
    return [f for f in dumps if id(f) in kept], notes


def _count_within_hosts(dumps: Sequence[Fragment], several: int) -> bool:
    """Whether dumps that seem to be of several jobs are of one, numbered on each host anew.

    Then a group that all of them list has room for all, but nobody has the number of its later
    members. ``several``: how many dumps there are of one number.
    """
    listed = [{g.ranks for g in dump.groups if g.ranks} for dump in dumps]
    room = max(map(len, set[tuple[int, ...]].intersection(*listed)), default=0)
    return several * (max(dump.facts.rank for dump in dumps) + 1) <= room


def _jobs(dumps: Sequence[Fragment], foreign: set[frozenset[int]]) -> list[_Dumps]:
    sets: _Dumps = defaultdict(list)
    for dump in dumps:
        sets[_set_key(dump)].append(dump)
    set_of = {id(f): key for key, fragments in sets.items() for f in fragments}
    apart = {frozenset(set_of[i] for i in pair) for pair in foreign}
    if any(len(pair) == 1 for pair in apart):
        return []  # paths do not separate the jobs
    jobs: list[_Dumps] = []
    for key, fragments in sorted(sets.items(), key=lambda item: (-len(item[1]), item[0])):
        fit = [job for job in jobs if not any(frozenset((key, other)) in apart for other in job)]
        if fit:
            max(fit, key=lambda job: _affinity(key, fragments, job))[key] = fragments
        else:
            jobs.append({key: fragments})
    return jobs


def _all(job: _Dumps) -> list[Fragment]:
    return [f for fragments in job.values() for f in fragments]


def _set_key(dump: Fragment) -> str:
    """The folder and the file name with its digits masked."""
    folder, name = os.path.split(dump.source.path)
    return f"{folder or '.'}/{_DIGITS.sub('#', name)}"


def _affinity(key: str, fragments: Sequence[Fragment], job: _Dumps) -> tuple[int, bool]:
    """How much speaks for a set being of a job: groups that both list, and a common folder."""
    groups = _listed_groups(fragments)
    shared = sum(len(groups & _listed_groups(others)) for others in job.values())
    return shared, any(os.path.dirname(other) == os.path.dirname(key) for other in job)


def _listed_groups(fragments: Sequence[Fragment]) -> set[tuple[str, tuple[int, ...]]]:
    return {(g.name, g.ranks) for f in fragments for g in f.groups if g.ranks}


def _issue_times(dump: Fragment) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    created = dump.records["created_ns"]
    return np.asarray(created[created > 0])


def _ran_concurrently(a: Fragment, b: Fragment) -> bool:
    """Whether two dumps of one rank come from processes that ran at the same time."""
    one, two = _issue_times(a), _issue_times(b)
    if np.intersect1d(one, two).size or _are_parts(a, b):
        return False
    if one.min() > two.min():
        one, two, a, b = two, one, b, a
    if two.min() <= one.max():
        return True
    # The process that began first may have hung while the other ran. Then the dates of their files
    # differ, unless copying has reset them.
    written, other = a.facts.observed_ns, b.facts.observed_ns
    dated = abs(written - other) > _COPIED_NS or 0 < other - two.max() < _AT_ONCE_NS
    return bool(two.min() <= written and dated)


def _are_parts(a: Fragment, b: Fragment) -> bool:
    """Whether one recorder's entries were written to two files, as one for each group.

    It numbers them in order of issue. Two processes use the same numbers, or numbers whose order
    is not that of their times.
    """
    ids = np.concatenate([a.records["record_id"], b.records["record_id"]])
    if (ids < 0).any() or len(np.unique(ids)) < len(ids):
        return False
    created = np.concatenate([a.records["created_ns"], b.records["created_ns"]])[np.argsort(ids)]
    return bool((created > 0).all() and (np.diff(created) >= 0).all())


def _last_issued_ns(dump: Fragment) -> int:
    return int(dump.records["created_ns"].max(initial=0))


def _unfinished_level(dumps: Sequence[Fragment]) -> int:
    """2 if an operation is unfinished, 1 if that is unknown, 0 if everything has completed."""
    flags, states = (
        np.concatenate([f.records[column] for f in dumps]) for column in ("flags", "state")
    )
    left = (states != State.COMPLETED) & ~flagged(flags, Flag.COALESCED_MEMBER)
    known = left & ~flagged(flags, Flag.UNOBSERVED)
    return 2 if known.any() else int(left.any())
