"""Ranks that others wait for: did those depart from what was expected of them, or somebody else?

That a rank has not come, or left nothing, explains why others wait for it. It does not explain that
one of those others, or a rank beside them, did what was not expected of it. Such a rank explains
the waiting as well: the accused may wait for it in turn, or be right not to come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.first_meetings import or_meeting_first
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.faults.contest import SURE, contest, measures
from hangscope.diagnosis.faults.expect import Conduct, Departure, conduct_of, is_new
from hangscope.diagnosis.model import AWAITED, Confidence, Verdict
from hangscope.diagnosis.processes.process_state import End, in_communication
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.records.pairing import Half
from hangscope.diagnosis.wording.phrases import capital, describe, rank_s
from hangscope.trace.model import NONE
from hangscope.trace.units import SECOND_NS

_MOST_RANKS = 64
_LARGE_GROUP = 64
"""Everybody is in a larger group: that a rank shares it with another one says nothing."""
_SEVERAL = 2
_WEAK = 0.5
_PAST = 8


def with_departures(context: Context, causes: list[Cause]) -> list[Cause]:
    """The causes, each with what else explains it; those in the same words are one.

    What a rank did that is a finding of its own explains no other one.
    """
    named = {rank for c in causes if c.mismatch is not None for rank in c.culprits}
    return _once(or_meeting_first(context, or_departed(context, cause, named)) for cause in causes)


def _once(causes: Iterable[Cause]) -> list[Cause]:
    """The causes, those in the same words against the same ranks as one."""
    found: dict[object, Cause] = {}
    for cause in causes:
        key = (cause.culprits, cause.words) if cause.culprits and cause.words.summary else cause
        known = found.get(key)
        found[key] = (
            cause
            if known is None
            else replace(
                known,
                places=tuple(dict.fromkeys((*known.places, *cause.places))),
                victims=known.victims | cause.victims,
            )
        )
    return list(found.values())


def or_departed(context: Context, cause: Cause, named: Collection[int] = ()) -> Cause:
    """The cause, with ranks accused instead or as well that departed from what was expected.

    Nothing changes where the process of an accused rank was seen to be elsewhere, unless somebody
    owes it a half.
    """
    accused = cause.culprits
    if cause.verdict not in AWAITED or not 0 < len(accused) <= _MOST_RANKS:
        return cause
    if cause.mismatch is not None or cause.crossed or cause.conflict or cause.issued_extra:
        return cause
    if any(_began_something(context, rank) for rank in accused):
        return cause
    found = [one for one in _suspects(context, cause) if one.rank not in named]
    if not 0 < len(found) <= max(len(accused), _SEVERAL):
        return cause  # what so many do is the program's own way
    sure = all(one.weight >= SURE for one in found) and not _departed_too(context, cause)
    ranks = tuple(sorted(one.rank for one in found))
    if sure and len({one.what for one in found}) == 1 and len(ranks) <= len(accused):
        changed = cause.accusing(ranks, Confidence.LIKELY)
    else:
        both = tuple(sorted({*ranks, *accused}))
        changed = cause.accusing(both, Confidence.AMBIGUOUS)
    if 2 * len(changed.culprits) <= max(len(context.known_ranks), 4):
        return _told(context, changed, cause, found)
    if cause.verdict is not Verdict.RANK_LOST:
        return cause
    return cause.naming_nobody(f"which of {rank_s(changed.culprits)} departed from the others")


@dataclass(frozen=True, slots=True)
class _Departed:
    """A rank that is not accused, and what it did that was not expected of it.

    ``what``, ``row``: what it issued; ``why``: in words; ``weight``: from 0 to 1.
    """

    rank: int
    what: int
    row: int
    why: str
    weight: float


def _suspects(context: Context, cause: Cause) -> list[_Departed]:
    """Who may be to blame instead of the accused, or as well."""
    owing = _owing(context, cause)
    observed = [rank for rank in cause.culprits if context.is_observed(rank)]
    if observed and (not owing or context.processes[observed[0]].cannot_run):
        return []
    found = [
        _without_half(owing[one.rank], one.weight) if one.rank in owing else one
        for one in _departed(context, cause)
    ]
    if observed:  # it may ask again and again for what another one has left out
        return [one for one in found if one.rank in owing]
    both = {*cause.culprits, *owing}
    sent = [p for p in context.waits.places if p.half in owing.values()]
    if found or not owing or frozenset(cause.culprits) in contest(context, both, sent).seen:
        return found
    return [_without_half(half) for half in owing.values() if half.is_send]


def _without_half(half: Half, weight: float = _WEAK) -> _Departed:
    """The partner of a half, which has left out its own, as one that departed."""
    did = "received what" if half.is_send else "sent what"
    rest = "sent" if half.is_send else "is to receive"
    return _Departed(half.peer, NONE, half.row, f"never {did} rank {half.rank} {rest}", weight)


def _owing(context: Context, cause: Cause) -> dict[int, Half]:
    """Ranks held up by the cause that may have left out the other half of what the only accused one
    sends on a device, or is to receive: it may wait for that where no record shows it."""
    if cause.words.summary:
        return {}  # what the halves show has been weighed
    held_up = context.waits.waiters_at(cause.places) | cause.victims
    return {
        half.peer: half
        for half in context.pending_halves
        if (half.rank,) == cause.culprits and half.peer in held_up
        if (half.matched is False or (half.is_send and half.matched is None))
        and not _goes_by_itself(context, half)
    }


def _goes_by_itself(context: Context, half: Half) -> bool:
    """Whether it is sent by a host, which waits for nobody unless its program does; or perhaps to
    a rank that a made-up list of members lacks."""
    signature = context.signature(half.row)
    listed = context.trace.groups[half.group].listed or half.rank not in context.unfinished_alone
    return half.is_send and (not listed or signature is None or is_on_host(signature))


def _departed(context: Context, cause: Cause) -> list[_Departed]:
    """Ranks that departed, of those that wait for the accused or share a group with them."""
    accused = frozenset(cause.culprits)
    places = context.waits.at(cause.places)
    asked = _neighbours(context, accused) | context.waits.waiters_at(cause.places)
    judged = sorted((asked & context.bounds.keys()) - accused)[:_MOST_RANKS]
    voters = measures(context, judged, places)
    found = []
    for rank in judged:
        process = context.processes.get(rank)
        if process is not None and (process.failed or process.cannot_run):
            continue  # that tells more than what it issued
        conduct = conduct_of(context, rank, accused.union(judged), voters, careful=True)
        one = _by_conduct(context, rank, conduct, accused)
        if one is not None and _is_later(context, one, cause):
            continue
        if one is None and cause.verdict is Verdict.RANK_LOST and _stood(context, rank, cause):
            at = where(innermost(context.processes[rank].stack))
            one = _Departed(rank, NONE, NONE, f"stood at {at} all the time", _WEAK)
        found += [one] if one is not None else []
    return found


def _began_something(context: Context, rank: int) -> bool:
    """Whether the rank, whose past is long enough to tell, stands in something new to it."""
    what = context.streams.of(rank).what
    return len(what) >= _PAST and is_new(what, len(what) - 1)


def _departed_too(context: Context, cause: Cause) -> bool:
    """Whether an accused rank did something unexpected as well: then either may have begun it."""
    accused = frozenset(cause.culprits)
    voters = measures(context, sorted(accused), context.waits.at(cause.places))
    recorded = accused & context.bounds.keys()
    return any(
        conduct_of(context, r, accused, voters, careful=True).worst()[1] is not None
        for r in recorded
    )


def _by_conduct(
    context: Context, rank: int, conduct: Conduct, accused: frozenset[int]
) -> _Departed | None:
    """What the rank issued that was not expected of it, if nobody else did the same or most are
    against it."""
    weight, departure = conduct.worst(accused)
    if departure is None:
        begun = (d for d in conduct.departures if d.past is None and d.against - accused)
        departure = next(begun, None)
        weight = _WEAK
    if departure is not None and _is_departure(context, departure, accused):
        did = describe(context.signature(departure.row))
        others = sorted(departure.against)[:8]
        unlike = (
            f"where {rank_s(others)}, which had done the same until then, issued something else"
            if others
            else "which is not what it had issued there before"
        )
        return _Departed(rank, departure.what, departure.row, f"issued {did}, {unlike}", weight)
    idle = {r for r in conduct.ended if not context.waits.places_of.get(r)}
    alike = idle >= accused and len(idle - accused) >= _SEVERAL and not conduct.followed
    newest = context.last_row(rank)
    if not alike or context.front.p2p[newest] or any(context.is_observed(r) for r in idle):
        return None
    rest = rank_s(sorted(idle - accused))
    why = f"issued one operation more than {rank_s(sorted(accused))}, and so did not {rest}"
    return _Departed(rank, conduct.stands, NONE, why, _WEAK)


def _is_departure(context: Context, found: Departure, accused: frozenset[int]) -> bool:
    """Whether it is not just another line, what others of its part in the program do as ever, or a
    half, in which parts differ."""
    role = bool(found.agree - accused) and found.past is False
    half = bool(context.front.p2p[found.row]) and not found.past
    return not (
        found.is_same or role or half or (found.is_extra and _is_shared(context, found.row))
    )


def _is_shared(context: Context, row: int) -> bool:
    """Whether another member of the group has issued the collective, too."""
    record = context.trace.records[row]
    members = context.rows_at(int(record["group"]), int(record["collective_seq"]))
    return not context.front.p2p[row] and len(members) > 1


def _is_later(context: Context, one: _Departed, cause: Cause) -> bool:
    """Whether others had waited for the accused for a timeout before that."""
    at_ns = int(context.trace.records["created_ns"][one.row]) if one.row != NONE else 0
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    return 0 < cause.began_ns + limit_ns < at_ns


def _stood(context: Context, rank: int, cause: Cause) -> bool:
    """Whether the rank was in its own code since before the others' wait, for at least the
    timeout."""
    process, row = context.processes.get(rank), context.last_row(rank)
    if process is None or context.waits.places_of.get(rank) or row < 0:
        return False
    if context.trace.ranks[rank].finalized or not user_frames(process.stack):
        return False
    if process.end not in (End.TORN_DOWN, End.UNKNOWN) or in_communication(process.stack):
        return False
    issued_ns = int(context.trace.records["created_ns"][row])
    until_ns = process.end_ns or context.now_ns(rank)
    long = until_ns - issued_ns >= int(context.trace.timeout_s * SECOND_NS)
    return long and 0 < issued_ns < cause.began_ns + SECOND_NS


def _neighbours(context: Context, accused: Collection[int]) -> set[int]:
    """Ranks that share a group with an accused one."""
    groups = [g.ranks for g in context.trace.groups if len(g.ranks) <= _LARGE_GROUP]
    return {r for ranks in groups if not set(ranks).isdisjoint(accused) for r in ranks}


def _told(context: Context, named: Cause, cause: Cause, found: list[_Departed]) -> Cause:
    """The cause in words, with the verdict on the ranks that departed."""
    first = max(found, key=lambda one: one.weight)
    pair = first.row != NONE and bool(context.front.p2p[first.row])
    processes = [context.processes.get(one.rank) for one in found]
    exited = all(process is not None and process.end is End.CLEAN for process in processes)
    verdict = Verdict.P2P_UNMATCHED if pair else Verdict.COLLECTIVE_MISMATCH
    verdict = Verdict.RANK_EXITED if exited and not pair else verdict
    if first.row == NONE:
        verdict = Verdict.MISSING_RANK
    accused, own = rank_s(cause.culprits), rank_s([first.rank])
    left = "left nothing" if cause.verdict is Verdict.RANK_LOST else "did not come"
    words = Words(
        f"{capital(own)} {first.why}, and {accused}, for which others wait, {left}",
        f"{accused} may wait for {own}, or be right not to come",
        "compare what these ranks run before they stand still",
    )
    return replace(named, verdict=verdict, words=words)
