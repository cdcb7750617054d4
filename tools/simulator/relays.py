"""Who stands behind whom in a collective, as in NCCL: each member ends at a moment of its own.

A small all-reduce runs through a tree, anything that begins or ends at one member through a chain,
everything else through a ring. A member whose process ends, or is stopped, passes nothing on any
more; those behind it never end.
"""

from __future__ import annotations

import random
from math import prod

from tools.simulator.program import Op

TREE_ELEMENTS = 512
"""All-reduces of fewer elements run through a tree."""


def behind(op: Op, members: tuple[int, ...], broken: int, rng: random.Random) -> frozenset[int]:
    """The members that never end ``op`` because ``broken`` stopped passing data on in it.

    At least one; the moment at which it stopped is drawn.
    """
    order = list(members)
    at = order.index(broken)
    if op.root >= 0 or op.name in ("broadcast", "reduce"):
        first = order.index(op.root) if op.root in order else 0
        chain = order[first:] + order[:first]
        after = chain[chain.index(broken) + 1 :]
        return frozenset(after) or frozenset(order) - {broken}
    if op.name == "all_reduce" and sum(map(prod, op.input_sizes)) < TREE_ELEMENTS:
        below = _subtree(at, len(order)) - {at}
        # A leaf that had not sent its part up keeps everybody from ending.
        return frozenset(order[i] for i in below) or frozenset(order) - {broken}
    hops = rng.randrange(1, len(order))
    return frozenset(order[(at + hop) % len(order)] for hop in range(1, hops + 1))


def _subtree(root: int, size: int) -> set[int]:
    """Positions in a binary tree of ``size`` nodes at and below ``root``."""
    found, queue = set(), [root]
    while queue:
        node = queue.pop()
        if node < size:
            found.add(node)
            queue += [2 * node + 1, 2 * node + 2]
    return found
