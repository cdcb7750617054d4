"""The wait-for graph as data: ranks wait at places, and a place waits for ranks.

A place is one collective (group and sequence number) or one half of a send/recv pair. Going
through places keeps the graph linear in ranks: 9,999 ranks that wait for one are 9,999 edges into
one place and one edge out of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, RankFacts

INIT = "init_process_group"
"""The phase in which ranks get to know each other."""
NEW_GROUP = "new_group"
"""That in which they make a smaller group."""


@dataclass(slots=True)
class Place:
    """Where ranks wait.

    ``absent`` are known not to have come, ``unknown`` left no evidence, ``behind`` have come but
    are held up by something older, ``done`` have finished it.
    """

    group: int
    seq: int
    waiters: list[int]
    absent: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    row: int = NONE
    began_ns: int = 0
    """When the first of those who wait came."""
    full_ns: int = 0
    """When the last of them came; 0: not known, or no matter."""
    p2p: bool = False
    weak: bool = False
    half: Half | None = None
    members: tuple[int, ...] = ()
    blind: bool = False
    """Whom it waits for is not recorded (a receive from any source, a group without a list)."""
    counted: bool = False
    """Only a backend's own counter tells that it has not finished."""
    not_begun: dict[int, int] = field(default_factory=dict)
    """Of ``behind`` those with nothing older whose device has not begun it, though they have issued
    it: with which record."""
    phase: str = ""
    """A phase all ranks must enter together (``init_process_group``); then there is no group."""

    @property
    def targets(self) -> list[int]:
        """Whom it waits for: the absent before those who are merely late on the device."""
        return self.absent or self.behind or self.unknown

    @property
    def stands_since_ns(self) -> int:
        """Since when it should have gone on, or somebody have come: where nobody is missing it is
        the operation itself that takes long, and that began with the last to come."""
        return self.began_ns if self.targets else self.full_ns or self.began_ns


@dataclass(slots=True)
class Waits:
    """The graph. ``places_of`` lists the places where a rank waits, ``device`` the ranks whose
    oldest unfinished collective has completed on a peer."""

    places: list[Place]
    places_of: dict[int, list[int]]
    device: dict[int, int]
    """rank -> index of the place"""
    cut: set[int] = field(default_factory=set)
    """Ranks whose own waiting explains nothing: dead, stopped, or stuck on the device."""

    def out(self, rank: int) -> list[int]:
        """Places a rank waits at, unless its waiting explains nothing."""
        return [] if rank in self.cut else self.places_of.get(rank, [])

    def waiting(self, rank: int) -> bool:
        """Whether the rank waits for anybody."""
        return bool(self.out(rank))

    def waited_for(self) -> dict[int, list[int]]:
        """rank -> places that wait for it."""
        result: dict[int, list[int]] = defaultdict(list)
        for index, place in enumerate(self.places):
            for rank in place.targets:
                result[rank].append(index)
        return result

    def reachers(self, ranks: Iterable[int], places: Iterable[int] = ()) -> set[int]:
        """All ranks whose waiting leads to one of ``ranks`` or ``places``."""
        into = self.waited_for()
        seen: set[int] = set()
        queue = list(ranks)
        visited_places: set[int] = set(places)
        pending_places = list(visited_places)
        visited = set(queue)
        while queue or pending_places:
            if pending_places:
                index = pending_places.pop()
                for waiter in self.places[index].waiters:
                    if waiter not in self.cut and waiter not in visited:
                        visited.add(waiter)
                        seen.add(waiter)
                        queue.append(waiter)
                continue
            rank = queue.pop()
            for index in into.get(rank, ()):
                if index not in visited_places:
                    visited_places.add(index)
                    pending_places.append(index)
        return seen


def detail_in(facts: RankFacts, phase: str) -> str | None:
    """What is told of a phase, where it is the one that the rank entered last."""
    if not facts.phases or facts.phases[-1].name != phase:
        return None
    return facts.phases[-1].detail
