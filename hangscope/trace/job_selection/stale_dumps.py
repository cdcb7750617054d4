"""Dumps that an earlier attempt left behind under names that the newest has not written again.

Restarted jobs write into the same folder under the same names: where a rank of the new attempt
leaves no dump, or where the new attempt has fewer ranks, old ones are still there and tell of
another life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median_low

import numpy as np

from hangscope.trace import formats
from hangscope.trace.job_selection.ring_ranks import last_sign
from hangscope.trace.model import NONE, Fragment

_Members = tuple[str, tuple[int, ...]]
"""A group by its name and members."""
_APART_NS = 600 * 10**9
"""Dumps of one hang are written within minutes of each other."""
_CLOCKS_NS = 60 * 10**9
"""Clocks of the hosts of one job do not differ by more, as a rule."""
_WENT_ON_NS = 60 * 10**9
"""For so long no rank goes on without one that has died: it comes to something that needs it."""
_DELAY_NS = 60 * 10**9
"""A dump of an earlier attempt was written at least so long before the next one began to record."""


def since_their_rings_began(
    dumps: Sequence[Fragment], named: Sequence[Fragment]
) -> tuple[list[Fragment], list[str]]:
    """Without dumps that an earlier attempt left in the run directory under the same name."""
    began = {f.facts.rank: f.facts.started_ns for f in named if f.source.format == formats.RING}
    kept, notes = [], []
    for dump in dumps:
        rank = dump.facts.rank
        if last_sign(dump) < began.get(rank, 0) - _DELAY_NS:
            notes.append(
                f"{dump.source.path}: written before rank {rank} of this run began; ignored"
            )
        else:
            kept.append(dump)
    return kept, notes


def of_one_life(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The fragments without dumps of an earlier attempt, and a line for each that was left out."""
    kept, of_worlds = _of_newest_world(fragments)
    kept, of_times = _of_newest_times(kept)
    kept, overtaken = _of_the_end(kept)
    return kept, [*of_worlds, *of_times, *overtaken]


def _of_newest_world(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Without dumps that list another world, where all of them are older than all of the newest.

    An elastic job that restarts with another number of ranks leaves such dumps; who is at the same
    place of both worlds is another process. Worlds whose times overlap are left as they are.
    """
    worlds: dict[int, list[Fragment]] = defaultdict(list)
    for dump in _dumps(fragments):
        size = _world_of(dump)
        if size:
            worlds[size].append(dump)
    if len(worlds) < 2:
        return list(fragments), []
    newest = max(worlds, key=lambda size: max(map(_told, worlds[size])))
    began = min(map(_told, worlds[newest]))
    old = {
        id(dump): f"{dump.source.path}: of an earlier attempt with {size} ranks (now {newest}); "
        "ignored"
        for size, dumps in worlds.items()
        if size != newest and 0 < max(map(_told, dumps)) < began - _APART_NS
        for dump in dumps
    }
    return [f for f in fragments if id(f) not in old], list(old.values())


def _of_newest_times(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Without dumps that were written before the job of most others began.

    Such a dump was written, and speaks of nothing later than, ten minutes before most others have
    any record, or one minute where those begin with the job. What a rank of this life wrote so
    early shows nothing of the hang either, and a clock that is wrong by that much cannot be told
    from it: either way the rank counts as one without a dump, which names it less surely. Where
    most others have all their records, the date of the file, which copying renews, is not asked
    for: nobody had issued anything yet.
    """
    dumps = _dumps(fragments)
    if len(dumps) < 3:
        return list(fragments), []
    left, began = _written_before(dumps, _written, dumps)
    whole = [f for f in dumps if f.facts.oldest_record_id == 1]
    if not left and len(whole) * 2 > len(dumps):
        left, began = _written_before(dumps, _told, whole)
    stale = set(map(id, left))
    return [f for f in fragments if id(f) not in stale], [
        f"{f.source.path}: of an earlier attempt (the other dumps begin "
        f"{(began - _told(f)) / 60e9:.0f} minutes after it was written); ignored"
        for f in left
    ]


def _written_before(
    dumps: Sequence[Fragment], when: Callable[[Fragment], int], beginning: Sequence[Fragment]
) -> tuple[list[Fragment], int]:
    """The dumps that end long before most of ``beginning`` begin, and when those begin.

    Where their records go back to the start of the job, that is when it was started again.
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


def _of_the_end(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Without dumps after which others went on in a group with their ranks.

    So looks one that was asked for while the job ran, where the rank has not dumped again. Its
    clock must be that of the others: they issued what it issued last at the same time.
    """
    dumps = _dumps(fragments)
    end = max(map(_told, dumps), default=0)
    if not any(0 < dump.facts.observed_ns < end - _WENT_ON_NS for dump in dumps):
        return list(fragments), []  # whatever the groups are
    newest: dict[_Members, int] = defaultdict(int)
    for dump in dumps:
        for group, (_, moment) in _last_in_groups(dump).items():
            newest[group] = max(newest[group], moment)
    old: dict[int, tuple[Fragment, int]] = {}
    for dump in dumps:
        at = dump.facts.observed_ns
        listed = [(g.name, g.ranks) for g in dump.groups if dump.facts.rank in g.ranks]
        went_on = max((newest[group] for group in listed if group in newest), default=0)
        if _told(dump) < at < went_on - _WENT_ON_NS:
            old[id(dump)] = dump, went_on - at
    in_time = _issued_with_others([dump for dump, _ in old.values()], dumps)
    old = {key: found for key, found in old.items() if key in in_time}
    return [f for f in fragments if id(f) not in old], [
        f"{dump.source.path}: others went on for {more_ns / 1e9:.0f} s after it was written; "
        "ignored"
        for dump, more_ns in old.values()
    ]


def _issued_with_others(some: Sequence[Fragment], dumps: Sequence[Fragment]) -> set[int]:
    """Of ``some`` dumps those whose last operation in a group another one has of the same time."""
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
    """Per listed group the number of what a dump's rank issued there last, and when."""
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
    """How many ranks the default group has that a dump lists; 0 where it lists none."""
    sizes = [len(g.ranks) for g in dump.groups if g.desc == "default_pg" and g.listed]
    return max(sizes, default=0)


def _told(dump: Fragment) -> int:
    """The newest moment that a dump tells of: its date is the file's, and copies have another."""
    newest = int(dump.records["created_ns"].max()) if len(dump.records) else 0
    return newest or dump.facts.observed_ns


def _written(dump: Fragment) -> int:
    """When a dump was written, at the latest: by its date or by its newest entry."""
    return max(_told(dump), dump.facts.observed_ns)
