"""Rewinds a hang to the moment the first rank timed out: what came after is not part of it.

A rank that times out releases its locks and connections. Others then return from their waits and
issue further operations, and in the end every rank seems to have been everywhere. The same goes for
what a rank issues on its way out once somebody ends the job: in a signal handler, in a ``finally``
clause, at exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.exits.late_arrivals import MARGIN_NS, gave_up_ns, rewind_counters
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.trace.facts import LEFT
from hangscope.trace.model import Flag, RankFacts, State, Trace
from hangscope.trace.units import SECOND_NS

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
    records, moments = trace.records, _until_ns(trace, first, at_ns)
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
    until_ns = {r: _moment_ns(trace, r, first, at_ns) for r in trace.ranks}
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


def _moment_ns(trace: Trace, rank: int, first: int, at_ns: int) -> int:
    """The moment after which what a rank did no longer counts."""
    host = trace.ranks[first].host
    near = bool(host) and rank in trace.ranks and trace.ranks[rank].host == host
    return at_ns if near else at_ns + MARGIN_NS


def _until_ns(trace: Trace, first: int, at_ns: int) -> npt.NDArray[np.int64]:
    """Per record the moment after which it no longer counts."""
    ranks = trace.records["rank"].astype(np.int64)
    near = [rank for rank in trace.ranks if _moment_ns(trace, rank, first, at_ns) == at_ns]
    return np.where(np.isin(ranks, near), at_ns, at_ns + MARGIN_NS)


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
    alone = (records["flags"] & int(Flag.P2P)) == 0
    undone = {"enqueued": records[issued & alone], "completed": records[(ended | issued) & alone]}
    rewind_counters(members, undone)
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
