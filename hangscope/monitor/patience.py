"""From when on a wait is worth a word, learnt from the job itself.

Three things tell what is usual: how long ranks have waited before at the same call site in the same
group; how long the waiting ranks themselves took for the stretch that the awaited one is still on;
and whether it is at work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import numpy as np

from hangscope.diagnosis.processes.process_state import CHECKPOINT, is_working
from hangscope.trace.model import RankFacts, Records, State, Trace

LEAST_S = 5.0
"""A shorter wait is nobody's business, however unusual."""
UNKNOWN_S = 9.0
"""The same where nothing tells what is usual."""
AT_WORK_S = 60.0
"""The same for a rank at work: a checkpoint, an evaluation, a compilation that others wait for."""
UNUSUAL = 3.0
"""A wait is unusual if it lasts this many times longer than any before it."""
PASSES = 3
"""So often must a call site have been passed before it tells what is usual."""
_WAKES_HZ = 1.0
"""A main thread that wakes up more often reads, writes or calls piecemeal."""
_COMPILER = re.compile(r"torch/_dynamo/|torch/_inductor/|/triton/")


def usual_s(trace: Trace, waiting: Records) -> float | None:
    """The longest finished wait at the call sites of these operations; None if hardly any."""
    records, longest = trace.records, None
    for row in waiting:
        same = (records["rank"] == row["rank"]) & (records["completed_ns"] > 0)
        for column in ("group", "signature", "stack"):
            same &= records[column] == row[column]
        took = (records["completed_ns"][same] - records["created_ns"][same]) / 1e9
        if len(took) < PASSES:
            return None
        longest = max(longest or 0.0, float(took.max()))
    return longest


def limit_s(
    trace: Trace,
    waiting: Records,
    awaited: Iterable[int],
    usual_s: float | None,
    busy: Collection[int],
) -> float:
    """From when on the wait is worth a word.

    Parameters
    ----------
    trace:
        The job.
    waiting:
        The newest unfinished record of each waiting rank.
    awaited:
        The ranks they wait for.
    usual_s:
        As `usual_s` says.
    busy:
        Ranks whose helper processes (compilers, workers of a data loader) are at work.
    """
    known = [trace.ranks[rank] for rank in awaited if rank in trace.ranks]
    at_work = any(is_at_work(facts) or facts.rank in busy for facts in known)
    peers_s = stretch_s(trace, waiting)
    if usual_s is None:
        # A first step, an evaluation: long by nature while somebody works.
        return float("inf") if at_work or not known else max(UNKNOWN_S, peers_s)
    return max(LEAST_S, AT_WORK_S if at_work else 0.0, UNUSUAL * usual_s, peers_s)


def is_at_work(facts: RankFacts) -> bool:
    """Whether a rank does what may take its time: computes, reads, writes, compiles or saves."""
    if is_working(facts) or facts.process_state in ("running", "disk-sleep"):
        return True
    if (facts.wakeups_hz or 0.0) > _WAKES_HZ:
        return True
    return any(_COMPILER.search(f.filename) or CHECKPOINT.search(f.name) for f in facts.main_stack)


def stretch_s(trace: Trace, waiting: Records) -> float:
    """How long the slowest of the waiting ranks itself took from its operation before to this one.

    Ranks that all prepare data, evaluate or write for a minute are not ready in the same second.
    """
    records, longest_ns = trace.records, 0
    for row in waiting:
        created_ns = int(row["created_ns"])
        before = records[(records["rank"] == row["rank"]) & (records["created_ns"] < created_ns)]
        facts = trace.ranks.get(int(row["rank"]))
        since_ns = facts.started_ns if facts is not None else 0
        if len(before):
            done = before["completed_ns"][before["completed_ns"] <= created_ns]
            since_ns = max(int(before["created_ns"].max()), int(done.max(initial=0)))
        if since_ns:
            longest_ns = max(longest_ns, created_ns - since_ns)
    return longest_ns / 1e9


def waiting_records(trace: Trace, ranks: Iterable[int]) -> Records:
    """The newest unfinished record of each of these ranks."""
    records = trace.records
    theirs = np.isin(records["rank"], list(ranks))
    open_ = records[theirs & (records["state"] != int(State.COMPLETED))]
    newest = {int(row["rank"]): number for number, row in enumerate(open_)}
    found: Records = open_[sorted(newest.values())]
    return found
