"""A dump that an earlier attempt left behind under the name of one that is missing now.

Restarted jobs write into the same folder under the same names: where a rank of the new attempt
leaves no dump, the old one of that rank is still there and tells of another life.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from hangscope.trace import formats
from hangscope.trace.model import NONE, Fragment

_APART_NS = 600 * 10**9
"""Dumps of one hang are written within minutes of each other."""


def of_one_life(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The fragments without dumps of an earlier attempt, and a line for each that was left out.

    Such a dump was written, and speaks of nothing later than, ten minutes before most others have
    any record. What a rank of this life wrote so early shows nothing of the hang either, and a
    clock that is wrong by that much cannot be told from it: either way the rank counts as one
    without a dump, which names it less surely.
    """
    dumps = [f for f in fragments if f.source.format in formats.DUMPS and f.facts.rank != NONE]
    if len(dumps) < 3:
        return list(fragments), []
    times = {id(f): max(_newest_entry(f), f.facts.observed_ns) for f in dumps}
    usual = median_low(times.values())
    old = [f for f in dumps if 0 < times[id(f)] < usual - _APART_NS]
    left = set(map(id, old))
    first = [
        int(f.records["created_ns"].min()) for f in dumps if id(f) not in left and len(f.records)
    ]
    if not old or not first:
        return list(fragments), []
    began = median_low(first)
    stale = [f for f in old if times[id(f)] < began - _APART_NS]
    left = set(map(id, stale))
    return [f for f in fragments if id(f) not in left], [
        f"{f.source.path}: of an earlier attempt (the other dumps begin "
        f"{(began - times[id(f)]) / 60e9:.0f} minutes after it was written); left out"
        for f in stale
    ]


def _newest_entry(fragment: Fragment) -> int:
    return int(fragment.records["created_ns"].max()) if len(fragment.records) else 0
