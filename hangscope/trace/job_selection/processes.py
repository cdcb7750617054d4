"""A process that has recorded something, whichever file tells of it.

All that decides which job, attempt and incarnation evidence belongs to is decided on these: of a
run's rings afterwards, and of those that are followed while the job runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hangscope.trace import formats
from hangscope.trace.model import NONE, Fragment, Records

_OVERLAP_NS = 3_000_000_000
"""A replaced process may show signs of life for this long after its successor began."""
_OTHER_CLOCK_NS = 60_000_000_000
"""The same for two hosts, whose clocks may differ."""

Key = tuple[str, int]
"""Machine and process id, which together are unique; one process may begin to record twice."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """It lived from .. to, as a rank, on a machine, started by a launcher, meeting others."""

    rank: int
    """As its evidence states it."""
    key: Key
    created_ns: int
    """When it began to record."""
    last_seen_ns: int
    """When it was last seen alive."""
    parent: int = 0
    """Process id of its launcher, on the same machine."""
    rendezvous: str = ""
    """Where it meets the other ranks; empty if unknown."""
    world_size: int = 0
    declared: bool = False
    """Whether the job itself has stated that rank."""
    alive: bool = False
    """Whether it is known to run now."""
    exited: bool = False
    """Whether it has exited cleanly."""
    initialized: bool = False
    """Whether ``init_process_group`` has returned."""
    reinitialized: bool = False
    """Whether it left an earlier world and has called ``init_process_group`` again."""

    @property
    def launcher(self) -> Key:
        """Its parent."""
        return self.key[0], self.parent

    def overlaps(self, other: RankProcess) -> bool:
        """Whether two processes ran at the same time."""
        if self.alive and other.alive:
            return True
        one, two = (self, other) if self.created_ns <= other.created_ns else (other, self)
        margin_ns = _OVERLAP_NS if one.key[0] == two.key[0] else _OTHER_CLOCK_NS
        return one.last_seen_ns - two.created_ns > margin_ns


def process_of(ring: Fragment) -> RankProcess:
    """The process that has written a ring."""
    facts = ring.facts
    calling = any(p.name == "init_process_group" for p in facts.phases[-1:])
    larger = any(len(g.ranks) > (facts.world_size or len(g.ranks)) for g in ring.groups)
    return RankProcess(
        facts.rank,
        facts.process,
        facts.started_ns,
        facts.observed_ns if facts.alive else last_seen_ns(ring),
        facts.parent_pid or 0,
        facts.rendezvous or "",
        facts.world_size or 0,
        bool(facts.declared),
        alive=bool(facts.alive),
        exited=facts.exit is not None and facts.exit.kind == "clean",
        initialized=bool(facts.initialized or facts.finalized),
        # It may also have belonged to a group larger than its current world.
        reinitialized=larger or bool(facts.finalized and calling),
    )


def last_seen_ns(fragment: Fragment) -> int:
    """The latest moment (ns since the epoch) that the fragment mentions."""
    facts = fragment.facts
    latest = facts.heartbeat_ns
    if facts.exit is not None:
        latest = max(latest, facts.exit.at_ns)
    if len(fragment.records):
        latest = max(latest, int(fragment.records["created_ns"].max()))
    if len(fragment.members):
        latest = max(latest, int(fragment.members["enqueued_ns"].max()))
    return latest or facts.observed_ns


def with_process_rank(fragment: Fragment, ranks: Mapping[Key, int | None]) -> Fragment | None:
    """A journal's fragment with the rank that the ring of its process has.

    None if that process is not a rank.
    """
    facts = fragment.facts
    if fragment.source.format != formats.JOURNAL or not facts.pid or facts.rank == NONE:
        return fragment
    rank = ranks.get(facts.process, facts.rank)
    return None if rank is None else with_rank(fragment, rank)


def with_rank(fragment: Fragment, rank: int) -> Fragment:
    """The fragment under another rank; its records are changed in place."""
    if fragment.facts.rank == rank:
        return fragment
    fragment.records["rank"] = rank
    return replace(
        fragment,
        facts=replace(fragment.facts, rank=rank),
        source=replace(fragment.source, rank=rank),
        members=_members_with_rank(fragment.members, rank),
        implied=None if fragment.implied is None else _members_with_rank(fragment.implied, rank),
    )


def _members_with_rank(members: Records, rank: int) -> Records:
    copy: Records = np.array(members)
    copy["rank"] = rank
    return copy
