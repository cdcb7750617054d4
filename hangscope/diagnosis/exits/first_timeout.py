"""Rewinds a hang to the moment the first rank timed out: what came after is not part of it.

A rank that times out releases its locks and connections. Others then return from their waits and
issue further operations, and in the end every rank seems to have been everywhere; so does one that
was busy elsewhere and comes to where the others have waited in vain. The same goes for what a rank
issues on its way out once somebody ends the job: in a signal handler, in a ``finally`` clause, at
exit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.processes.failures import waited_in_vain
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.trace.facts import LEFT
from hangscope.trace.model import Flag, RankFacts, State, Trace
from hangscope.trace.units import SECOND_NS

MARGIN_NS = SECOND_NS
"""Aligned clocks of different hosts deviate by less."""
_MS_NS = 1_000_000


def rewound_to_first_timeout(trace: Trace) -> Trace:
    """The trace without anything issued or finished after a rank timed out in a stalled job.

    Clocks of other hosts may deviate from that rank's by `MARGIN_NS`. A job that still moved at
    that moment is left unchanged: operations in flight then prove nothing.
    """
    gave_up, left = gave_up_ns(trace) | _expired_ns(trace), _left_ns(trace)
    if not gave_up and not left:
        return trace
    first, at_ns = min([*gave_up.items(), *left.items()], key=lambda item: item[1])
    host = trace.ranks[first].host
    until_ns = {
        rank: at_ns if host and facts.host == host else at_ns + MARGIN_NS
        for rank, facts in trace.ranks.items()
    }
    records = trace.records
    near = [rank for rank, moment_ns in until_ns.items() if moment_ns == at_ns]
    moments = np.where(np.isin(records["rank"], near), at_ns, at_ns + MARGIN_NS)
    issued = records["created_ns"] > moments
    ended = (records["completed_ns"] > moments) & (records["state"] == int(State.COMPLETED))
    if not (issued | ended).any():
        return trace
    before = np.concatenate(
        [records["created_ns"][~issued], records["completed_ns"][~ended & ~issued]]
    )
    last_ns = int(before.max(initial=0))
    if at_ns - last_ns < standstill_s(trace) * SECOND_NS:
        return trace
    if first not in gave_up and not _somebody_waits(trace, issued, ended):
        return trace  # a program that computed for long before its end
    leaving = {r: _signalled_to_end(trace.ranks[r], until_ns[r]) for r in left}
    trace = replace(trace, ranks={**trace.ranks, **leaving})
    return _rewound(trace, issued, ended, until_ns)


def _expired_ns(trace: Trace) -> dict[int, int]:
    """Ranks that aborted without a message after a timeout had expired, and when it had (ns).

    A watchdog releases all communicators before it ends the process: waits return, and the program
    continues for a moment.
    """
    bounds = rank_bounds(trace)
    found: dict[int, int] = {}
    for rank, facts in trace.ranks.items():
        end = facts.exit
        if end is None or not facts.aborted_silently or rank not in bounds:
            continue
        rows = trace.records[slice(*bounds[rank])]
        limit = rows["created_ns"] + rows["timeout_ms"].astype(np.int64) * _MS_NS
        passed = (rows["timeout_ms"] > 0) & (rows["state"] != int(State.COMPLETED))
        passed &= limit <= end.at_ns
        if passed.any():
            found[rank] = int(limit[passed].max())
    return found


def _somebody_waits(
    trace: Trace, issued: npt.NDArray[np.bool_], ended: npt.NDArray[np.bool_]
) -> bool:
    """Whether a rank was waiting for an operation before those ``issued`` and ``ended`` too late.

    A failed operation was waited for if it is its rank's last: when it failed is not recorded.
    """
    records = trace.records
    flags = records["flags"]
    alone = (flags & int(Flag.P2P | Flag.ASYNC)) == int(Flag.P2P | Flag.ASYNC)
    unseen = (flags & int(Flag.UNOBSERVED | Flag.RETIRED)) != 0
    unseen |= alone & ((flags & int(Flag.WAITED)) == 0)  # an ``isend`` holds nobody up
    unfinished = records["state"] != int(State.COMPLETED)
    if (~issued & (ended | (unfinished & ~unseen))).any():
        return True
    for low, high in rank_bounds(trace).values():
        kept = np.flatnonzero(~issued[low:high])
        newest = low + int(kept[-1]) if len(kept) else -1
        if newest >= 0 and unfinished[newest] and flags[newest] & int(Flag.FAILED):
            return True
    return False


def _left_ns(trace: Trace) -> dict[int, int]:
    """Ranks that have only been on their way out since some moment (ns)."""
    leaving = (trace.records["flags"] & int(Flag.LEAVING)) != 0
    left: dict[int, int] = {}
    for rank, (low, high) in rank_bounds(trace).items() if leaving.any() else ():
        stayed = np.flatnonzero(~leaving[low:high])
        first = low + int(stayed[-1]) + 1 if len(stayed) else low
        if first < high:
            left[rank] = int(trace.records["created_ns"][first]) - 1
    return left


def _facts_at(facts: RankFacts, until_ns: int, last_ns: int) -> RankFacts:
    """The facts about a process, without where its threads and phases were afterwards.

    What a thread was called away from after its last operation (at ``last_ns``) is what it had been
    in before, even if another rank was called away first.
    """
    threads = tuple(
        t
        for t in facts.threads
        if (t.sampled_ns >= last_ns if t.source == LEFT else t.sampled_ns <= until_ns)
    )
    phases = tuple(p for p in facts.phases if p.since_ns <= until_ns)
    return replace(facts, threads=threads or facts.threads, phases=phases)


def _signalled_to_end(facts: RankFacts, until_ns: int) -> RankFacts:
    """A rank that was called away to its end: neither a failure nor a clean exit after that
    explains anything before."""
    error, end = facts.exception, facts.exit
    if error is not None and error.at_ns > until_ns:
        error = None
    if end is not None and end.kind == "signal":
        end = replace(end, by_launcher=True)
    elif end is not None and end.kind in ("clean", "exception", "code"):
        status = "" if end.code is None else f" (exit status {end.code})"
        end = replace(end, kind="unknown", by_launcher=True, text=f"told to end{status}")
    return replace(facts, exception=error, exit=end)


def _rewound(
    trace: Trace,
    issued: npt.NDArray[np.bool_],
    ended: npt.NDArray[np.bool_],
    until_ns: Mapping[int, int],
) -> Trace:
    """The trace without records ``issued`` too late, and with those that ``ended`` too late
    reopened.

    ``until_ns``: the moment for each rank.
    """
    records, members = trace.records.copy(), trace.members.copy()
    records["state"][ended] = int(State.SCHEDULED)
    records["completed_ns"][ended] = 0
    collective = (records["flags"] & int(Flag.P2P)) == 0
    pairs = zip(members["rank"].tolist(), members["group"].tolist(), strict=True)
    place = {pair: index for index, pair in enumerate(pairs)}
    for counter, undone in (("enqueued", issued), ("completed", ended | issued)):
        for row in records[undone & collective]:
            index = place.get((int(row["rank"]), int(row["group"])))
            if index is not None:
                before = int(row["collective_seq"]) - 1
                members[counter][index] = min(int(members[counter][index]), before)
    kept = replace(trace, records=records[~issued], members=members)
    last_ns = {rank: int(kept.records["created_ns"][high - 1])
               for rank, (low, high) in rank_bounds(kept).items() if high > low}  # fmt: skip
    return replace(
        kept,
        ranks={
            rank: _facts_at(facts, until_ns[rank], last_ns.get(rank, 0))
            for rank, facts in trace.ranks.items()
        },
    )


def came_too_late(
    process: ProcessState, waiters: Sequence[ProcessState | None], ranks: Mapping[int, RankFacts]
) -> bool:
    """Whether a rank failed only because all ranks that had waited for it timed out and ended.

    Its own end comes after theirs and explains nothing: until then it was elsewhere. ``ranks``: on
    one host, times are exact.
    """
    if process.end is not End.CRASHED or not process.secondary or not process.end_ns:
        return False
    known = [one for one in waiters if one is not None and one.gone and one.secondary]
    here = ranks[process.rank].host
    exact = here is not None and all(ranks[one.rank].host == here for one in known)
    before_ns = process.end_ns - (0 if exact else MARGIN_NS)
    return (
        len(known) == len(waiters) > 0
        and any(one.failure.waited_in_vain for one in known)
        and all(0 < one.end_ns < before_ns for one in known)
    )


def gave_up_ns(trace: Trace) -> dict[int, int]:
    """Ranks that ended because their wait timed out, and when (ns)."""
    recorded = rank_bounds(trace)
    return {
        rank: facts.exception.at_ns
        for rank, facts in trace.ranks.items()
        if facts.exception is not None
        and rank in recorded
        and facts.exception.is_main_thread
        and facts.exception.at_ns
        and waited_in_vain(facts.exception)
    }
