"""A dump that an earlier attempt left behind under the name of one that is missing now.

Restarted jobs write into the same folder under the same names: where a rank of the new attempt
leaves no dump, the old one of that rank is still there and tells of another life.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

import numpy as np

from hangscope.trace import formats
from hangscope.trace.model import NONE, Fragment, State
from hangscope.trace.operations import is_p2p

_APART_NS = 600 * 10**9
"""Dumps of one hang are written within minutes of each other."""

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members."""


def of_one_life(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The fragments without dumps of an earlier attempt, and a line for each that was left out.

    Such a dump was written, and speaks of nothing later than, ten minutes before most others have
    recorded what they did last; clocks alone prove nothing, so the others must also have finished
    collectives that need this rank and that it had not finished when its dump was written.
    """
    dumps = [f for f in fragments if f.source.format in formats.DUMPS and f.facts.rank != NONE]
    if len(dumps) < 3:
        return list(fragments), []
    times = {id(f): max(_newest_entry(f), f.facts.observed_ns) for f in dumps}
    usual = median_low(times.values())
    old = [f for f in dumps if 0 < times[id(f)] < usual - _APART_NS]
    old = [f for f in old if _newest_entry(f)]
    if not old:
        return list(fragments), []
    fresh = [f for f in dumps if times[id(f)] >= usual - _APART_NS]
    finished: dict[GroupKey, int] = {}
    first = [int(f.records["created_ns"].min()) for f in fresh if len(f.records)]
    for fragment in fresh:
        for group, (seq, _) in _reach(fragment).items():
            finished[group] = max(seq, finished.get(group, 0))
    stale = [
        f
        for f in old
        if first
        and times[id(f)] + _APART_NS < median_low(first)
        and any(finished.get(g, 0) >= due for g, (_, due) in _reach(f).items())
    ]
    left = set(map(id, stale))
    return [f for f in fragments if id(f) not in left], [
        f"{f.source.path}: of an earlier attempt (the other dumps begin "
        f"{(median_low(first) - times[id(f)]) / 60e9:.0f} minutes after it was written); left out"
        for f in stale
    ]


def _newest_entry(fragment: Fragment) -> int:
    return int(fragment.records["created_ns"].max()) if len(fragment.records) else 0


def _reach(fragment: Fragment) -> dict[GroupKey, tuple[int, int]]:
    """Per group of several ranks: the newest collective it finished, the oldest it did not."""
    records, members = fragment.records, fragment.members
    found: dict[GroupKey, tuple[int, int]] = {}
    pairs = np.array([is_p2p(s.op) for s in fragment.signatures], bool)
    own = ~pairs[records["signature"]] if len(records) else np.zeros(0, bool)
    done = records["state"] == State.COMPLETED
    for index, group in enumerate(fragment.groups):
        here = own & (records["group"] == index)
        stated = members[members["group"] == index]
        seqs = records["collective_seq"]
        finished = max(
            int(seqs[here & done].max(initial=0)), int(stated["completed"].max(initial=0))
        )
        issued = max(int(seqs[here].max(initial=0)), int(stated["enqueued"].max(initial=0)))
        unfinished = seqs[here & ~done & (seqs > finished)]
        if issued > 0 and len(group.ranks) != 1:
            found[group.name, group.ranks] = finished, int(unfinished.min(initial=issued + 1))
    return found
