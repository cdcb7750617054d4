"""The case against ranks that others wait for, with everything in their favour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.primary_failures import own_errors, same_failure
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place
from hangscope.diagnosis.graph.store_places import PREFIX, key_given_up, waits_in_store
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.process_state import End, in_communication, is_unseen
from hangscope.diagnosis.processes.stacks import innermost, stands_behind, user_frames
from hangscope.diagnosis.wording.phrases import rank_s, title_of
from hangscope.trace.model import NONE, Flag, State

_MOST_UNKNOWN = 2
"""Ranks without records are accused even if fewer ranks wait for them, up to this number."""
_NOBODY_LISTENS = (
    "whose address it is at which nobody listens: that of a process that is gone (after a restart, "
    "new groups find old addresses in a store that outlived them), or of the wrong interface "
    "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
)
UNKNOWN_KEY_SETTER = "who is to set the key that is waited for in the store"


def cause_against(
    context: Context, verdict: Verdict, ranks: tuple[int, ...], places: tuple[int, ...]
) -> Cause:
    """The cause that follows from others waiting for these ranks at these places.

    ``verdict`` is what each of the ranks would get on its own; the cause may get another one and
    may accuse nobody.
    """
    cause = Cause(verdict, ranks, places, began_ns=began(context, places))
    here = context.waits.at(places)
    if context.partly_recorded.issuperset(ranks):
        untold = f"where {rank_s(ranks)} waited: it is not in this excerpt"
        return cause.naming_nobody(untold)
    if not any(set(ranks) & set(place.absent + place.behind) for place in here):
        waiters = {rank for place in here for rank in place.waiters}
        if verdict is Verdict.MISSING_RANK and len(ranks) > max(len(waiters), _MOST_UNKNOWN):
            return cause.naming_nobody(f"what {rank_s(ranks)} issued, which is not on record")
        cause = replace(cause, confidence=_one_or_several(ranks)).with_unknown(
            "what the accused issued is not on record; nobody else is left"
        )
    cause = _doubt_key_setter(context, cause, here)
    if verdict is Verdict.RANK_CRASHED:
        return _against_crashed(context, cause, here)
    return _against_lone_waiter(context, _doubt_receives_from_any_source(cause, here))


def gave_up(context: Context, rank: int) -> bool:
    """Whether a rank ended because others did not arrive.

    If it ended without a message and had finished its last operation, its stack is merely that of
    its newest call.
    """
    process = context.processes[rank]
    _, high = context.bounds.get(rank, (0, 0))
    silent = context.trace.ranks[rank].exception is None
    if silent and high and context.trace.records["state"][high - 1] == int(State.COMPLETED):
        return False
    ended = process.end is End.CRASHED and process.secondary and bool(process.stack)
    return ended and in_communication(process.stack)


def keys_waited_for(context: Context, ranks: list[int]) -> list[str]:
    """The store keys that some of these ranks wait for, in words."""
    said = []
    for rank in ranks[:4]:
        if given_up := key_given_up(context.processes.get(rank)):
            said.append(f"rank {rank} waited in vain for {given_up!r} in the store")
            continue
        phase = context.trace.ranks[rank].phases[-1]
        key = f" {phase.detail!r}" if phase.detail else ""
        said.append(f"rank {rank} waits in {phase.name}{key} for another rank")
    return said


def _doubt_key_setter(context: Context, cause: Cause, here: list[Place]) -> Cause:
    """Another rank may have forgotten to set the key, perhaps one of those that wait for it."""
    ranks = cause.culprits
    if all(place.phase.startswith(PREFIX) for place in here):
        sure = _one_or_several(ranks)
        cause = replace(cause, confidence=sure).with_unknown(UNKNOWN_KEY_SETTER)
    processes = {rank: context.processes.get(rank) for rank in ranks}
    stored = [
        r for r, process in processes.items() if waits_in_store(process) or key_given_up(process)
    ]
    if cause.verdict is Verdict.MISSING_RANK and len(stored) == len(ranks):
        return cause.with_evidence(*keys_waited_for(context, stored)).doubted(UNKNOWN_KEY_SETTER)
    return cause


def _against_crashed(context: Context, cause: Cause, here: list[Place]) -> Cause:
    """The case against ranks that crashed: others may have caused their failure, or share it."""
    ranks = cause.culprits
    processes = [context.processes[rank] for rank in ranks]
    if all(is_unseen(context.trace.ranks[rank]) for rank in ranks):
        cause = cause.doubted(
            "nobody saw how that rank ended: one that is stopped, or in which C code holds the "
            "GIL, falls silent as well"
        )
    if all(process.secondary for process in processes):
        cause = cause.doubted("their errors speak of somebody else's failure")
        if context.gaps and all(gave_up(context, rank) for rank in ranks):
            return _acquitted(cause, f"what {rank_s(context.gaps)} did, of which nothing is left")
        if all(place.phase in (INIT, NEW_GROUP) for place in here):
            return _acquitted(cause, _NOBODY_LISTENS)
    if beside := _partners_in_pairs(context, ranks, here) - set(ranks):
        words = Words(
            f"{rank_s(ranks).capitalize()} aborted in an exchange with {rank_s(beside)} alone and "
            "left no record",
            "Gloo aborts a rank that receives more than it asked for, whichever side is wrong",
            "compare the sizes that both sides use in that group",
        )
        either = tuple(sorted({*ranks, *beside}))
        return replace(cause, culprits=either, confidence=Confidence.AMBIGUOUS, words=words)
    if not same_failure(processes):
        cause = replace(cause, confidence=Confidence.AMBIGUOUS)
        cause = cause.with_unknown("which of the accused failed first")
    cause = _doubt_receives_from_any_source(cause, here)
    if context.of_text.issuperset(ranks) and _only_aborted(context, ranks):
        return _acquitted(
            cause,
            f"{rank_s(ranks)} aborted, as a watchdog does after a timeout; nothing says for whom "
            "it waited",
        )
    return cause


def _acquitted(cause: Cause, unknown: str) -> Cause:
    """The accused are victims of something unknown; the confidence stays as it is."""
    victims = frozenset(cause.culprits)
    nobody = replace(cause, verdict=Verdict.INCONCLUSIVE, culprits=(), victims=victims)
    return nobody.with_unknown(unknown)


def _partners_in_pairs(context: Context, ranks: tuple[int, ...], here: list[Place]) -> set[int]:
    """Ranks that wait for ranks which aborted unrecorded in a collective of two: either may be
    wrong. In a larger group, members that agree with each other are right."""
    aborted = all(context.processes[rank].aborted for rank in ranks)
    if not aborted or not context.unrecorded.issuperset(ranks):
        return set()
    return {w for p in here if not p.phase and not p.p2p and len(p.members) == 2 for w in p.waiters}


def _doubt_receives_from_any_source(cause: Cause, here: list[Place]) -> Cause:
    if any(place.half is None or place.half.peer != NONE for place in here):
        return cause
    return replace(cause, confidence=Confidence.LIKELY).with_unknown(
        "a receive from any source does not say whom it waits for; the accused sent less often"
    )


def _only_aborted(context: Context, ranks: tuple[int, ...]) -> bool:
    """Whether nothing is known about these ends except that the processes aborted themselves."""
    processes = [context.processes[rank] for rank in ranks]
    own = own_errors(context.trace.claims)
    return all(h.secondary and h.aborted for h in processes) and not own.keys() & {*ranks}


def _against_lone_waiter(context: Context, cause: Cause) -> Cause:
    """A rank that waits alone for ranks which agree with each other may itself be wrong."""
    ranks, places, verdict = cause.culprits, cause.places, cause.verdict
    waits = context.waits.places
    odd: tuple[int, ...] = ()
    if verdict in (Verdict.MISSING_RANK, Verdict.RANK_EXITED):
        odd = outliers(context, ranks, places)
    if odd:
        theirs = tuple(i for i in places if set(waits[i].waiters) & set(odd))
        turned = replace(
            cause,
            verdict=Verdict.COLLECTIVE_MISMATCH,
            culprits=odd,
            issued_extra=True,
            confidence=Confidence.LIKELY,
            victims=frozenset(ranks),
            sides=(ranks, odd),
            places=theirs,
        )
        unknown = {rank for i in theirs for rank in waits[i].unknown}
        even = len(odd) + len(unknown) >= len(ranks)
        return accuse_both_sides(context, turned, tuple(sorted(unknown))) if even else turned
    return cause


def _one_or_several(ranks: tuple[int, ...]) -> Confidence:
    """The confidence that these are to blame if all that is known is that one of them is."""
    return Confidence.LIKELY if len(ranks) == 1 else Confidence.AMBIGUOUS


def accuse_both_sides(context: Context, cause: Cause, unknown: tuple[int, ...]) -> Cause:
    """Accuse both sides: as many wait as are absent (or may be), so either could be wrong.

    ``unknown``: members that left nothing and may be on either side.
    """
    absent, waiting = cause.sides
    title = title_of(context, context.waits.places[cause.places[0]])
    words = Words(
        f"{rank_s(waiting).capitalize()} issued {title}, {rank_s(absent)} did not",
        "one side issued one operation too many, or the other one too few; "
        f"{rank_s(unknown)} left nothing and may be on either"
        if unknown
        else "one half issued one operation too many, or the other one too few; both sides are "
        "equally large, so nothing decides between them",
        "look for the condition under which only some ranks reach this line: a collective must not "
        "depend on it",
    )
    return replace(
        cause,
        culprits=tuple(sorted((*absent, *waiting))),
        victims=frozenset(),
        confidence=Confidence.AMBIGUOUS,
        words=words,
    )


def outliers(context: Context, absent: tuple[int, ...], places: Sequence[int]) -> tuple[int, ...]:
    """The waiting ranks, if they are no more than the absent ones and those all do the same.

    Three ranks that all finished are not wrong because a fourth issued one more collective. If
    equally many wait, that only holds if nothing is known about what the absent ranks do. Members
    that left nothing may have arrived or not: they do not put the smaller waiting side in the right
    if the absent ranks are seen to do the same. A member without a ring that a journal saw exit
    cleanly has not arrived.
    """
    waits = context.waits
    waiters = sorted(waits.waiters_at(places))
    phases = {place.phase for place in waits.at(places)} - {""}
    if phases and not (phases == {NEW_GROUP} and _are_past(context, absent, waiters)):
        return ()
    unknown = {r for place in waits.at(places) for r in place.unknown}
    finished = {r for r in unknown & context.unrecorded if context.processes[r].end is End.CLEAN}
    unknown -= finished
    many = len(absent) + len(finished)
    tie = len(waiters) == many and not unknown
    if (len(waiters) >= many and not tie) or many < 2:
        return ()
    group = _where_they_meet(context, waiters, absent, places)
    if group is None:
        return ()
    fronts = {context.last_in_group(r, group)[0] for r in absent}
    if len(fronts) != 1:
        return ()
    if any(not _can_go_on(context, rank) for rank in absent):
        return ()
    doing = {"finished"} if finished else set()
    doing |= {_doing(context, rank) for rank in absent}
    if tie and (doing != {""} or _is_unobserved(context, places)):
        # It is known what the absent do instead, or they may wait in something unrecorded.
        return ()
    if len(waiters) + len(unknown) >= many and not tie and doing == {""}:
        return ()  # nothing shows that the absent do the same
    return tuple(waiters) if len(doing) == 1 else ()


def _are_past(context: Context, ranks: Sequence[int], others: Sequence[int]) -> bool:
    """Whether ranks are further down in the function in which they and the others diverge."""
    return all(
        stands_behind(
            user_frames(context.processes[rank].stack), user_frames(context.processes[other].stack)
        )
        for rank in ranks
        for other in others
    )


def _can_go_on(context: Context, rank: int) -> bool:
    """Whether a rank left records and is neither stopped nor kept from the GIL."""
    process = context.processes.get(rank)
    if process is None or rank not in context.trace.ranks:
        return False
    return not process.cannot_run


def _doing(context: Context, rank: int) -> str:
    """What a rank does instead of joining the others; empty if unknown."""
    process = context.processes[rank]
    if process.end is End.CLEAN or context.trace.ranks[rank].finalized:
        return "finished"
    if process.phase is not None:
        return process.phase
    frame = innermost(process.stack)
    return f"{frame.filename}:{frame.name}" if frame is not None else ""


def _where_they_meet(
    context: Context, waiters: list[int], absent: tuple[int, ...], places: Sequence[int]
) -> int | None:
    """The group in which all waiting ranks wait for all absent ones, if there is one.

    A device queue keeps accepting work: a rank that waits in a collective may also wait for some of
    them elsewhere.
    """
    here = context.waits.at(places)
    if len({place.group for place in here}) == 1 and not any(place.p2p for place in here):
        return here[0].group
    shared = (
        place.group
        for place in here
        if not place.p2p and list(place.waiters) == waiters and set(absent) <= set(place.absent)
    )
    return next(shared, None)


def _is_unobserved(context: Context, places: Sequence[int]) -> bool:
    """Whether the waiters' recorder does not record completions (Gloo's own)."""
    rows = [place.row for place in context.waits.at(places)]
    flags = context.trace.records["flags"]
    return any(row >= 0 and int(flags[row]) & int(Flag.UNOBSERVED) for row in rows)
