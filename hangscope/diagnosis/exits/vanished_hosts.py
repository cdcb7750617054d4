"""Hosts that vanished: ranks that ended along with everything that could have seen it.

Read on another machine, a ring without a recorded end looks like that of a live process. The other
ranks decide: connections close when a process ends, and if none closes (the link went with the
host), the others are heard from long afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.trace.model import ExitFacts, RankFacts, Trace

_BEATS = 2
"""One heartbeat may just have been written, and the next one be late."""
_SILENT_NS = 10 * 10**9
"""A rank heard of for this much longer has outlived the others."""


UNHEARD = "fell silent together with the whole host"
"""How such a rank ended."""


def with_vanished(trace: Trace) -> Trace:
    """The trace with the ranks of vanished hosts marked as ended."""
    of_host: dict[str | None, list[RankFacts]] = {}
    for facts in trace.ranks.values():
        of_host.setdefault(facts.host, []).append(facts)
    silent = {h: own for h, own in of_host.items() if all(map(_end_unknown, own))}
    others = [f for host, own in of_host.items() if host not in silent for f in own]
    if not silent or not others:
        return trace
    if _is_first_failure(trace, silent, others):
        gone = [replace(facts, alive=False) for own in silent.values() for facts in own]
    else:
        gone = [_ended(facts) for facts in _outlived(trace, silent, others)]
    return replace(trace, ranks={**trace.ranks, **{f.rank: f for f in gone}}) if gone else trace


def _is_first_failure(
    trace: Trace, silent: Mapping[str | None, list[RankFacts]], others: list[RankFacts]
) -> bool:
    """Whether all others lost the connections to these hosts, which were not heard of since.

    Inferred only if the first failure is such a connection, and if every rank of the other hosts is
    known to have ended, none of them cleanly.
    """
    gone = [facts for own in silent.values() for facts in own]
    if trace.live or trace.missing_ranks:
        return False
    if any(f.alive is not False or (f.exit and f.exit.kind == "clean") for f in others):
        return False
    failures = [f.exception for f in others if f.exception is not None and f.exception.at_ns]
    first = min(failures, key=lambda failure: failure.at_ns, default=None)
    if first is None or not lost_a_peer(first):
        return False
    return max(f.heartbeat_ns - _late_ns(f) for f in gone) <= first.at_ns


def _outlived(
    trace: Trace, silent: Mapping[str | None, list[RankFacts]], others: list[RankFacts]
) -> list[RankFacts]:
    """Ranks of hosts that fell silent when the others began to wait, long before these ended.

    A ring copied while the job hung was still written after that, and one copied earlier knows less
    than what the others have finished with its rank.
    """
    found: list[RankFacts] = []
    last_ns = max(map(_heard_ns, others))
    known = {facts.rank for facts in others}
    for own in silent.values():
        beat_ns, late_ns = max(f.heartbeat_ns for f in own), max(map(_late_ns, own))
        issued_ns, finished_ns = _newest(trace, known, {facts.rank for facts in own})
        if (
            last_ns - beat_ns >= _SILENT_NS
            and finished_ns - late_ns <= beat_ns <= issued_ns + late_ns
        ):
            found += own
    return found


def _newest(trace: Trace, ranks: Collection[int], members: Collection[int]) -> tuple[int, int]:
    """When these ranks last issued and last finished something in groups with these members
    (ns)."""
    groups = [n for n, g in enumerate(trace.groups) if not set(g.ranks).isdisjoint(members)]
    records = trace.records
    rows = records[np.isin(records["rank"], list(ranks)) & np.isin(records["group"], groups)]
    if not len(rows):
        return 0, 0
    return int(rows["created_ns"].max()), int(rows["completed_ns"].max())


def _ended(facts: RankFacts) -> RankFacts:
    return replace(
        facts,
        alive=False,
        exit=ExitFacts("unknown", at_ns=facts.heartbeat_ns, text=UNHEARD),
    )


def _heard_ns(facts: RankFacts) -> int:
    """When a process was last heard of."""
    ends = (facts.exit, facts.exception)
    return max([facts.heartbeat_ns, *(end.at_ns for end in ends if end is not None)])


def _late_ns(facts: RankFacts) -> int:
    return int(_BEATS * 1e9 * (facts.heartbeat_interval_s or 1))


def _end_unknown(facts: RankFacts) -> bool:
    """Whether a rank has recorded but nothing shows whether it ended."""
    return facts.alive is None and facts.exit is None and facts.heartbeat_ns > 0


_SAME_MOMENT_NS = 2 * 10**9
"""Heartbeats come about once a second."""


def accuse_all_vanished(context: Context, causes: list[Cause]) -> list[Cause]:
    """Also accuse ranks that fell silent together with an accused one."""
    silent = {r: h.end_ns for r, h in context.processes.items() if h.end_text == UNHEARD}
    return [_with_all_of_its_moment(cause, silent) for cause in causes]


def _with_all_of_its_moment(cause: Cause, silent: dict[int, int]) -> Cause:
    """The cause with all ranks that fell silent (when, in ns) at the same moment as one of the
    accused."""
    if cause.verdict is not Verdict.RANK_CRASHED or silent.keys().isdisjoint(cause.culprits):
        return cause
    moments = [silent[rank] for rank in cause.culprits if rank in silent]
    beside = {
        rank
        for rank, at_ns in silent.items()
        if min(abs(at_ns - moment) for moment in moments) <= _SAME_MOMENT_NS
    }
    culprits = tuple(sorted({*cause.culprits, *beside}))
    return replace(cause, culprits=culprits, victims=cause.victims - beside)
