"""A hang as it stood when the first rank gave up waiting: what came after is no part of it.

The rank that gives up lets go of its locks and connections. Others come out of what they waited
in and issue what comes next, and at the end everybody seems to have come everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.latecomers import MARGIN_NS, gave_up_ns, set_back
from hangscope.diagnosis.swept import standstill_s
from hangscope.trace.model import Flag, RankFacts, State, Trace

_SECOND_NS = 1_000_000_000


def before_the_first_gave_up(trace: Trace) -> Trace:
    """The trace without what was issued or finished once a rank had given up on a standing job.

    Clocks of other hosts than that rank's may be wrong by `MARGIN_NS`. A job that still moved at
    that moment is left as it is: there, what was under way says nothing.
    """
    gave_up = gave_up_ns(trace)
    if not gave_up:
        return trace
    first, at_ns = min(gave_up.items(), key=lambda item: item[1])
    until_ns = _until_ns(trace, first, at_ns)
    records = trace.records
    issued = records["created_ns"] > until_ns
    ended = (records["completed_ns"] > until_ns) & (records["state"] == int(State.COMPLETED))
    if not (issued | ended).any():
        return trace
    before = np.concatenate(
        [records["created_ns"][~issued], records["completed_ns"][~ended & ~issued]]
    )
    last_ns = int(before.max(initial=0))
    if at_ns - last_ns < standstill_s(trace) * _SECOND_NS:
        return trace
    return _rewound(
        trace, issued, ended, {r: _moment_ns(trace, r, first, at_ns) for r in trace.ranks}
    )


def _moment_ns(trace: Trace, rank: int, first: int, at_ns: int) -> int:
    """After which what a rank did is of no account."""
    host = trace.ranks[first].host
    near = bool(host) and rank in trace.ranks and trace.ranks[rank].host == host
    return at_ns if near else at_ns + MARGIN_NS


def _until_ns(trace: Trace, first: int, at_ns: int) -> npt.NDArray[np.int64]:
    """Per record the moment after which it is of no account."""
    ranks = trace.records["rank"].astype(np.int64)
    near = [rank for rank in trace.ranks if _moment_ns(trace, rank, first, at_ns) == at_ns]
    return np.where(np.isin(ranks, near), at_ns, at_ns + MARGIN_NS)


def _facts_at(facts: RankFacts, until_ns: int) -> RankFacts:
    """What is known of a process but where its threads stood, and in what phase, afterwards."""
    threads = tuple(t for t in facts.threads if t.sampled_ns <= until_ns)
    phases = tuple(p for p in facts.phases if p.since_ns <= until_ns)
    return replace(facts, threads=threads or facts.threads, phases=phases)


def _rewound(
    trace: Trace,
    issued: npt.NDArray[np.bool_],
    ended: npt.NDArray[np.bool_],
    until_ns: Mapping[int, int],
) -> Trace:
    """The trace without the records ``issued`` too late, and with those open that ``ended`` so.

    ``until_ns`` is the moment for each rank.
    """
    records, members = trace.records.copy(), trace.members.copy()
    records["state"][ended] = int(State.SCHEDULED)
    records["completed_ns"][ended] = 0
    alone = (records["flags"] & int(Flag.P2P)) == 0
    undone = {"enqueued": records[issued & alone], "completed": records[(ended | issued) & alone]}
    set_back(members, undone)
    ranks = {rank: _facts_at(facts, until_ns[rank]) for rank, facts in trace.ranks.items()}
    return replace(trace, records=records[~issued], members=members, ranks=ranks)
