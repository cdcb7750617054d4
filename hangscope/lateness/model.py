"""What the analysis of lateness returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.trace.facts import Stack


@dataclass(frozen=True, slots=True)
class CallSite:
    """A place in the program from which a collective is issued."""

    op: str
    group: str
    """The group's label."""
    stack: Stack


@dataclass(frozen=True, slots=True)
class RankLateness:
    """One rank's share of the waiting."""

    rank: int
    host: str
    collectives: int
    """Collectives in which its arrival could be compared with that of all other members."""
    times_last: int
    """Collectives in which it arrived last."""
    waited_s: float
    """How long it waited for members that came later; overlapping waits count once."""
    made_wait_s: float
    """How long all other members waited for it alone; overlapping waits count once."""


def costliest(ranks: Iterable[RankLateness]) -> list[RankLateness]:
    """Whom all others waited for longest comes first: the one order of every table and picture."""
    return sorted(ranks, key=lambda one: (-one.made_wait_s, one.rank))


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks that make the others wait more often, or longer, than chance explains."""

    kind: str
    """``rank``, ``host`` or ``position`` (the same index in all groups of one mesh dimension)."""
    name: str
    """The host, or the dimension and index (``tp 3``); empty for single ranks."""
    ranks: tuple[int, ...]
    lost_s: float
    """How long everybody else waited for these ranks alone."""
    share: float
    """``lost_s`` as a share of the observed time, 0 to 1."""
    times: int
    """Separate waits that it caused."""
    of: int
    """Separate waits in the groups it belongs to."""
    typical_s: float
    """Length of the waits in which half of the time was lost (weighted median)."""
    pattern: str
    """``always``, ``every N`` (of the meetings of the costliest group) or ``sometimes``."""
    score: float
    """Standard deviations above what equal ranks would lose by chance."""
    site: CallSite
    """Where it arrived late, weighted by the time lost."""
    before: CallSite | None
    """The operation it had issued before; its late work lies between the two."""


@dataclass(frozen=True, slots=True)
class SiteCost:
    """Waiting in the collectives of one call site."""

    site: CallSite
    collectives: int
    lost_s: float
    """Sum over its collectives of the time between the last arrival and the one before it."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How the observed time was lost to late arrivals in collectives."""

    span_s: float
    """From the first to the last compared arrival."""
    collectives: int
    """Collectives of which every member's arrival is recorded."""
    ranks: tuple[RankLateness, ...]
    stragglers: tuple[Straggler, ...]
    """The costliest first; none overlaps another's ranks."""
    sites: tuple[SiteCost, ...]
    """The costliest first."""
    host_times_only: bool
    """Device operations were enqueued at these times; when the devices began is not recorded."""

    @property
    def waited_share(self) -> float:
        """The share of the observed time that an average rank spent waiting for later ones."""
        if not self.ranks or self.span_s <= 0:
            return 0.0
        return sum(rank.waited_s for rank in self.ranks) / len(self.ranks) / self.span_s
