"""Summary and mechanism of a cause, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.dead_threads import dead_thread, died_of
from hangscope.diagnosis.graph.lock_places import is_lock, lock_in_words
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.store_places import PREFIX as STORE
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.process_state import ProcessState, activity
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, is_over, where
from hangscope.diagnosis.records.coverage import cut_short
from hangscope.diagnosis.wording.crashes import crashed, perhaps_not_first
from hangscope.diagnosis.wording.cycle_crossing import crossing
from hangscope.diagnosis.wording.phrases import (
    capital,
    describe,
    is_are,
    is_held_up,
    it_them,
    label_of,
    members_are_untold,
    members_of,
    need,
    never_began,
    rank_s,
    title_of,
    wait_s,
)
from hangscope.diagnosis.wording.stuck_phase import stuck_in_phase
from hangscope.trace.facts import LEFT
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks


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
    return words(context, cause, place) if words else Words(f"{_who(cause)}: {cause.verdict.value}")


def _who(cause: Cause) -> str:
    """The accused as the subject of a sentence."""
    return capital(rank_s(cause.culprits)) if cause.culprits else "Nobody"


def _waiters(place: Place) -> str:
    return rank_s(place.waiters) if place.waiters else "the others"


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
    return Words(
        f"{_who(cause)} alone issued {title_of(context, place)}{members_of(context, place)}",
        f"{rank_s(cause.sides[0])} never issue it and wait for nobody; "
        f"{rank_s(cause.culprits)} waits there forever",
    )


def _key_not_set(cause: Cause, place: Place) -> Words:
    waiters, wait = _waiters(place), wait_s(place.waiters)
    has = "has" if len(cause.culprits) == 1 else "have"
    return Words(
        f"{_who(cause)} {has} not set what {waiters} {wait} for in {place.phase}",
        f"{waiters} {wait} in the store for a key, and only "
        f"{rank_s(cause.culprits)} {is_are(cause.culprits)} elsewhere",
    )


def _missing(context: Context, cause: Cause, place: Place) -> Words:
    who, title, waiters = _who(cause), title_of(context, place), _waiters(place)
    if is_lock(place):
        return Words(
            f"{who} {'holds' if len(cause.culprits) == 1 else 'hold'} {lock_in_words(place)} that "
            f"{waiters} {wait_s(place.waiters)} for",
            f"{_instead(context, cause, place)}; {waiters} cannot go on until it is released",
        )
    if place.phase:
        return Words(
            f"{who} never reached {place.phase}",
            f"{waiters} {is_are(place.waiters)} inside {place.phase} and waiting for "
            f"{rank_s(cause.culprits)}",
        )
    dead = dead_thread(context, cause.culprits[0], place.group)
    if dead is not None:
        return Words(
            f"{who} never joined {title}{members_of(context, place)}: its {died_of(dead)}",
            f"that thread issued the operations of group {label_of(context, place.group)} on "
            f"rank {cause.culprits[0]}, and nothing else issues them",
        )
    instead = _instead(context, cause, place)
    if place.p2p:
        return Words(f"{who} never reached {title}", f"{instead}; {waiters} waits for its half")
    return Words(
        f"{who} never joined {title}{members_of(context, place)}",
        f"{instead}; {waiters} went on to #{place.seq} without {it_them(cause.culprits)}",
    )


def _instead(context: Context, cause: Cause, place: Place) -> str:
    """What the missing ranks did, or do, instead of arriving."""
    absent = context.process_in(cause.culprits[0], place.group)
    doing = activity(absent, context.trace.ranks.get(cause.culprits[0]))
    if absent is not None and absent.gone and doing == absent.end_text:
        doing = ""  # how it was ended is no activity
    who = rank_s(cause.culprits)
    if all(_has_left(context, r) for r in cause.culprits):
        has = "has" if len(cause.culprits) == 1 else "have"
        left = f"{who} {has} already called destroy_process_group"
        return f"{left} and {is_are(cause.culprits)} {doing}" if doing else left
    if all(has_left_group(context.trace, r, place.group) for r in cause.culprits):
        has = "has" if len(cause.culprits) == 1 else "have"
        return f"{who} {has} already left this group (destroy_process_group)"
    if doing:
        return f"{who} {is_are(cause.culprits)} {_still(absent)}{doing}"
    last, _ = context.last_in_group(cause.culprits[0], place.group)
    if last:
        return f"{who} issued nothing after #{last} of this group"
    return f"{who} issued nothing in this group"


def _exited(context: Context, cause: Cause, place: Place) -> Words:
    return Words(
        f"{_who(cause)} {_left(context, cause.culprits)} while {_waiters(place)} still "
        f"{need(place.waiters)} {it_them(cause.culprits)} in {title_of(context, place)}"
        f"{members_of(context, place)}",
        f"{rank_s(cause.culprits)} issued it too, but left before it was done"
        if left_its_own_behind(cause, place)
        else f"{rank_s(cause.culprits)} finished early; the others still have work to do",
    )


def left_its_own_behind(cause: Cause, place: Place) -> bool:
    """Whether the accused had issued the operation the others are in, and ended before it was
    done."""
    return bool(cause.culprits) and set(cause.culprits) <= set(place.behind)


def _lost(context: Context, cause: Cause, place: Place) -> Words:
    left = "left no record and no sign of life"
    why = {context.unreadable.get(rank, "") for rank in cause.culprits}
    if "" not in why:
        left = f"left a dump that cannot be read ({shortened(', '.join(sorted(why)), 80)})"
    elif context.undumped.issuperset(cause.culprits):
        left = "left no record, only ordinary output"
    elif context.trace.only_logs:
        left = f"{'does' if len(cause.culprits) == 1 else 'do'} not appear in the log"
    return Words(
        f"{_who(cause)} {left}; {_waiters(place)} {wait_s(place.waiters)} in "
        f"{title_of(context, place)}",
        "nothing else explains the wait",
    )


def _unmatched(context: Context, cause: Cause, place: Place) -> Words:
    missing = "half" if place.half is None else "recv" if place.half.is_send else "send"
    its = "its" if len(cause.culprits) == 1 else "their"
    return Words(
        f"{_who(cause)} never issued {its} {missing} for {title_of(context, place)}",
        f"{_waiters(place)} waits for the other half of the pair",
    )


def _stuck(context: Context, cause: Cause, place: Place) -> Words:
    title = title_of(context, place)
    accused = cause.culprits[0] if cause.culprits else None
    twice = duplicate_ranks(context.trace).get(accused) if accused is not None else None
    if twice:
        return Words(
            f"{capital(twice.partition(';')[0])}; {title} cannot finish",
            "messages for that rank reach one of its processes, and the other one waits",
        )
    facts = context.trace.ranks.get(accused) if accused is not None else None
    if facts is not None and facts.process_state == "stopped":
        return Words(
            f"{_who(cause)} {is_are(cause.culprits)} stopped inside {title}"
            f"{members_of(context, place)}",
            f"{rank_s(cause.culprits)} issued the operation and was stopped before its part "
            "was done",
        )
    shown = "All ranks that this excerpt shows" if cut_short(context.trace) else "All members"
    everybody = f"{shown} are in {title}{members_of(context, place)} and none finishes"
    if place.phase:
        return stuck_in_phase(context, place, everybody)
    if place.not_begun and set(cause.culprits) >= place.not_begun.keys():
        idle = rank_s(place.not_begun)
        return Words(
            never_began(place, f"{title}{members_of(context, place)}"),
            f"it has begun on {_waiters(place)}; the device of {idle} is held up by something "
            "else (a kernel, a copy, a wait for an event) that is no recorded communication",
        )
    if place.p2p:
        return Words(
            f"Both halves of {title} were issued and neither finishes",
            "sender and receiver use different tags, or the network or a device is stuck",
        )
    if accused is not None:
        return Words(
            f"{_who(cause)} cannot finish {title}, which has completed on a peer",
            "its device, the link to it, or what the process runs there is stuck",
        )
    if members_are_untold(context, place):
        return Words(
            f"{capital(_waiters(place))} {is_are(place.waiters)} in {title} and cannot finish it; "
            "who else belongs to the group is not told",
            "the others of the group did not come, or the network, a device or the library is "
            "stuck",
        )
    return Words(
        everybody,
        "all members issued the same operation: the network, a device or the library is stuck",
    )


def _inconclusive(context: Context, cause: Cause, place: Place) -> Words:
    return Words(
        f"{capital(_waiters(place))} {wait_s(place.waiters)} in {title_of(context, place)}"
        f"{members_of(context, place)}, and there is too little evidence to name a rank",
        f"{rank_s(place.unknown)} left no record" if place.unknown else "",
    )


def _left(context: Context, ranks: Iterable[int]) -> str:
    """How cleanly exited ranks ended, as far as known."""
    ways = {context.processes[rank].end_text for rank in ranks}
    return (
        "exited with status 0"
        if ways == {"exit status 0"}
        else "exited on its own, with a status nobody saw,"
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


def _still(process: ProcessState | None) -> str:
    """ "still" for what a rank is in, but not for "stopped" or for a finished program."""
    over = process is not None and is_over(process.stack)
    return "" if over or is_held_up(process) else "still "


def _cycle(context: Context, cause: Cause, _first: Place) -> Words:
    places = context.waits.at(cause.places)
    ranks = set(cause.culprits) | {r for s in cause.sides for r in s}
    if is_lock(places[0]):
        return _cycle_through_lock(context, places, ranks)
    steps = []
    for place in places[:4]:
        inside = [r for r in place.targets if r in ranks]
        steps.append(
            f"{rank_s(place.waiters)} {wait_s(place.waiters)} in {title_of(context, place)} "
            f"for {rank_s(inside or place.targets)}"
        )
    if set(cause.culprits) == ranks:
        summary = f"{capital(rank_s(ranks))} wait for each other in a cycle"
    elif crossed := crossing(context, cause):
        came_to, without = (title_of(context, place) for place in crossed)
        waiters = crossed.without.waiters
        summary = (
            f"{capital(rank_s(cause.culprits))} came to {came_to} without {without}, in which "
            f"{rank_s(waiters)} {wait_s(waiters)}: they wait for each other in a cycle"
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
        f"{rank_s(lock.waiters)} {wait_s(lock.waiters)}",
        f"{rank_s(lock.waiters)} cannot come until {rank_s(holders)} releases it, and "
        f"{rank_s(holders)} does so only after that: they wait for each other in a cycle",
    )


_OF_VERDICT: dict[Verdict, Callable[[Context, Cause, Place], Words]] = {
    Verdict.MISSING_RANK: _missing,
    Verdict.RANK_EXITED: _exited,
    Verdict.RANK_LOST: _lost,
    Verdict.DEADLOCK_CYCLE: _cycle,
    Verdict.P2P_UNMATCHED: _unmatched,
    Verdict.STUCK_COLLECTIVE: _stuck,
    Verdict.INCONCLUSIVE: _inconclusive,
}
"""The sentences of a verdict if nothing more specific fits."""
