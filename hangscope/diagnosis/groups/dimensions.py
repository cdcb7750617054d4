"""Which groups are of one kind, such as the tensor-parallel groups of a mesh."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from hangscope.diagnosis.records.agreement import family, group_size
from hangscope.diagnosis.records.frontier import index_of
from hangscope.trace.model import Trace

UNINFORMATIVE = ("", "default_pg", "undefined", "unknown group")
"""Descriptions that do not say what a group is for."""
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
    votes: dict[int, Counter[str]] = {}
    for group, issued in issued_in_groups(trace).items():
        vote = votes.setdefault(group, Counter())
        for signature, count in issued.items():
            vote[family(trace.signatures[signature].op)] += count
    return {
        group: frozenset(op for op, n in vote.items() if n >= _USUAL_SHARE * vote.total())
        for group, vote in votes.items()
    }


def issued_in_groups(trace: Trace) -> dict[int, dict[int, int]]:
    """Per group how often each signature was issued in it."""
    signatures, width = trace.records["signature"], max(len(trace.signatures), 1)
    known = signatures >= 0
    of_group = trace.records["group"][known].astype(np.int64)
    keys, place = index_of(of_group * width + signatures[known])
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for key, count in zip(keys.tolist(), np.bincount(place, minlength=len(keys)), strict=True):
        group, signature = divmod(key, width)
        found[group][signature] = int(count)
    return found


def sizes_of_groups(trace: Trace) -> dict[int, int]:
    """Group sizes implied by operations: input and output sizes differ by that factor."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for group, issued in issued_in_groups(trace).items():
        for signature, count in issued.items():
            size = group_size(trace.signatures[signature])
            if size and size > 1:
                votes[group][size] += count
    return {group: vote.most_common(1)[0][0] for group, vote in votes.items()}
