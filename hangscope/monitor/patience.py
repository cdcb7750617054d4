"""From when on a wait is worth a word, learnt from the job itself.

Three things tell what is usual: how long ranks have waited before at the same call site in the same
group; how long the waiting ranks themselves took for the stretch that the awaited one is still on;
and whether it is at work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.processes.process_state import CHECKPOINT, is_working, process_of
from hangscope.diagnosis.waiting.without_timeout import LEAST_S
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.trace.model import RankFacts, Records, State, Trace

UNKNOWN_S = 9.0
"""The same where nothing tells what is usual."""
AT_WORK_S = 60.0
"""The same for a rank at work: a checkpoint, an evaluation, a compilation that others wait for."""
UNUSUAL = 3.0
"""A wait is unusual if it lasts this many times longer than any before it."""
PASSES = 3
"""So often must a call site have been passed before it tells what is usual."""
_COMPILER = re.compile(r"torch/_dynamo/|torch/_inductor/|/triton/")


class Waiting(NamedTuple):
    """What ranks wait in: operations, or the first meeting of all ranks."""

    records: Records
    meeting_ns: dict[int, int]
    """When each rank has begun to wait in ``init_process_group``."""

    @property
    def ranks(self) -> set[int]:
        """Who waits."""
        return {*self.records["rank"].tolist(), *self.meeting_ns}

    @property
    def since_ns(self) -> int:
        """When the first of them began to wait."""
        return min(map(int, [*self.records["created_ns"], *self.meeting_ns.values()]))

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """Rank and record id of each wait; the negated time of a meeting."""
        ids = zip(self.records["rank"].tolist(), self.records["record_id"].tolist(), strict=True)
        return frozenset({*ids, *((rank, -at) for rank, at in self.meeting_ns.items())})


def waiting_of(trace: Trace, ranks: Iterable[int]) -> Waiting:
    """What these ranks wait in: the newest unfinished record of each, or the meeting."""
    records, ranks = trace.records, list(ranks)
    open_ = records[np.isin(records["rank"], ranks) & (records["state"] != int(State.COMPLETED))]
    newest = {int(row["rank"]): number for number, row in enumerate(open_)}
    meeting_ns = {
        rank: phase.since_ns
        for rank in ranks
        if rank in trace.ranks and rank not in newest
        for phase in trace.ranks[rank].phases[-1:]
        if phase.name == INIT and phase.since_ns
    }
    return Waiting(open_[sorted(newest.values())], meeting_ns)


def usual_s(trace: Trace, waiting: Waiting) -> float | None:
    """The longest finished wait at the call sites of these operations; None if hardly any."""
    records, longest = trace.records, None
    if waiting.meeting_ns:
        return None
    for row in waiting.records:
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
    waiting: Waiting,
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
        What ranks wait in.
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
    if facts.process_state in ("running", "disk-sleep") or is_working(
        replace(facts, stack_moved=None)
    ):
        return True
    if any(_COMPILER.search(f.filename) or CHECKPOINT.search(f.name) for f in facts.main_stack):
        return True
    process = process_of(facts, None)
    # Polling for a key or a lock looks busy, too.
    return not blocked_in(process) and (bool(facts.stack_moved) or process.wakes)


def stretch_s(trace: Trace, waiting: Waiting) -> float:
    """How long the slowest of the waiting ranks itself took from its operation before to this one.

    From its start, if it is the first or the meeting.

    Ranks that all prepare data, evaluate or write for a minute are not ready in the same second.
    """
    stretches = [_stretch_ns(trace, int(r["rank"]), int(r["created_ns"])) for r in waiting.records]
    stretches += [_stretch_ns(trace, rank, at_ns) for rank, at_ns in waiting.meeting_ns.items()]
    return max(stretches, default=0) / 1e9


def _stretch_ns(trace: Trace, rank: int, until_ns: int) -> int:
    records = trace.records
    before = records[(records["rank"] == rank) & (records["created_ns"] < until_ns)]
    facts = trace.ranks.get(rank)
    since_ns = facts.started_ns if facts is not None else 0
    if len(before):
        done = before["completed_ns"][before["completed_ns"] <= until_ns]
        since_ns = max(int(before["created_ns"].max()), int(done.max(initial=0)))
    return until_ns - since_ns if since_ns else 0
