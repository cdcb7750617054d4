"""Which groups are of one kind, such as the tensor-parallel groups of a mesh."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hangscope.diagnosis.records.agreement import family
from hangscope.trace.model import Trace

_NO_DESCRIPTION = ("", "undefined")
_USUAL_SHARE = 0.3


def kinds_of_groups(trace: Trace) -> list[object]:
    """Per group its description or, without one, what identifies its mesh dimension.

    That is the relative position of its members and its most frequent operations: pipeline p2p and
    the gradients of shared embeddings use the same ranks in different groups.
    """
    if all(g.desc not in _NO_DESCRIPTION for g in trace.groups):
        return [g.desc for g in trace.groups]
    usual = _usual_operations(trace)
    return [
        g.desc
        if g.desc not in _NO_DESCRIPTION
        else (tuple(r - g.ranks[0] for r in g.ranks), usual.get(i))
        for i, g in enumerate(trace.groups)
    ]


def _usual_operations(trace: Trace) -> dict[int, frozenset[str]]:
    """Per group the operations that make up most of its records."""
    records = trace.records
    if not len(records):
        return {}
    width = max(len(trace.signatures), 1)
    key = records["group"].astype(np.int64) * width + records["signature"]
    votes: dict[int, Counter[str]] = {}
    for value, count in zip(*np.unique(key, return_counts=True), strict=True):
        group, signature = divmod(int(value), width)
        op = family(trace.signatures[signature].op)
        votes.setdefault(group, Counter())[op] += int(count)
    return {
        group: frozenset(op for op, n in vote.items() if n >= _USUAL_SHARE * vote.total())
        for group, vote in votes.items()
    }
