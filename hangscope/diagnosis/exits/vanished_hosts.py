"""Hosts that vanished: ranks that ended along with everything that could have seen it.

Read on another machine, a ring without a recorded end looks like that of a live process. The other
ranks decide: connections close when a process ends, and if none closes (the link went with the
host), the others are heard from long afterwards.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """The trace with the ranks of vanished hosts marked as ended.

    All others lost their connections before these were heard of again; or the host fell silent when
    the others began to wait, long before they ended. A ring copied while the job hung was still
    written after that, and one copied earlier knows less than what the others have finished with
    its rank.
    """
    of_host: dict[str | None, list[RankFacts]] = {}
    for facts in trace.ranks.values():
        of_host.setdefault(facts.host, []).append(facts)
    silent = [own for own in of_host.values() if all(map(_end_unknown, own))]
    quiet = {facts.rank for own in silent for facts in own}
    others = [facts for rank, facts in trace.ranks.items() if rank not in quiet]
    if not silent or not others:
        return trace
    last_ns, broke_ns = max(map(_heard_ns, others)), _broke_ns(trace, others)
    gone: dict[int, RankFacts] = {}
    for own in silent:
        members = {facts.rank for facts in own}
        beat_ns, late_ns = max(f.heartbeat_ns for f in own), max(map(_late_ns, own))
        issued_ns, finished_ns = _newest(trace, {facts.rank for facts in others}, members)
        in_wait = finished_ns - late_ns <= beat_ns <= issued_ns + late_ns
        if (in_wait and last_ns - beat_ns >= _SILENT_NS) or beat_ns - late_ns <= broke_ns:
            gone |= {facts.rank: _ended(facts) for facts in own}
    return replace(trace, ranks={**trace.ranks, **gone}) if gone else trace


def _broke_ns(trace: Trace, others: list[RankFacts]) -> int:
    """When the first failure was that of a connection, if every one of these ranks is known to have
    ended and none cleanly; else 0."""
    if trace.live or trace.missing_ranks:
        return 0
    if any(f.alive is not False or (f.exit and f.exit.kind == "clean") for f in others):
        return 0
    failures = [f.exception for f in others if f.exception is not None and f.exception.at_ns]
    first = min(failures, key=lambda failure: failure.at_ns, default=None)
    return first.at_ns if first is not None and lost_a_peer(first) else 0


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
