"""The wait-for graph as data: ranks wait at places, and a place waits for ranks.

A place is one collective (group and sequence number) or one half of a send/recv pair. Going
through places keeps the graph linear in ranks: 9,999 ranks that wait for one are 9,999 edges into
one place and one edge out of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, RankFacts

INIT = "init_process_group"
"""The phase in which ranks get to know each other."""
NEW_GROUP = "new_group"
"""That in which they make a smaller group."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks wait: a collective, one half of a pair, a phase, a key or a lock.

    ``group`` is an index into `Trace.groups` and ``seq`` a sequence number there, both -1 where
    there is no group. The lists are of global ranks: ``waiters`` have come and wait, ``absent`` are
    known not to have come, ``unknown`` left no evidence, ``behind`` have come but are held up by
    something older, ``done`` have finished it.
    """

    group: int
    seq: int
    waiters: tuple[int, ...]
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    row: int = NONE
    """The record of one of those who wait there, or -1."""
    began_ns: int = 0
    """When the first of those who wait came."""
    full_ns: int = 0
    """When the last of them came; 0: not known, or no matter."""
    p2p: bool = False
    weak: bool = False
    """It explains a rank's waiting only where nothing else does: a send that is fired and
    forgotten."""
    half: Half | None = None
    members: tuple[int, ...] = ()
    blind: bool = False
    """Whom it waits for is not recorded (a receive from any source, a group without a list)."""
    counted: bool = False
    """Only a backend's own counter tells that it has not finished."""
    not_begun: Mapping[int, int] = field(default_factory=dict)
    """Of ``behind`` those with nothing older whose device has not begun it, though they have issued
    it: with which record."""
    phase: str = ""
    """A phase all ranks must enter together (``init_process_group``); then there is no group."""

    @property
    def targets(self) -> tuple[int, ...]:
        """Whom it waits for: the absent before those who are merely late on the device."""
        return self.absent or self.behind or self.unknown

    @property
    def stands_since_ns(self) -> int:
        """Since when it should have gone on, or somebody have come: where nobody is missing it is
        the operation itself that takes long, and that began with the last to come."""
        return self.began_ns if self.targets else self.full_ns or self.began_ns

    def forgotten(self) -> Place:
        """The place with nobody who waits there: its index stays valid, and it explains nothing."""
        return replace(self, waiters=(), absent=(), unknown=(), behind=())


@dataclass(slots=True)
class Waits:
    """The graph. ``places_of`` lists the places where a rank waits, ``device`` the ranks whose
    oldest unfinished collective has completed on a peer.

    It is changed by its own methods only: what does not count as waiting is forgotten, and places
    are added that other evidence tells of.
    """

    places: list[Place]
    places_of: dict[int, list[int]]
    device: dict[int, int]
    """rank -> index of the place"""
    cut: set[int] = field(default_factory=set)
    """Ranks whose own waiting explains nothing: dead, stopped, or stuck on the device."""
    _waited_for: dict[int, list[int]] | None = None

    def out(self, rank: int) -> list[int]:
        """Places a rank waits at, unless its waiting explains nothing."""
        return [] if rank in self.cut else self.places_of.get(rank, [])

    def waiting(self, rank: int) -> bool:
        """Whether the rank waits for anybody."""
        return bool(self.out(rank))

    def add(self, place: Place) -> int:
        """One more place, which no rank's waiting leads to; gives its index."""
        self.places.append(place)
        self._waited_for = None
        return len(self.places) - 1

    def cut_off(self, ranks: Iterable[int]) -> None:
        """The waiting of these explains nothing from here on."""
        self.cut = self.cut.union(ranks)

    def restore(self, ranks: Iterable[int]) -> None:
        """The waiting of these explains something after all."""
        self.cut = self.cut.difference(ranks)

    def narrow(self, index: int, place: Place) -> None:
        """Let a place wait for fewer."""
        self.places[index] = place
        self._waited_for = None

    def forget_all(self) -> None:
        """Nobody waits: the places go as well."""
        self.places, self.places_of, self.device = [], {}, {}
        self._waited_for = None

    def keep_only(self, kept: Container[int]) -> None:
        """Forget the waiting at all places but these, given by index; the indices stay valid."""
        self.places = [p if i in kept else p.forgotten() for i, p in enumerate(self.places)]
        for rank, indexes in self.places_of.items():
            self.places_of[rank] = [i for i in indexes if i in kept]
        self.device = {rank: i for rank, i in self.device.items() if i in kept}
        self._waited_for = None

    def waited_for(self) -> dict[int, list[int]]:
        """rank -> places that wait for it."""
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
    """What is told of a phase, where it is the one that the rank entered last."""
    if not facts.phases or facts.phases[-1].name != phase:
        return None
    return facts.phases[-1].detail
