"""Drops dumps of an earlier attempt that the newest one has not overwritten.

A restarted job writes to the same folder under the same names. If a rank of the new attempt leaves
no dump, or the new attempt has fewer ranks, old dumps remain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median_low

import numpy as np

from hangscope.trace import formats
from hangscope.trace.job_selection.processes import last_seen_ns
from hangscope.trace.model import NONE, Fragment

_Members = tuple[str, tuple[int, ...]]
"""A group's name and members."""
_APART_NS = 600 * 10**9
"""Dumps of one hang are written within minutes of each other."""
_CLOCKS_NS = 60 * 10**9
"""The clocks of a job's hosts usually differ by less."""
_WENT_ON_NS = 60 * 10**9
"""No rank goes on for this long without a dead one: sooner or later it needs that rank."""
_DELAY_NS = 60 * 10**9
"""A dump of an earlier attempt was written at least this long before the next began to record."""


def drop_dumps_older_than_rings(
    dumps: Sequence[Fragment], named: Sequence[Fragment]
) -> tuple[list[Fragment], list[str]]:
    """Drop dumps that an earlier attempt left in the run directory under the same name."""
    began = {f.facts.rank: f.facts.started_ns for f in named if f.source.format == formats.RING}
    kept, notes = [], []
    for dump in dumps:
        rank = dump.facts.rank
        if last_seen_ns(dump) < began.get(rank, 0) - _DELAY_NS:
            notes.append(
                f"{dump.source.path}: written before rank {rank} of this run began; ignored"
            )
        else:
            kept.append(dump)
    return kept, notes


def drop_stale_dumps(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Return the fragments without dumps of an earlier attempt, and a note on each one dropped."""
    kept, of_worlds = _drop_other_world_sizes(fragments)
    kept, of_times = _drop_written_before_start(kept)
    kept, overtaken = _drop_overtaken(kept)
    return kept, [*of_worlds, *of_times, *overtaken]


def _drop_other_world_sizes(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Drop dumps of another world size if all of them are older than all of the newest world's.

    An elastic job that restarts with a different number of ranks leaves such dumps; the same rank
    number then means another process. Worlds that overlap in time are kept.
    """
    worlds: dict[int, list[Fragment]] = defaultdict(list)
    for dump in _dumps(fragments):
        size = _world_of(dump)
        if size:
            worlds[size].append(dump)
    if len(worlds) < 2:
        return list(fragments), []
    newest = max(worlds, key=lambda size: max(map(_newest_ns, worlds[size])))
    began = min(map(_newest_ns, worlds[newest]))
    old = {
        id(dump): f"{dump.source.path}: of an earlier attempt with {size} ranks (now {newest}); "
        "ignored"
        for size, dumps in worlds.items()
        if 0 < max(map(_newest_ns, dumps)) < began - _APART_NS
        for dump in dumps
    }
    return [f for f in fragments if id(f) not in old], list(old.values())


def _drop_written_before_start(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Drop dumps written before most of the other ranks began.

    Such a dump was written, and mentions nothing later than, ten minutes before most others have
    any record; one minute is enough if their records begin with the job. A dump that a rank of this
    attempt wrote so early would show nothing of the hang, and cannot be distinguished from one with
    a clock that is this far off. Either way the rank counts as having left no dump, which makes
    accusing it less certain. If most others still have all their records, the file's date is
    ignored, because copying renews it: nothing had been issued yet.
    """
    dumps = _dumps(fragments)
    if len(dumps) < 3:
        return list(fragments), []
    left, began = _written_before(dumps, _written_ns, dumps)
    whole = [f for f in dumps if f.facts.oldest_record_id == 1]
    if not left and len(whole) * 2 > len(dumps):
        left, began = _written_before(dumps, _newest_ns, whole)
    stale = set(map(id, left))
    return [f for f in fragments if id(f) not in stale], [
        f"{f.source.path}: of an earlier attempt (the other dumps begin "
        f"{(began - _newest_ns(f)) / 60e9:.0f} minutes after it was written); ignored"
        for f in left
    ]


def _written_before(
    dumps: Sequence[Fragment], when: Callable[[Fragment], int], beginning: Sequence[Fragment]
) -> tuple[list[Fragment], int]:
    """The dumps that end long before most of ``beginning`` begin, and when those begin.

    If the records go back to the start of the job, that is the time of its restart.
    """
    times = {id(f): when(f) for f in dumps}
    usual = median_low(times.values())
    old = [f for f in dumps if 0 < times[id(f)] < usual - _APART_NS]
    left = set(map(id, old))
    first = [
        int(f.records["created_ns"].min())
        for f in beginning
        if id(f) not in left and len(f.records)
    ]
    if not old or not first:
        return [], 0
    began = median_low(first)
    whole = [f for f in beginning if id(f) not in left and f.facts.oldest_record_id == 1]
    apart_ns = _CLOCKS_NS if len(whole) * 2 > len(first) else _APART_NS
    return [f for f in old if times[id(f)] < began - apart_ns], began


def _drop_overtaken(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Drop dumps after which other ranks went on in a group with the dump's rank.

    Such a dump was requested while the job ran, and the rank has not dumped again. Its clock must
    agree with the others': they issued its last operation at the same time.
    """
    dumps = _dumps(fragments)
    end = max(map(_newest_ns, dumps), default=0)
    if not any(0 < dump.facts.observed_ns < end - _WENT_ON_NS for dump in dumps):
        return list(fragments), []  # no dump is early enough, whatever its groups
    newest: dict[_Members, int] = defaultdict(int)
    for dump in dumps:
        for group, (_, moment) in _last_in_groups(dump).items():
            newest[group] = max(newest[group], moment)
    old: dict[int, tuple[Fragment, int]] = {}
    for dump in dumps:
        at = dump.facts.observed_ns
        listed = [(g.name, g.ranks) for g in dump.groups if dump.facts.rank in g.ranks]
        went_on = max((newest[group] for group in listed if group in newest), default=0)
        if _newest_ns(dump) < at < went_on - _WENT_ON_NS:
            old[id(dump)] = dump, went_on - at
    in_time = _issued_with_others([dump for dump, _ in old.values()], dumps)
    old = {key: found for key, found in old.items() if key in in_time}
    return [f for f in fragments if id(f) not in old], [
        f"{dump.source.path}: others went on for {more_ns / 1e9:.0f} s after it was written; "
        "ignored"
        for dump, more_ns in old.values()
    ]


def _issued_with_others(some: Sequence[Fragment], dumps: Sequence[Fragment]) -> set[int]:
    """The ids of those in ``some`` whose last operation in a group another dump has at the same
    time.
    """
    wanted: dict[_Members, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for dump in some:
        for group, (seq, moment) in _last_in_groups(dump).items():
            wanted[group].setdefault(seq, []).append((id(dump), moment))
    found = set()
    own = set(map(id, some))
    for dump in (d for d in dumps if wanted and id(d) not in own):
        records = dump.records
        for index, listed in enumerate(dump.groups):
            due = wanted.get((listed.name, listed.ranks), {})
            if not due:
                continue
            rows = np.flatnonzero(
                (records["group"] == index) & np.isin(records["collective_seq"], list(due))
            )
            for row in rows.tolist():
                at = int(records["created_ns"][row])
                for key, moment in due[int(records["collective_seq"][row])]:
                    if abs(at - moment) < _WENT_ON_NS:
                        found.add(key)
    return found


def _last_in_groups(dump: Fragment) -> dict[_Members, tuple[int, int]]:
    """For each listed group, the sequence number and time of the rank's last operation."""
    found = {}
    records = dump.records
    for index in np.unique(records["group"]).tolist():
        if index >= 0 and dump.groups[index].listed:
            row = np.flatnonzero(records["group"] == index)[-1]
            group = dump.groups[index]
            last = int(records["collective_seq"][row]), int(records["created_ns"][row])
            found[group.name, group.ranks] = last
    return found


def _dumps(fragments: Sequence[Fragment]) -> list[Fragment]:
    return [f for f in fragments if f.source.format in formats.DUMPS and f.facts.rank != NONE]


def _world_of(dump: Fragment) -> int:
    """The size of the default group that a dump lists; 0 if it lists none."""
    sizes = [len(g.ranks) for g in dump.groups if g.desc == "default_pg" and g.listed]
    return max(sizes, default=0)


def _newest_ns(dump: Fragment) -> int:
    """The time of a dump's newest record, else its file date, which copying changes."""
    newest = int(dump.records["created_ns"].max()) if len(dump.records) else 0
    return newest or dump.facts.observed_ns


def _written_ns(dump: Fragment) -> int:
    """When a dump was written: the later of its file date and its newest record."""
    return max(_newest_ns(dump), dump.facts.observed_ns)
