"""For a cycle with an accused rank: where that rank is, and where others wait for it."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place


class Crossing(NamedTuple):
    """The accused reached one place without having reached the other.

    It does not show whether they would have reached the other later, in a different order than the
    others, or skipped it: they never get further.
    """

    came_to: Place
    without: Place


def crossing(context: Context, cause: Cause) -> Crossing | None:
    """Two places shared by all the accused, the second one with the most waiters; None if there are
    none."""
    accused = set(cause.culprits)
    places = [p for p in context.waits.at(cause.places) if not p.phase]
    came_to = [p for p in places if accused <= set(p.waiters)]
    without = [p for p in places if not p.p2p and accused <= set(p.absent)]
    if not accused or not came_to or not without:
        return None
    return Crossing(
        min(came_to, key=lambda p: p.began_ns), max(without, key=lambda p: len(p.waiters))
    )
