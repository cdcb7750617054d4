"""Who has to be taken out of a circle of waiting for it to fall apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place


def places_at(context: Context, indexes: Iterable[int]) -> list[Place]:
    """The places of these indexes, in their order."""
    return [context.waits.places[i] for i in sorted(indexes)]


def few_together(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The fewest who wait at one place and without whom, taken together, the circle falls apart.

    They have all done the same that nobody else did. Nobody, where two places are equally few.
    """
    waiting = {tuple(r for r in p.waiters if r in ranks) for p in places}
    few = sorted((w for w in waiting if 1 < len(w) * 2 < len(ranks)), key=len)
    found = [w for w in few if breaks(places, ranks, *w)]
    alone = len(found) == 1 or (len(found) > 1 and len(found[0]) < len(found[1]))
    return tuple(sorted(found[0])) if alone else ()


def breaks(places: list[Place], ranks: set[int], *without: int) -> bool:
    """Whether the circle falls apart once those ``without`` whom it is looked at are taken out."""
    rest = ranks.difference(without)
    remaining = [
        (
            [r for r in p.waiters if r in rest],
            [r for r in p.targets if r in rest],
        )
        for p in places
    ]
    waiting: dict[int, list[int]] = defaultdict(list)
    for index, (waiters, _) in enumerate(remaining):
        for rank in waiters:
            waiting[rank].append(index)
    # Peel off everything that waits for nobody; what is left is a circle.
    open_targets = [len(set(targets)) for _, targets in remaining]
    into: dict[int, list[int]] = defaultdict(list)
    for index, (_, targets) in enumerate(remaining):
        for rank in set(targets):
            into[rank].append(index)
    left = {r: len(waiting.get(r, ())) for r in rest}
    queue = [r for r, n in left.items() if n == 0]
    free_places = [i for i, n in enumerate(open_targets) if n == 0]
    removed = 0
    while queue or free_places:
        while free_places:
            for rank in remaining[free_places.pop()][0]:
                left[rank] -= 1
                if left[rank] == 0:
                    queue.append(rank)
        if queue:
            rank = queue.pop()
            removed += 1
            for index in into.get(rank, ()):
                open_targets[index] -= 1
                if open_targets[index] == 0:
                    free_places.append(index)
    return removed == len(left)
