"""A cause: one reason for the hang, before it is put into words."""

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
    """The verdict for operations that differ in this aspect; unlisted aspects mean a different
    order."""
    return _OF_ASPECT.get(aspect, Verdict.COLLECTIVE_MISMATCH)


class Divergence(NamedTuple):
    """The first collective that the accused reached from a different line than all others."""

    seq: int
    mine: str
    theirs: str


class Words(NamedTuple):
    """Sentences without a final full stop. An empty one is derived from the verdict."""

    summary: str = ""
    """Who, what, where."""
    why: str = ""
    """The mechanism."""
    fix: str = ""
    """What to do."""


_OF_THE_VERDICT = Words()


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for the hang, before it is put into words. Immutable: every step makes a new
    one."""

    verdict: Verdict
    culprits: tuple[int, ...]
    places: tuple[int, ...] = ()
    """Indices into `Waits.places`."""
    confidence: Confidence = Confidence.CERTAIN
    began_ns: int = 0
    victims: frozenset[int] = frozenset()
    sides: tuple[tuple[int, ...], ...] = ()
    mismatch: Mismatch | None = None
    issued_extra: bool = False
    """The culprit issued something that nobody else did, rather than leaving out what all others
    did."""
    conflict: str = ""
    """How the sizes of an exchange contradict each other."""
    crossed: str = ""
    """How two halves of send/receive pairs miss each other."""
    words: Words = _OF_THE_VERDICT
    """Set where the verdict's standard sentences do not fit."""
    stack: Stack = ()
    """Where the culprit is, if its main thread does not show that."""
    diverged: Divergence | None = None
    """The earlier collective that the ranks reached from different lines, if there is one."""
    unknowns: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def involved(self) -> frozenset[int]:
        return self.victims.union(self.culprits)

    @property
    def is_certain(self) -> bool:
        """Whether nothing has cast doubt on it so far."""
        return self.confidence is Confidence.CERTAIN

    def with_victims(self, ranks: Iterable[int]) -> Cause:
        """Add victims; ranks that are accused stay accused."""
        return replace(self, victims=self.victims.union(set(ranks).difference(self.culprits)))

    def accusing(self, culprits: tuple[int, ...], confidence: Confidence) -> Cause:
        """Accuse these ranks instead; those accused so far become victims."""
        victims = self.involved.difference(culprits)
        return replace(self, culprits=culprits, confidence=confidence, victims=victims)

    def with_unknown(self, what: str) -> Cause:
        """Note something unknown without lowering the confidence."""
        return replace(self, unknowns=(*self.unknowns, what))

    def with_evidence(self, *lines: str) -> Cause:
        """Add lines of evidence."""
        return replace(self, evidence=(*self.evidence, *lines))

    def with_first(self, places: Iterable[int]) -> Cause:
        """Put these places first."""
        return replace(self, places=tuple(dict.fromkeys((*places, *self.places))))

    def doubted(self, *reasons: str) -> Cause:
        """Note what is unknown and cap the confidence at likely. Without a reason, no change."""
        confidence = Confidence.LIKELY if reasons and self.is_certain else self.confidence
        return replace(self, confidence=confidence, unknowns=(*self.unknowns, *reasons))

    def naming_nobody(self, reason: str) -> Cause:
        """Accuse nobody: the ranks named so far may be innocent, but something is wrong here."""
        return replace(
            self,
            verdict=Verdict.INCONCLUSIVE,
            confidence=Confidence.LIKELY,
            culprits=(),
            victims=self.involved,
            unknowns=(*self.unknowns, reason),
        )

    def acquitting(self, ranks: Collection[int], reason: str) -> Cause:
        """Stop accusing some of the ranks, which may be innocent; the others stay accused."""
        rest = tuple(r for r in self.culprits if r not in ranks)
        return replace(self, culprits=rest, victims=self.victims.union(ranks)).doubted(reason)


def began(context: Context, places: Iterable[int]) -> int:
    """When (ns) the first rank began to wait at one of these places; 0 if unknown."""
    known = (place.began_ns for place in context.waits.at(places) if place.began_ns)
    return min(known, default=0)


def shown_place(context: Context, cause: Cause) -> Place | None:
    """The place that a report shows: one where a culprit is due, preferably where waiting began
    first."""
    places = context.waits.at(cause.places)
    if not places:
        return None
    if cause.issued_extra:
        places = [p for p in places if set(p.waiters) & set(cause.culprits)] or places
    culprits = set(cause.culprits)
    if cause.verdict is Verdict.DEADLOCK_CYCLE and any(map(is_lock, places)):
        return next(place for place in places if is_lock(place))

    def rank_of(place: Place) -> tuple[int, bool, bool, int, int]:
        due = len(culprits.intersection(place.targets))
        if cause.verdict is Verdict.P2P_UNMATCHED and not place.p2p:
            due = -1
        came = culprits.isdisjoint(place.absent)
        wanted = (cause.verdict is Verdict.STUCK_COLLECTIVE) == came
        return (-due, not wanted, place.p2p, place.began_ns or 1 << 62, -len(place.waiters))

    return min(places, key=rank_of)
