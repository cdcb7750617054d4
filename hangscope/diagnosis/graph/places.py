"""The wait-for graph as data: ranks wait at places, and places wait for ranks.

A place is one collective (group and sequence number) or one half of a send/receive pair. Going
through places keeps the graph linear in ranks: 9,999 ranks that wait for one rank are 9,999 edges
into one place and one edge out of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, RankFacts

INIT = "init_process_group"
"""The phase in which the ranks of a job find each other."""
NEW_GROUP = "new_group"
"""The phase in which ranks create a smaller group."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks wait: a collective, one half of a pair, a phase, a key or a lock.

    ``group`` is an index into `Trace.groups` and ``seq`` a sequence number there, both -1 if there
    is no group. The lists hold global ranks: ``waiters`` have arrived and wait, ``absent`` are
    known not to have arrived, ``unknown`` left no evidence, ``behind`` have issued it but are held
    up by something older, ``done`` have finished it.
    """

    group: int
    seq: int
    waiters: tuple[int, ...]
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    row: int = NONE
    """Row of one of the waiters, or -1."""
    began_ns: int = 0
    """When the first waiter arrived."""
    full_ns: int = 0
    """When the last waiter arrived; 0: unknown or irrelevant."""
    p2p: bool = False
    weak: bool = False
    """Explains a rank's waiting only if nothing else does: a fire-and-forget send."""
    half: Half | None = None
    members: tuple[int, ...] = ()
    blind: bool = False
    """Not recorded whom it waits for (a receive from any source, a group without a member list)."""
    counted: bool = False
    """Only the backend's own counter shows that it is unfinished."""
    not_begun: Mapping[int, int] = field(default_factory=dict)
    """Of ``behind``, ranks with nothing older unfinished whose device has not started the operation
    although they issued it: rank -> row."""
    phase: str = ""
    """A phase that all ranks must enter together (``init_process_group``); it has no group."""

    @property
    def targets(self) -> tuple[int, ...]:
        """Whom it waits for: absent ranks before those that are merely late on their device."""
        return self.absent or self.behind or self.unknown

    @property
    def stands_since_ns(self) -> int:
        """Since when it has been overdue. If nobody is missing, the operation itself takes too
        long, and it started with the last arrival."""
        return self.began_ns if self.targets else self.full_ns or self.began_ns

    def forgotten(self) -> Place:
        """The place without waiters: its index stays valid, and it explains nothing."""
        return replace(self, waiters=(), absent=(), unknown=(), behind=())


@dataclass(slots=True)
class Waits:
    """The graph. ``places_of`` lists the places where a rank waits, ``device`` the ranks whose
    oldest unfinished collective has completed on a peer.

    Only its own methods change it: waits that do not count are dropped, and places that other
    evidence reveals are added.
    """

    places: list[Place]
    places_of: dict[int, list[int]]
    device: dict[int, int]
    """rank -> index of the place"""
    cut: set[int] = field(default_factory=set)
    """Ranks whose own waiting explains nothing: dead, stopped, or stuck on their device."""
    _waited_for: dict[int, list[int]] | None = None

    def out(self, rank: int) -> list[int]:
        """Places where a rank waits, unless its waiting explains nothing."""
        return [] if rank in self.cut else self.places_of.get(rank, [])

    def at(self, indices: Iterable[int]) -> list[Place]:
        """The places with these indices."""
        return [self.places[index] for index in indices]

    def of(self, rank: int) -> list[Place]:
        """All places where a rank waits."""
        return self.at(self.places_of.get(rank, ()))

    def waiters_at(self, indices: Iterable[int]) -> set[int]:
        """The ranks that wait at any of these places."""
        return {rank for place in self.at(indices) for rank in place.waiters}

    def add(self, place: Place) -> int:
        """Add a place that no rank waits at yet; returns its index."""
        self.places.append(place)
        self._waited_for = None
        return len(self.places) - 1

    def cut_off(self, ranks: Iterable[int]) -> None:
        """From now on, the waiting of these ranks explains nothing."""
        self.cut = self.cut.union(ranks)

    def restore(self, ranks: Iterable[int]) -> None:
        """The waiting of these ranks counts again."""
        self.cut = self.cut.difference(ranks)

    def narrow(self, index: int, place: Place) -> None:
        """Replace a place with one that waits for fewer ranks."""
        self.places[index] = place
        self._waited_for = None

    def forget_all(self) -> None:
        """Nobody waits: drop all places."""
        self.places, self.places_of, self.device = [], {}, {}
        self._waited_for = None

    def keep_only(self, kept: Container[int]) -> None:
        """Drop the waits at all places but these indices; indices stay valid."""
        self.places = [p if i in kept else p.forgotten() for i, p in enumerate(self.places)]
        for rank, indexes in self.places_of.items():
            self.places_of[rank] = [i for i in indexes if i in kept]
        self.device = {rank: i for rank, i in self.device.items() if i in kept}
        self._waited_for = None

    def waited_for(self) -> dict[int, list[int]]:
        """rank -> indices of the places that wait for it."""
        if self._waited_for is None:
            found: dict[int, list[int]] = defaultdict(list)
            for index, place in enumerate(self.places):
                for rank in place.targets:
                    found[rank].append(index)
            self._waited_for = dict(found)
        return self._waited_for

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
    """The detail of a phase, if it is the last one that the rank entered."""
    if not facts.phases or facts.phases[-1].name != phase:
        return None
    return facts.phases[-1].detail
