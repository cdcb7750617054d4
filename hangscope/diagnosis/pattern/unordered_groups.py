"""Groups that ranks reach in varying orders, without harm.

A checkpoint written by a thread has its own group, and where its calls fall among those of the
training step differs between ranks. A rank in such a group is not late for another group, and
reaching the two in opposite orders is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place

_MOST_RANKS = 32
_MOST_GROUPS = 4
_LAST = 256
"""So many of a rank's newest calls of a group are compared."""


def order_is_arbitrary(context: Context, ranks: Iterable[int], places: Iterable[Place]) -> bool:
    """Whether some of ``ranks`` reached two of these groups in different orders before, and carried
    on.

    A rank that skipped a call stays behind; one that only issued it later catches up.
    """
    seqs = {p.group: p.seq for p in places if p.group >= 0 and not p.p2p}
    few = sorted(set(ranks))[:_MOST_RANKS]
    return any(
        _caught_up(_counts(context, few, one, other, seqs[other]))
        for one, other in permutations(sorted(seqs)[:_MOST_GROUPS], 2)
    )


def _counts(
    context: Context, ranks: Sequence[int], one: int, other: int, below: int
) -> list[dict[int, int]]:
    """Per rank in both groups: how many calls of ``one`` it had issued by each call of
    ``other``."""
    groups, numbers = context.trace.groups, context.trace.records["collective_seq"]
    found = []
    for rank in sorted({*ranks}.intersection(groups[one].ranks, groups[other].ranks)):
        low, high = context.bounds.get(rank, (0, 0))
        group = context.trace.records["group"][low:high]
        collective, seqs = context.front.collective[low:high], numbers[low:high]
        calls = np.maximum.accumulate(np.where(collective & (group == one), seqs, 0))
        rows = np.flatnonzero(collective & (group == other) & (seqs < below) & (calls > 0))[-_LAST:]
        found.append(dict(zip(seqs[rows].tolist(), calls[rows].tolist(), strict=True)))
    return found


def _caught_up(counts: Sequence[dict[int, int]]) -> bool:
    """Whether a rank differed from the first one and later did not."""
    if len(counts) < 2:
        return False
    first, *others = counts
    for its in others:
        common = sorted(first.keys() & its.keys())
        apart = [seq for seq in common if first[seq] != its[seq]]
        if apart and any(seq > apart[0] and first[seq] == its[seq] for seq in common):
            return True
    return False
