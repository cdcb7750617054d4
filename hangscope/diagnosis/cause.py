"""One reason, before it is put into words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import Stack

_OF_ASPECT = {
    "numel": Verdict.SHAPE_MISMATCH,
    "dtype": Verdict.DTYPE_MISMATCH,
    "reduce_op": Verdict.ARGUMENT_MISMATCH,
    "root": Verdict.ARGUMENT_MISMATCH,
    "device": Verdict.ARGUMENT_MISMATCH,
    "pair": Verdict.P2P_UNMATCHED,
    "tag": Verdict.P2P_UNMATCHED,
}


def verdict_of(aspect: str) -> Verdict:
    """What it is called where operations differ in that aspect; all others are of the order."""
    return _OF_ASPECT.get(aspect, Verdict.COLLECTIVE_MISMATCH)


class Parting(NamedTuple):
    """The first collective that the accused reached from another line than all others."""

    seq: int
    mine: str
    theirs: str


class Words(NamedTuple):
    """Sentences without a final full stop; what is empty follows from the verdict."""

    summary: str = ""
    """Who, what, where."""
    why: str = ""
    """The mechanism."""
    fix: str = ""
    """What to do."""


_OF_THE_VERDICT = Words()


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason, before it is put into words: a value, of which every step makes a new one."""

    verdict: Verdict
    culprits: tuple[int, ...]
    places: tuple[int, ...] = ()
    """Indices into `Waits.places`."""
    confidence: Confidence = Confidence.CERTAIN
    began_ns: int = 0
    victims: frozenset[int] = frozenset()
    sides: tuple[tuple[int, ...], ...] = ()
    mismatch: Mismatch | None = None
    odd_one: bool = False
    """The culprit issued what nobody else did, instead of failing to issue what all others did."""
    conflict: str = ""
    """How the sizes of an exchange contradict each other."""
    crossed: str = ""
    """How two halves of pairs miss each other."""
    words: Words = _OF_THE_VERDICT
    """Where they are not those of the verdict."""
    stack: Stack = ()
    """Where the culprit stands, where that is not to be seen in its main thread."""
    parted: Parting | None = None
    """Where the ranks came from different lines before it showed."""
    unknowns: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def involved(self) -> frozenset[int]:
        """The accused and their victims."""
        return self.victims.union(self.culprits)

    @property
    def is_certain(self) -> bool:
        """Whether nothing has been said against it so far."""
        return self.confidence is Confidence.CERTAIN

    def with_victims(self, ranks: Iterable[int]) -> Cause:
        """These ranks are victims as well, unless they are accused."""
        return replace(self, victims=self.victims.union(set(ranks).difference(self.culprits)))

    def accusing(self, culprits: tuple[int, ...], confidence: Confidence) -> Cause:
        """These instead: whom it has named so far is a victim."""
        victims = self.involved.difference(culprits)
        return replace(self, culprits=culprits, confidence=confidence, victims=victims)

    def with_unknown(self, what: str) -> Cause:
        """It is not known what, which leaves it as sure as it is."""
        return replace(self, unknowns=(*self.unknowns, what))

    def with_evidence(self, *lines: str) -> Cause:
        """More that was seen."""
        return replace(self, evidence=(*self.evidence, *lines))

    def with_first(self, places: Iterable[int]) -> Cause:
        """These places before its others."""
        return replace(self, places=tuple(dict.fromkeys((*places, *self.places))))

    def doubted(self, *reasons: str) -> Cause:
        """Something is not known: at most likely from here on; as it is, if there is no reason."""
        confidence = Confidence.LIKELY if reasons and self.is_certain else self.confidence
        return replace(self, confidence=confidence, unknowns=(*self.unknowns, *reasons))

    def naming_nobody(self, reason: str) -> Cause:
        """Whom it names may be innocent: something is wrong here, and that is all it says."""
        return replace(
            self,
            verdict=Verdict.INCONCLUSIVE,
            confidence=Confidence.LIKELY,
            culprits=(),
            victims=self.involved,
            unknowns=(*self.unknowns, reason),
        )

    def acquitting(self, ranks: Collection[int], reason: str) -> Cause:
        """Some whom it names may be innocent; the others stay accused."""
        rest = tuple(r for r in self.culprits if r not in ranks)
        return replace(self, culprits=rest, victims=self.victims.union(ranks)).doubted(reason)


def rank_list(ranks: tuple[int, ...]) -> str:
    """``rank 3`` or ``ranks 3, 5``, at most eight of them."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def began(context: Context, places: Iterable[int]) -> int:
    """When (ns) anybody began to wait at one of these places; 0 where that is not known."""
    known = [context.waits.places[i].began_ns for i in places if context.waits.places[i].began_ns]
    return min(known, default=0)


def shown_place(context: Context, cause: Cause) -> Place | None:
    """The place that a report speaks of: where a culprit is due and the waiting began first."""
    places = [context.waits.places[i] for i in cause.places]
    if not places:
        return None
    if cause.odd_one:
        places = [p for p in places if set(p.waiters) & set(cause.culprits)] or places
    culprits = set(cause.culprits)
    if cause.verdict is Verdict.DEADLOCK_CYCLE and any(map(is_lock, places)):
        return next(place for place in places if is_lock(place))

    def rank_of(place: Place) -> tuple[int, bool, int, int]:
        due = len(culprits.intersection(place.targets))
        if cause.verdict is Verdict.P2P_UNMATCHED and not place.p2p:
            due = -1
        return (-due, place.p2p, place.began_ns or 1 << 62, -len(place.waiters))

    return min(places, key=rank_of)
