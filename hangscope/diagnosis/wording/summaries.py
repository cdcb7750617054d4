"""Summary and mechanism of a cause, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.dead_threads import dead_thread, died_of
from hangscope.diagnosis.graph.lock_places import is_lock, lock_in_words
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.store_places import PREFIX as STORE
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.instead import instead
from hangscope.diagnosis.wording.phrases import (
    capital,
    describe,
    does,
    label_of,
    members_of,
    rank_s,
    subject,
    title_of,
    verb,
    waiters_of,
)
from hangscope.diagnosis.wording.summaries_of_ends import crashed, exited, lost, perhaps_not_first
from hangscope.diagnosis.wording.summaries_of_standstills import stuck
from hangscope.trace.facts import LEFT


def sentences(context: Context, cause: Cause, place: Place | None) -> Words:
    """Summary and mechanism; ``place`` is the one they are about."""
    if cause.words.summary:
        return cause.words
    if cause.mismatch is not None:
        return _mismatch(context, cause)
    if cause.verdict is Verdict.RANK_CRASHED:
        return crashed(context, cause, place)
    if place is None:
        quiet = cause.verdict is Verdict.QUIESCENT
        return Words() if quiet else perhaps_not_first(context, cause)
    if cause.crossed or cause.conflict:
        return _contradiction(context, cause, place)
    if cause.issued_extra:
        return _issued_extra(context, cause, place)
    if place.phase.startswith(STORE) and cause.culprits:
        return _key_not_set(cause, place)
    words = _OF_VERDICT.get(cause.verdict)
    return (
        words(context, cause, place)
        if words
        else Words(f"{subject(cause.culprits)}: {cause.verdict.value}")
    )


def _contradiction(context: Context, cause: Cause, place: Place) -> Words:
    """Halves that miss each other, differing calls of ``new_group``, an exchange that cannot be."""
    if cause.crossed:
        return Words(
            cause.crossed, "the two halves that were issued do not match, so neither completes"
        )
    if cause.verdict is Verdict.COLLECTIVE_MISMATCH:
        return Words(
            capital(cause.conflict),
            "every rank must create every group, in the same order: members are matched by the "
            "number of the call",
        )
    what = {Verdict.DTYPE_MISMATCH: "dtypes", Verdict.P2P_UNMATCHED: "tags"}
    differing = what.get(cause.verdict, "sizes")
    title = title_of(context, place)
    return Words(
        f"The {differing} of {title}{members_of(context, place)} contradict each other: "
        f"{cause.conflict}",
        f"the exchange cannot complete with the {differing} that its members passed",
    )


def _issued_extra(context: Context, cause: Cause, place: Place) -> Words:
    who = subject(cause.culprits)
    if place.phase:
        return Words(
            f"{who} alone {verb(cause.culprits, 'is')} in {place.phase}, which the others are past",
            f"{does(cause.sides[0], 'waits')} for nobody and never {verb(cause.sides[0], 'calls')} "
            f"{place.phase} again",
        )
    return Words(
        f"{who} alone issued {title_of(context, place)}{members_of(context, place)}",
        f"{does(cause.sides[0], 'waits')} for nobody and never {verb(cause.sides[0], 'issues')} it",
    )


def _key_not_set(cause: Cause, place: Place) -> Words:
    waiting = f"{waiters_of(place)} {verb(place.waiters, 'waits')}"
    return Words(
        f"{subject(cause.culprits)} {verb(cause.culprits, 'has')} not set what {waiting} for in "
        f"{place.phase}",
        f"{waiting} in the store for a key, and only {does(cause.culprits, 'is')} elsewhere",
    )


def _missing(context: Context, cause: Cause, place: Place) -> Words:
    accused, title, waiters = subject(cause.culprits), title_of(context, place), waiters_of(place)
    instead = _instead(context, cause, place)
    if is_lock(place):
        return Words(
            f"{accused} {verb(cause.culprits, 'holds')} {lock_in_words(place)} that "
            f"{waiters} {verb(place.waiters, 'waits')} for",
            f"{instead}; {waiters} cannot go on until it is released",
        )
    if place.phase:
        return Words(
            f"{accused} never reached {place.phase}",
            f"{waiters} {verb(place.waiters, 'is')} inside {place.phase} and waiting for "
            f"{rank_s(cause.culprits)}",
        )
    dead = dead_thread(context, cause.culprits[0], place.group)
    if dead is not None:
        return Words(
            f"{accused} never joined {title}{members_of(context, place)}: its {died_of(dead)}",
            f"that thread issued the operations of group {label_of(context, place.group)} on "
            f"rank {cause.culprits[0]}, and nothing else issues them",
        )
    if place.p2p:
        return Words(f"{accused} never reached {title}", f"{instead}; {waiters} waits for its half")
    return Words(
        f"{accused} never joined {title}{members_of(context, place)}",
        f"{instead}; {waiters} went on to #{place.seq} without {verb(cause.culprits, 'it')}",
    )


def _instead(context: Context, cause: Cause, place: Place) -> str:
    """What the missing ranks did, or do, instead of arriving; the first of them stands for all."""
    first, has = cause.culprits[0], does(cause.culprits, "has")
    found = instead(context, first, context.stack_in(first, place.group))
    if all(_has_left(context, r) for r in cause.culprits):
        left = f"{has} already called destroy_process_group"
        return f"{left} and {verb(cause.culprits, 'is')} {found.doing}" if found.doing else left
    if all(has_left_group(context.trace, r, place.group) for r in cause.culprits):
        return f"{has} already left this group (destroy_process_group)"
    if found.doing:
        still = "still " if found.goes_on else ""
        return f"{does(cause.culprits, 'is')} {still}{found.doing}"
    last, _ = context.last_in_group(first, place.group)
    after = f" after #{last} of" if last else " in"
    return f"{rank_s(cause.culprits)} issued nothing{after} this group"


def _unmatched(context: Context, cause: Cause, place: Place) -> Words:
    missing = "half" if place.half is None else "recv" if place.half.is_send else "send"
    return Words(
        f"{subject(cause.culprits)} never issued {verb(cause.culprits, 'its')} {missing} for "
        f"{title_of(context, place)}",
        f"{waiters_of(place)} {verb(place.waiters, 'waits')} for the other half of the pair",
    )


def _inconclusive(context: Context, cause: Cause, place: Place) -> Words:
    return Words(
        f"{capital(waiters_of(place))} {verb(place.waiters, 'waits')} in {title_of(context, place)}"
        f"{members_of(context, place)}, and there is too little evidence to name a rank",
        f"{rank_s(place.unknown)} left no record" if place.unknown else "",
    )


def _has_left(context: Context, rank: int) -> bool:
    """Whether a rank has destroyed its groups and gone on."""
    facts = context.trace.ranks.get(rank)
    inside = facts is not None and any(p.name == "destroy_process_group" for p in facts.phases)
    return facts is not None and bool(facts.finalized) and not inside


def _mismatch(context: Context, cause: Cause) -> Words:
    mismatch = cause.mismatch
    assert mismatch is not None
    label = label_of(context, mismatch.group)
    members = context.trace.groups[mismatch.group].ranks
    where_ = f"#{mismatch.seq} of group {label}" + (f" ({rank_s(members)})" if members else "")
    parts = []
    shown = [context.signature(part.shown) for part in mismatch.parts[:4]]
    # A reduce op known for one side only would read like the difference.
    unknown = {s.op for s in shown if s is not None and not s.reduce_op}
    for part, signature in zip(mismatch.parts, shown, strict=False):
        words = describe(signature, reduction=signature is None or signature.op not in unknown)
        if mismatch.aspect == "root":
            words += f" root {int(context.trace.records['root'][part.shown])}"
        if mismatch.aspect == "device" and signature is not None:
            words += f" on {signature.backend}"
        if mismatch.inside >= 0:
            batch = context.signature(part.row)
            words += f" as operation {mismatch.inside + 1} of {batch.op if batch else 'a batch'}"
        parts.append(f"{rank_s(part.ranks)} issued {words}")
    if mismatch.aspect == "history":
        summary = f"{capital(rank_s(cause.culprits))} had diverged from the others before {where_}"
        return Words(summary, "the running hashes differ although the recorded operations agree")
    if cause.confidence is Confidence.AMBIGUOUS:
        summary = f"At {where_} {'; '.join(parts)}"
    else:
        ordered = parts[1:] + parts[:1]
        summary = f"At {where_} {', '.join(ordered[:-1])} while {ordered[-1]}"
    aspect = {
        "op": "the operations differ",
        "numel": "the element counts differ",
        "dtype": "the dtypes differ",
        "reduce_op": "the reduce operations differ",
        "root": "the roots differ",
        "device": "some tensors are on the host and others on a device, whose backends never meet",
    }[mismatch.aspect]
    why = f"{aspect}, so this collective cannot complete or returns garbage"
    if leaving := mismatch.leaving(context.trace.records):
        why += f"; {rank_s(leaving)} issued it {_out_of_turn(context, leaving)}"
    return Words(summary, why)


def _out_of_turn(context: Context, ranks: list[int]) -> str:
    """That it was no step of the program and, if known, which step it interrupted."""
    left = {
        where(innermost(thread.stack))
        for rank in ranks
        for thread in context.trace.ranks[rank].threads
        if thread.source == LEFT
    }
    words = f"in a signal handler or on {'its' if len(ranks) == 1 else 'their'} way out"
    return f"{words}, called away from {left.pop()}" if len(left) == 1 and "" not in left else words


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


def _cycle(context: Context, cause: Cause, _first: Place) -> Words:
    places = context.waits.at(cause.places)
    ranks = set(cause.culprits) | {r for s in cause.sides for r in s}
    if is_lock(places[0]):
        return _cycle_through_lock(context, places, ranks)
    steps = []
    for place in places[:4]:
        inside = [r for r in place.targets if r in ranks]
        steps.append(
            f"{does(place.waiters, 'waits')} in {title_of(context, place)} "
            f"for {rank_s(inside or place.targets)}"
        )
    if set(cause.culprits) == ranks:
        summary = f"{capital(rank_s(ranks))} wait for each other in a cycle"
    elif crossed := crossing(context, cause):
        came_to, without = (title_of(context, place) for place in crossed)
        waiters = crossed.without.waiters
        summary = (
            f"{capital(rank_s(cause.culprits))} came to {came_to} without {without}, in which "
            f"{does(waiters, 'waits')}: they wait for each other in a cycle"
        )
    else:
        summary = (
            f"{capital(rank_s(cause.culprits))} took a different order than the others: "
            "they wait for each other in a cycle"
        )
    return Words(summary, "; ".join(steps))


def _cycle_through_lock(context: Context, places: list[Place], ranks: set[int]) -> Words:
    """A cycle whose first place is a file lock."""
    lock, *rest = places
    holders = [r for r in lock.targets if r in ranks]
    inside = next((p for p in rest if set(p.waiters) & set(holders)), None)
    title = "waits for others"
    if inside is not None:
        title = f"waits in {title_of(context, inside)}"
        title = f"waits for {lock_in_words(inside)}" if is_lock(inside) else title
    return Words(
        f"{capital(rank_s(holders))} {title} and holds {lock_in_words(lock)}, for which "
        f"{does(lock.waiters, 'waits')}",
        f"{rank_s(lock.waiters)} cannot come until {rank_s(holders)} releases it, and "
        f"{rank_s(holders)} does so only after that: they wait for each other in a cycle",
    )


_OF_VERDICT: dict[Verdict, Callable[[Context, Cause, Place], Words]] = {
    Verdict.MISSING_RANK: _missing,
    Verdict.RANK_EXITED: exited,
    Verdict.RANK_LOST: lost,
    Verdict.DEADLOCK_CYCLE: _cycle,
    Verdict.P2P_UNMATCHED: _unmatched,
    Verdict.STUCK_COLLECTIVE: stuck,
    Verdict.INCONCLUSIVE: _inconclusive,
}
"""The sentences of a verdict if nothing more specific fits."""
