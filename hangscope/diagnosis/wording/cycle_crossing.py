"""Of a circle with somebody to accuse: where the accused are, and where others wait for them."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place


class Crossing(NamedTuple):
    """The accused came to one place without having come to the other.

    Whether they would have come there later, in another order than the others, or have left it
    out, does not show: they never get further.
    """

    came_to: Place
    without: Place


def crossing(context: Context, cause: Cause) -> Crossing | None:
    """The two places of all the accused, the second one with the most who wait; None: no such."""
    accused = set(cause.culprits)
    places = [p for p in (context.waits.places[i] for i in cause.places) if not p.phase]
    came_to = [p for p in places if accused <= set(p.waiters)]
    without = [p for p in places if not p.p2p and accused <= set(p.absent)]
    if not accused or not came_to or not without:
        return None
    return Crossing(
        min(came_to, key=lambda p: p.began_ns), max(without, key=lambda p: len(p.waiters))
    )
