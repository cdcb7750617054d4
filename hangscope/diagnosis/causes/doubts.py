"""Lowers the confidence of causes that rest on something no source states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.coverage import cut_off, cut_short, lacks_last_rank
from hangscope.diagnosis.records.device_counts import counts_as_unfinished
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace import formats
from hangscope.trace.model import NONE, Flag
from hangscope.trace.units import SECOND_NS

_OF_THE_MOST = (Verdict.STUCK_COLLECTIVE, Verdict.DEADLOCK_CYCLE)
"""Verdicts that depend on the number of ranks: a log may hold only some of them."""
_OF_THE_ABSENT = (Verdict.MISSING_RANK, Verdict.COLLECTIVE_MISMATCH)
_COUNTERS_LEFT = "only counters are left: the file is cut or damaged"
_COUNTED_NS = 3 * SECOND_NS
_UNHEARD_NS = 30 * SECOND_NS
"""The monitor of a stalled node reports three times within this time."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What had to be inferred to make the ranks of a trace comparable."""

    members: frozenset[int]
    """Groups whose members no source lists completely."""
    numbers: frozenset[int]
    """Groups whose sequence numbers were inferred from times and the order of issue."""
    clocks: bool
    """Clocks that disagreed between hosts were aligned."""
    halves: frozenset[int] = frozenset()
    """Rows of sends and receives that count as unfinished because the other side issued fewer."""


def doubt_inferred(context: Context, cause: Cause, inferred: Inferred) -> Cause:
    """Doubt a cause that rests on members and numbers no source states."""
    cause = _doubt_members(context, cause, inferred.members)
    cause = _doubt_senders(context, cause)
    cause = _doubt_numbers(context, cause, inferred.numbers)
    if any(place.row in inferred.halves for place in context.waits.at(cause.places)):
        fewer = "that a send or receive waits is inferred: the other side issued fewer"
        return cause.doubted(fewer)
    return cause


def doubt_silent_nodes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt causes that rest on ranks whose node fell silent: they may have moved on since."""
    trace = context.trace
    if not trace.live:
        return causes
    silent_ns = {
        rank: trace.observed_ns - facts.observed_ns
        for rank, facts in trace.ranks.items()
        if facts.alive and 0 < facts.observed_ns < trace.observed_ns - _UNHEARD_NS
    }
    return [_doubt_silent(context, cause, silent_ns) for cause in causes]


def _doubt_silent(context: Context, cause: Cause, silent_ns: dict[int, int]) -> Cause:
    """Doubt a cause about ranks whose nodes have been silent for that long (ns)."""
    concerned = context.waits.waiters_at(cause.places).union(cause.culprits)
    unheard = tuple(sorted(concerned.intersection(silent_ns)))
    if not unheard:
        return cause
    longest_s = max(silent_ns[rank] for rank in unheard) / SECOND_NS
    return cause.doubted(f"the node of {rank_s(unheard)} was last heard from {longest_s:.0f} s ago")


def doubt_stuck_device(context: Context, cause: Cause) -> Cause:
    """Clear absent ranks whose own device is stuck according to its backend's counter.

    The rings do not show for whom they wait there.
    """
    if cause.mismatch is not None or cause.verdict not in _OF_THE_ABSENT:
        return cause
    absent = _absent(context, cause)
    standing = {r for r in absent | set(cause.culprits) if _stands_on_device(context, r)}
    named = standing.intersection(cause.culprits)
    reason = f"{rank_s(sorted(standing))} stood on their devices, and it is not known for whom"
    if standing and (len(named) == len(cause.culprits) or not absent - standing):
        return cause.naming_nobody(reason)
    return cause.acquitting(standing, reason) if named else cause


def doubt_held_up(context: Context, cause: Cause) -> Cause:
    """Doubt the absence of ranks that seem to wait for another rank outside communication.

    Which of the two is to blame is open: what passes between them is not on record.
    """
    if cause.verdict is not Verdict.MISSING_RANK:
        return cause
    for rank in cause.culprits:
        process = context.processes.get(rank)
        wait = process.wait if process is not None else None
        if process is None or wait is None or not process.waits_for:
            continue
        others = rank_s(process.waits_for)
        if wait.kind == "socket":
            return cause.doubted(f"rank {rank} waits for an answer of {others}")
        if wait.kind == "semaphore":
            return cause.doubted(f"{others} may hold the semaphore that rank {rank} waits for")
        if wait.kind == "locked file":
            return cause.doubted(f"{others} holds a lock that rank {rank} may wait for")
    return cause


def doubt_truncated(context: Context, causes: list[Cause]) -> list[Cause]:
    """Clear ranks of which only counters are left, unless these show where the rank is stuck.

    They do if the rank is stuck in what others recorded as a collective, or never reached it and
    nobody uses sends and receives, in which it might wait instead.
    """
    cut = cut_off(context.trace)
    pairs = bool((context.trace.records["flags"] & int(Flag.P2P)).any()) or context.lists_in_part
    return (
        [_doubt_truncated(context, cause, cut, pairs=pairs) for cause in causes] if cut else causes
    )


def _doubt_truncated(context: Context, cause: Cause, cut: frozenset[int], *, pairs: bool) -> Cause:
    """``cut``: ranks of which only counters are left; ``pairs``: sends and receives may be
    missing."""
    named = cut.intersection(cause.culprits)
    cycle = cause.verdict is Verdict.DEADLOCK_CYCLE
    if not named:
        # The rank may wait in something that is not on record any more.
        counted = (
            cut & context.waits.waiters_at(cause.places) if cause.verdict in _OF_THE_MOST else None
        )
        return cause.doubted(f"of {rank_s(sorted(counted))} {_COUNTERS_LEFT}") if counted else cause
    on_record = all(place.row >= 0 for place in context.waits.at(cause.places))
    known = cause.verdict is Verdict.STUCK_COLLECTIVE and (on_record or not pairs)
    came_not = cause.verdict is Verdict.MISSING_RANK and named <= _absent(context, cause)
    who = rank_s(sorted(named))
    if known or (came_not and not pairs):
        return cause.doubted(f"of {who} {_COUNTERS_LEFT}")
    reason = f"what {who} issued last: the file is cut or damaged before that"
    if len(named) < len(cause.culprits) and not cycle:
        return cause.acquitting(named, reason)
    return cause.naming_nobody(reason)


def _absent(context: Context, cause: Cause) -> set[int]:
    """Ranks that have not reached the places of a cause."""
    return {r for place in context.waits.at(cause.places) for r in place.absent}


def _stands_on_device(context: Context, rank: int) -> bool:
    """Whether a backend counts a rank's newest collective as unfinished and had time to update.

    Its counter is copied while the rank's recorder runs, at most a second late.
    """
    trace, process, row = context.trace, context.processes.get(rank), context.last_row(rank)
    facts = trace.ranks.get(rank)
    if (
        process is None
        or (process.frozen and not process.gone)
        or facts is None
        or facts.unobservable
    ):
        return False
    if row < 0 or process.beat_ns < int(trace.records["created_ns"][row]) + _COUNTED_NS:
        return False
    low, pairs = context.bounds[rank][0], context.pairs_of_rank[rank]
    return counts_as_unfinished(trace, context.front, row, low, pairs)


def _doubt_members(context: Context, cause: Cause, groups: frozenset[int]) -> Cause:
    """The members of a group decide who is missing from it."""
    here = context.waits.at(cause.places)
    if any(place.group in groups for place in here):
        cause = cause.doubted("the group's members are inferred: no source lists them")
    halves = [place.half for place in here if place.group in groups]
    takers = {half.rank for half in halves if half is not None and half.peer == NONE}
    if takers.issuperset(cause.culprits) and cause.verdict is Verdict.DEADLOCK_CYCLE:
        return cause.naming_nobody(
            "a receive from any source may be for a member that is not listed"
        )
    return cause


def _doubt_senders(context: Context, cause: Cause) -> Cause:
    """A cycle through a receive that names no sender stands only if nobody else could send.

    Recorders that omit peers make every receive such a one.
    """
    if cause.verdict is not Verdict.DEADLOCK_CYCLE:
        return cause
    here = context.waits.at(cause.places)
    named = {
        rank
        for p in here
        for rank in p.waiters
        if p.half is None or p.half.is_send or p.half.peer != NONE
    }
    takers = {p.half.rank for p in here if p.half is not None} - named
    if takers.isdisjoint(cause.culprits):
        return cause
    return cause.naming_nobody("whose message the receive waits for is not recorded")


def _doubt_numbers(context: Context, cause: Cause, groups: frozenset[int]) -> Cause:
    """Sequence numbers decide which operations are compared with each other."""
    here = {place.group for place in context.waits.at(cause.places)}
    if cause.mismatch is not None:
        here.add(cause.mismatch.group)
    if not here & groups:
        return cause
    return cause.doubted(
        "which records belong to one operation is inferred from their order and times"
    )


def doubt_logs(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt what a log says with an ambiguous rank or place, or without its end."""
    claims = context.trace.claims
    local = {c.reporter for c in claims if c.details.get("by_local_rank")}
    announced = any(c.details.get("announced") for c in claims)
    others = context.trace.only_logs and _may_be_more(context)
    cut, heard_from = cut_short(context.trace), frozenset(context.front.rank.tolist())
    found = []
    for cause in causes:
        if local.intersection(cause.culprits) and cause.verdict is Verdict.RANK_CRASHED:
            cause = cause.doubted(
                "the log gives a local rank or a task number, which on another node is another rank"
            )
        silent = set(cause.culprits).difference(heard_from)
        if cut and silent and cause.verdict in (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED):
            who = rank_s(sorted(silent))
            cause = cause.naming_nobody(f"whether {who} spoke in the missing part of this log")
        if others and cause.verdict is Verdict.STUCK_COLLECTIVE and not cause.culprits:
            cause = cause.naming_nobody(
                "the rank of a process that ended and is none of those that were heard of"
            )
        if announced:  # and no source said that it waits
            lack = "what was issued is known from the log's announcements, and some may be missing"
            cause = cause.doubted(lack)
        found.append(cause)
    return found


def _may_be_more(context: Context) -> bool:
    """Whether a log mentions a process that may be none of the ranks heard of.

    If nothing states the number of ranks, an exception without a rank is such a sign: one that a
    rank caught looks the same.
    """
    claims, ranks = context.trace.claims, context.trace.ranks.values()
    if any(c.details.get("unheard") for c in claims):
        return True
    gave_up_ns = min((c.at_ns for c in claims if c.kind == "timeout" and c.at_ns), default=0)
    raised = [c for c in claims if c.details.get("unattributed")]
    before = any(not (gave_up_ns and c.at_ns > gave_up_ns) for c in raised)
    return before and not any(facts.world_size for facts in ranks)


def doubt_clocks(causes: list[Cause], inferred: Inferred) -> list[Cause]:
    """If clocks had to be aligned, only what needs no times is certain."""
    if not inferred.clocks:
        return causes
    doubt = "the clocks of the hosts disagree"
    return [c.doubted(doubt) if c.mismatch is None and not c.conflict else c for c in causes]


def doubt_gaps(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt what missing dumps, member lists, ends or records could refute."""
    silent = context.unrecorded | context.undumped
    missing = silent.union(context.trace.missing_ranks) - context.unreadable.keys()
    blank, from_logs = context.blank, _from_logs_alone(context)
    found = []
    for cause in causes:
        if cause.verdict is not Verdict.RANK_LOST:
            cause = cause.doubted(*_of_missing(context, missing))
        cause = cause.doubted(*_of_unseen(context, cause, from_logs=from_logs))
        majority = cause.mismatch is not None or cause.verdict in _OF_THE_MOST
        if majority and cause.is_certain and from_logs:  # a log may hold only some of the ranks
            cause = replace(cause, confidence=Confidence.LIKELY)
        cause = cause.doubted(*_of_no_dates(context, cause))
        cause = cause.doubted(*_of_no_record(context, cause, blank))
        found.append(_doubt_completeness(context, cause))
    return found


def _doubt_completeness(context: Context, cause: Cause) -> Cause:
    """Everybody who was heard of waits there, but their number is odd: one more may be missing."""
    if cause.verdict is not Verdict.STUCK_COLLECTIVE or cause.culprits:
        return cause
    trace = context.trace
    known = context.known_ranks
    if not (_unlisted(context, cause) and cause.victims >= known and lacks_last_rank(trace)):
        return cause
    return cause.naming_nobody(
        f"what rank {max(known) + 1} does: if there is one, it left nothing, and all may wait for "
        f"it (nothing says how many ranks there are, and {len(known)} is an unusual number)"
    )


def _of_missing(context: Context, missing: frozenset[int]) -> Iterator[str]:
    """What was not collected or cannot be read, whomever the answer names."""
    if missing:
        yield f"{rank_s(missing)} left no dump"
    if unread := context.unreadable.keys():
        yield f"the files of {rank_s(unread)} cannot be read"


def _of_unseen(context: Context, cause: Cause, *, from_logs: bool) -> Iterator[str]:
    """What the accused may be doing instead, and who belongs to the group that waits for them."""
    processes = [context.processes.get(rank) for rank in cause.culprits]
    unseen = any(process is None or process.state == "unknown" for process in processes)
    if cause.verdict is Verdict.P2P_UNMATCHED and cause.is_certain and unseen:
        # One side has a half too many or the other one too few: dumps alone do not show which.
        yield "nothing shows what that rank does instead"
    if cause.verdict is Verdict.MISSING_RANK and from_logs and unseen:
        # It may wait in another group with a longer timeout, of which its watchdog says nothing.
        yield "the log does not say what that rank does instead"
    if _unlisted(context, cause):
        yield "the group's members are not listed; the ranks with dumps stand in for them"


def _of_no_dates(context: Context, cause: Cause) -> Iterator[str]:
    """Without arrival times in the dumps, a moving job looks like a stuck one."""
    dumps = any(source.format in formats.DUMPS for source in context.trace.sources)
    nobody = cause.verdict is Verdict.STUCK_COLLECTIVE and not cause.culprits and cause.is_certain
    if dumps and nobody and not any(place.began_ns for place in context.waits.at(cause.places)):
        yield "nothing says for how long these ranks have waited"


def _of_no_record(context: Context, cause: Cause, blank: frozenset[int]) -> Iterator[str]:
    """What the records of the accused leave out, or how they ended."""
    if cause.verdict is Verdict.RANK_EXITED and _status_unseen(context, cause):
        yield "nobody saw with which status the accused ended"
    if cause.verdict is Verdict.MISSING_RANK and (silent := blank.intersection(cause.culprits)):
        yield f"the dump of {rank_s(silent)} lists nothing, not even how far it had come"
    for rank in cause.culprits:
        facts = context.trace.ranks.get(rank)
        if facts is not None and facts.is_placed_by_order and facts.initialized is False:
            yield (
                f"that process {facts.pid} is rank {rank} follows from the order in which its "
                "parent started its processes"
            )
        if facts is not None and facts.unobservable:
            yield f"rank {rank}: {', '.join(facts.unobservable)} leaves no record"


def _unlisted(context: Context, cause: Cause) -> bool:
    """Whether no source lists the members of the group; a p2p operation names its peer itself.

    Ranks that were heard of stand in for them, unless ranks that wait elsewhere would not be heard
    of: dumps that list only unfinished entries do not show who else belongs to the group. If nobody
    is accused, a rank that was not heard of may be the one all wait for.
    """
    place = shown_place(context, cause)
    if place is None or place.p2p or place.group < 0:
        return False
    group = context.trace.groups[place.group]
    one_more = context.lists_in_part or cause.verdict is Verdict.STUCK_COLLECTIVE
    return not group.ranks or (one_more and not group.listed)


def _from_logs_alone(context: Context) -> bool:
    """Whether no operation was recorded: all were inferred from text."""
    flags, synthetic = context.trace.records["flags"], int(Flag.SYNTHETIC)
    return bool((flags[:1] & synthetic).all() and (flags & synthetic).all())


def _status_unseen(context: Context, cause: Cause) -> bool:
    """Whether a rank that left quietly may have timed out: it had not said that it was done."""
    facts = [context.trace.ranks[rank] for rank in cause.culprits if rank in context.trace.ranks]
    return any(
        f.exit is not None and f.exit.kind == "clean" and f.exit.code is None and not f.finalized
        for f in facts
    )
