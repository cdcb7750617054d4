"""Doubts about waits: too short, cut short by an end, or without recorded completions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.failure_messages import lost_a_peer
from hangscope.diagnosis.processes.process_state import End, is_unseen
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.diagnosis.waiting.timeouts import NEARLY, Timeouts, recorded_timeouts
from hangscope.diagnosis.waiting.unnoticed_completions import just_finished
from hangscope.diagnosis.waiting.wait_duration import SLOW_S
from hangscope.trace import formats
from hangscope.trace.model import Flag, State, flagged
from hangscope.trace.units import SECOND_NS

_OF_TIME = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED, Verdict.STUCK_COLLECTIVE)
"""Verdicts that a moving job would also get at some moments."""
_FAR, _HOUR_S = 3, 3600.0
_SHORT_TIMEOUT_S, _USUAL_TIMEOUT_S = 600.0, 1800.0
"""The shortest and the longest default timeout torch ever had."""


def doubt_staggered_dumps(context: Context, causes: list[Cause]) -> list[Cause]:
    """If no state is recorded and every rank is at a different place, name nobody: the dumps may
    show a moving job, dumped rank by rank.

    In a hang, ranks wait together. This only affects dumps of backends that record no completion
    (native Gloo) when nothing is known about the processes.
    """
    if context.trace.live or any(h.state != "unknown" for h in context.processes.values()):
        return causes
    return [
        replace(
            cause, verdict=Verdict.INCONCLUSIVE, culprits=(), confidence=Confidence.LIKELY
        ).with_unknown(
            "this backend records no completion and each rank is at a different place: the job "
            "may have been moving while the dumps were taken"
        )
        if _is_staggered(context, cause)
        else cause
        for cause in causes
    ]


def _is_staggered(context: Context, cause: Cause) -> bool:
    """Whether every waiter of the accused is at a place of its own and nothing shows
    completions."""
    if cause.verdict is not Verdict.MISSING_RANK:
        return False
    places = context.waits.at(cause.places)
    groups, steps = {p.group for p in places}, {p.seq for p in places}
    if len(groups) != 1 or len(steps) < 2 or len(steps) < sum(len(p.waiters) for p in places):
        return False
    records = context.trace.records
    here = records["group"] == places[0].group
    return bool(flagged(records["flags"][here], Flag.UNOBSERVED).any())


def doubt_short_waits(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt dumps written before anybody had waited for a minute: a rank may just be slow.

    No timeout triggered such dumps, and nothing in them shows what the accused does. Mismatches
    need no waiting time.
    """
    trace = context.trace
    kinds = {source.format for source in trace.sources}
    if trace.live or not kinds <= {*formats.DUMPS, formats.LOG}:
        return causes
    if any(f.alive is not None or f.exit or f.phases for f in trace.ranks.values()):
        return causes
    if any(claim.kind == "timeout" for claim in trace.claims):
        return causes  # a log says that somebody had waited for long
    shown = {rank for rank, facts in trace.ranks.items() if facts.threads}
    first_s, last_s = _timeouts_s(context)
    longest_s = context.longest_wait_s(context.waits.places)
    several = len({c.culprits for c in causes if c.verdict in _OF_TIME and not c.crossed}) > 1
    moved = just_finished(context)

    def why(cause: Cause) -> str | None:
        if cause.verdict not in _OF_TIME or cause.crossed or _is_shown(cause, shown):
            return None
        waited = context.longest_wait_s(context.waits.at(cause.places))
        if 0 < waited < SLOW_S:
            return (
                f"the dumps were written when nobody had waited there for more than {waited:.0f} s"
            )
        if several and longest_s < NEARLY * first_s:
            return (
                "ranks are missing at several places at once, as in a job that is moving, and "
                "nobody had waited for the timeout when the dumps were written"
            )
        if longest_s > _FAR * last_s + _HOUR_S:
            return (
                "the files are older than any timeout: it is not known how long anybody had waited "
                "when they were written"
            )
        moving = moved.intersection(context.waits.waiters_at(cause.places))
        if not moving:
            return None
        return (
            f"{rank_list(tuple(sorted(moving)))} had finished something just before being "
            "dumped: the job may have been moving"
        )

    return [cause.doubted(doubt) if (doubt := why(cause)) else cause for cause in causes]


def doubt_ended_early(context: Context, causes: list[Cause]) -> list[Cause]:
    """A collective is stuck only if all members stay in it, and not just for a moment.

    A member that ended unobserved, well before the others stopped waiting, may have ended on its
    own. If connections broke right away, whatever broke them hit a moving job.
    """
    limit_s = standstill_s(context.trace)

    def judged(cause: Cause) -> Cause:
        if cause.verdict is not Verdict.STUCK_COLLECTIVE or cause.culprits:
            return cause
        waited_s = _until_connections_broke_s(context, cause)
        if waited_s is not None and waited_s < limit_s:
            return cause.naming_nobody(
                f"what broke the connections: nobody had waited for more than {waited_s:.1f} s"
            )
        return cause.doubted(*_ended_early(context, cause, limit_s))

    return [judged(cause) for cause in causes]


def _until_connections_broke_s(context: Context, cause: Cause) -> float | None:
    """How long the first waiter had waited when a peer's connection was lost; None after other
    ends."""
    waiters = context.waits.waiters_at(cause.places)
    lost_ns = []
    for rank in waiters:
        error = context.trace.ranks[rank].exception
        if error is not None and lost_a_peer(error):
            lost_ns.append(error.at_ns)
        elif context.processes[rank].end is not End.TORN_DOWN:
            return None
    since_ns = [place.began_ns for place in context.waits.at(cause.places)]
    if not lost_ns or not all((*lost_ns, *since_ns)):
        return None
    return max(0.0, (min(lost_ns) - min(since_ns)) / SECOND_NS)


def _ended_early(context: Context, cause: Cause, limit_s: float) -> Iterator[str]:
    """For each place, the ranks that fell silent well before the others stopped waiting there."""
    for place in context.waits.at(cause.places):
        ages = {rank: context.age_s(rank, place.began_ns) for rank in place.waiters}
        lasted = {rank: age for rank, age in ages.items() if age is not None}
        longest = max(lasted.values(), default=0.0)
        early = [
            rank
            for rank, age in sorted(lasted.items())
            if age < limit_s <= longest
            and context.processes[rank].gone
            and is_unseen(context.trace.ranks[rank])
        ]
        if early:
            yield f"nothing was heard from {rank_list(tuple(early))} while the others waited"


def _is_shown(cause: Cause, shown: set[int]) -> bool:
    """Whether stacks show what all of the accused are doing."""
    return bool(cause.culprits) and shown.issuperset(cause.culprits)


def stood_still(context: Context) -> bool:
    """Whether the dumps' dates show that somebody had waited for long.

    Files that were copied later are dated hours after any timeout, which proves nothing.
    """
    waited_s = context.longest_wait_s(context.waits.places)
    _, last_s = _timeouts_s(context)
    return SLOW_S <= waited_s <= _FAR * last_s + _HOUR_S


def _timeouts_s(context: Context) -> Timeouts:
    """After how long (s) the first waiter times out, and the last."""
    return recorded_timeouts(context) or Timeouts(_SHORT_TIMEOUT_S, _USUAL_TIMEOUT_S)


def doubt_unobserved(context: Context, cause: Cause) -> Cause:
    """Doubt accused ranks that may themselves wait in their last operation, as no completions are
    recorded.

    No such accusation is certain; among several such ranks, any may wait for another.
    """
    if _rests_on_counters(context, cause):
        cause = cause.doubted("only the backend's counters show what has not finished")
    if not cause.places:
        return cause
    if cause.verdict is Verdict.STUCK_COLLECTIVE:
        unobserved = cause.is_certain and _is_unobserved(context, cause)
        return cause.doubted("what has finished is not recorded") if unobserved else cause
    if cause.verdict is not Verdict.MISSING_RANK:
        return cause
    confidence = Confidence.AMBIGUOUS if len(cause.culprits) > 1 else Confidence.LIKELY
    if _without_pairs(context, cause.culprits) and cause.is_certain:
        cause = replace(cause, confidence=confidence).with_unknown(
            "this recorder does not record sends and receives: that rank may wait in one"
        )
    if _may_wait_elsewhere(context, cause):
        cause = replace(cause, confidence=confidence)
        cause = cause.with_unknown("whether the last operation of the accused has finished")
    return cause


def _is_unobserved(context: Context, cause: Cause) -> bool:
    """Whether no source shows that the hanging operation is unfinished."""
    places = context.waits.at(cause.places)
    if any(place.counted for place in places):
        return True
    native = _without_pairs(context, places[0].waiters)
    unobserved = native and _all_unobserved(context, [place.row for place in places])
    return unobserved or _may_be_held_up(context, cause)


def _may_wait_elsewhere(context: Context, cause: Cause) -> bool:
    """Whether an accused rank may wait in its last operation, in a different group than it is
    waited for in."""
    records = context.trace.records
    groups = {place.group for place in context.waits.at(cause.places)}
    last = [row for rank in cause.culprits if (row := context.last_row(rank)) >= 0]
    return any(
        int(records["flags"][row]) & int(Flag.UNOBSERVED)
        and (int(records["group"][row]) not in groups or int(records["flags"][row]) & int(Flag.P2P))
        for row in last
    )


def _rests_on_counters(context: Context, cause: Cause) -> bool:
    """Whether only counters show that the waiters of the accused are waiting."""
    counted = [place.counted for place in context.waits.at(cause.places)]
    cycle = cause.verdict is Verdict.DEADLOCK_CYCLE and any(counted)
    missing = cause.verdict is Verdict.MISSING_RANK and bool(counted) and all(counted)
    return cycle or missing


def _all_unobserved(context: Context, rows: list[int]) -> bool:
    flags = context.trace.records["flags"]
    return all(row < 0 or int(flags[row]) & int(Flag.UNOBSERVED) for row in rows)


def _may_be_held_up(context: Context, cause: Cause) -> bool:
    """Whether a waiter has an earlier operation of which no completion was recorded."""
    records = context.trace.records
    hidden = flagged(records["flags"], Flag.UNOBSERVED)
    if not hidden.any():
        return False
    hidden &= records["state"] != int(State.COMPLETED)
    for place in context.waits.at(cause.places):
        for rank in place.waiters:
            low, high = context.bounds.get(rank, (0, 0))
            part = records[low:high]
            here = part["group"] == place.group
            own = np.flatnonzero(here & (part["collective_seq"] == place.seq))
            before = int(own[0]) if len(own) else len(part)
            if (hidden[low:high] & ~here)[:before].any():
                return True
    return False


def _without_pairs(context: Context, ranks: tuple[int, ...]) -> bool:
    """Whether all evidence on the ranks comes from Gloo's own recorder, which lacks sends and
    receives.

    It is recognised by an omission: no operation has a completion time.
    """
    trace = context.trace
    for rank in ranks:
        low, high = context.bounds.get(rank, (0, 0))
        process = context.processes.get(rank)
        if low == high or process is None or process.state != "unknown" or process.stack:
            return False
        part = trace.records[low:high]
        backends = {trace.signatures[s].backend for s in np.unique(part["signature"]).tolist()}
        pairs = part["flags"] & int(Flag.P2P | Flag.SYNTHETIC)
        if part["completed_ns"].any() or pairs.any() or backends != {"gloo"}:
            return False
    return True
