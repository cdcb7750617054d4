"""Doubts from what was not collected, cannot be read, or had to be inferred."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.observability import cut_off, cut_short, is_text_alone
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.records.coverage import lacks_last_rank
from hangscope.diagnosis.wording.phrases import capital, rank_s
from hangscope.trace.job_log.hangscope_output import OWN_REPORT
from hangscope.trace.model import NONE

OF_THE_MOST = (Verdict.STUCK_COLLECTIVE, Verdict.DEADLOCK_CYCLE)
"""Verdicts that depend on the number of ranks."""
_COUNTERS_LEFT = "only counters are left: the file is cut or damaged"


def missing_dumps(context: Context, cause: Cause) -> str:
    """A rank left no record: it could show somebody else at fault."""
    missing = context.unrecorded.union(context.trace.missing_ranks)
    missing -= context.unreadable.keys()
    lost = cause.verdict is Verdict.RANK_LOST
    return f"{rank_s(missing)} left no record" if missing and not lost else ""


def unreadable_files(context: Context, cause: Cause) -> str:
    """The file of a rank exists and cannot be read."""
    unread = context.unreadable.keys()
    if not unread or cause.verdict is Verdict.RANK_LOST:
        return ""
    return f"the files of {rank_s(unread)} cannot be read"


def inferred_members(context: Context, cause: Cause) -> str:
    """The members of a group decide who is missing from it."""
    if any(p.group in context.inferred.members for p in context.waits.at(cause.places)):
        return "the group's members are inferred: no source lists them"
    return ""


def unlisted_members(context: Context, cause: Cause) -> str:
    """A send or receive names its peer itself; for a collective, ranks that were heard of stand in
    for members that no source lists, unless ranks that wait elsewhere would not be heard of."""
    place = shown_place(context, cause)
    if place is None or place.p2p or place.group < 0:
        return ""
    group = context.trace.groups[place.group]
    one_more = context.lists_in_part or cause.verdict is Verdict.STUCK_COLLECTIVE
    if group.ranks and (group.listed or not one_more):
        return ""
    return "no source lists the group's members; the ranks that were heard of stand in for them"


def one_rank_more(context: Context, cause: Cause) -> str:
    """Everybody who was heard of waits there, but their number is odd: one more may be missing."""
    known = context.known_ranks
    all_here = not cause.culprits and cause.victims >= known
    if not (all_here and unlisted_members(context, cause) and lacks_last_rank(context.trace)):
        return ""
    return (
        f"what rank {max(known) + 1} does: if there is one, it left nothing, and all may wait for "
        f"it (nothing says how many ranks there are, and {len(known)} is an unusual number)"
    )


def inferred_wait(context: Context, cause: Cause) -> str:
    """That a send or receive waits follows from how many the other side issued."""
    rows = {place.row for place in context.waits.at(cause.places)}
    if not rows & context.inferred.halves:
        return ""
    return "that a send or receive waits is inferred: the other side issued fewer"


def unnamed_sender(context: Context, cause: Cause) -> str:
    """A cycle through a receive that names no sender stands only if nobody else could send."""
    takers = _accused_takers(context, cause)
    closed = all(_no_other_can_send(context, *taker) for taker in takers.items())
    return "" if closed else "whose message the receive waits for is not recorded"


def counted_sender(context: Context, cause: Cause) -> str:
    """Which rank owes what a receive from any source waits for follows from how often each sent."""
    takers = _accused_takers(context, cause)
    return "a receive from any source does not say whom it waits for" if takers else ""


def _accused_takers(context: Context, cause: Cause) -> dict[int, int]:
    """The accused that wait in the cause's places only to receive from any source, each with its
    group."""
    here = context.waits.at(cause.places)
    named = {
        rank
        for p in here
        for rank in p.waiters
        if p.half is None or p.half.is_send or p.half.peer != NONE
    }
    takers = {p.half.rank: p.group for p in here if p.half and p.half.rank not in named}
    return {rank: group for rank, group in takers.items() if rank in cause.culprits}


def _no_other_can_send(context: Context, taker: int, group: int) -> bool:
    """Whether all members of a group are seen to wait for the rank that receives from any."""
    others = {*context.trace.groups[group].ranks} - {taker}
    return others <= context.waits.reachers([taker]) and others.isdisjoint(context.hidden)


def counters_left(context: Context, cause: Cause) -> str:
    """Of a file that is cut, the counters show how far its rank had come, not what it waits in."""
    cut = cut_off(context.trace)
    concerned = cut.intersection(cause.culprits)
    if cause.verdict in OF_THE_MOST:
        concerned |= cut & context.waits.waiters_at(cause.places)
    return f"of {rank_s(sorted(concerned))} {_COUNTERS_LEFT}" if concerned else ""


def newest_records_lost(context: Context, cause: Cause) -> str:
    """The counters of a cut file accuse its rank only of not having come where nobody uses sends
    and receives, in which it might wait instead, or of standing in what others recorded."""
    named = cut_off(context.trace).intersection(cause.culprits)
    here = context.waits.at(cause.places)
    pairs = context.front.p2p.any() or context.lists_in_part
    if not named:
        return ""
    if cause.verdict is Verdict.STUCK_COLLECTIVE and (not pairs or all(p.row >= 0 for p in here)):
        return ""
    absent = {rank for place in here for rank in place.absent}
    if cause.verdict is Verdict.MISSING_RANK and named <= absent and not pairs:
        return ""
    return f"what {rank_s(sorted(named))} issued last: the file is cut or damaged before that"


def logs_alone(context: Context, cause: Cause) -> str:
    """What the most do decides, and a log may hold only some of the ranks."""
    majority = cause.mismatch is not None or cause.verdict in OF_THE_MOST
    return "a log may hold only some of the ranks" if majority and context.from_logs_alone else ""


def announced_in_log(context: Context, cause: Cause) -> str:
    """What was issued is known from lines that announce it."""
    if not any(claim.details.announced for claim in context.trace.claims):
        return ""
    return "what was issued is known from the log's announcements, and some may be missing"


def excerpt(context: Context, cause: Cause) -> str:
    """Ranks that an excerpt of a log does not mention may speak in the rest."""
    silent = set(cause.culprits).difference(context.front.rank.tolist())
    if not silent or not cut_short(context.trace):
        return ""
    return f"whether {rank_s(sorted(silent))} spoke in the missing part of this log"


def ended_unnamed(context: Context, cause: Cause) -> str:
    """A log mentions a process that may be none of the ranks heard of.

    Where nothing states the number of ranks, an exception without a rank is such a sign: one that a
    rank caught looks the same.
    """
    trace = context.trace
    if cause.culprits or not is_text_alone(trace):
        return ""
    times = [c.at_ns for c in trace.claims if c.kind == "timeout" and c.at_ns]
    gave_up_ns = min(times, default=0)
    raised = any(
        c.details.unattributed and not (gave_up_ns and c.at_ns > gave_up_ns) for c in trace.claims
    )
    counted = any(facts.world_size for facts in trace.ranks.values())
    unheard = any(c.details.unheard for c in trace.claims)
    if not unheard and (counted or not raised):
        return ""
    return "the rank of a process that ended and is none of those that were heard of"


def local_number(context: Context, cause: Cause) -> str:
    """A log gives a number that another node gives as well, and no recorder saw the rank end."""
    ranks = context.trace.ranks
    local = {c.reporter for c in context.trace.claims if c.details.by_local_rank}
    named = [r for r in cause.culprits if r in local and r in ranks]
    if all(ranks[r].heartbeat_ns for r in named):
        return ""
    return "the log gives a local rank or a task number, which on another node is another rank"


def own_report(context: Context, cause: Cause) -> str:
    """HangScope's own report in a log rests on more than the log."""
    said = [c.text for c in context.trace.claims if c.kind == OWN_REPORT]
    subject = f"{capital(rank_s(cause.culprits))} " if cause.culprits else ""
    if not is_text_alone(context.trace) or any(text.startswith(subject) for text in said):
        return ""
    return f"HangScope had said in this log: {shortened(said[0])}" if said else ""
