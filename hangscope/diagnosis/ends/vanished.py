"""Ranks that ended together with whatever could have seen it: a host that vanished.

Read on another machine, a ring without a note of an end says as little as one of a process that
lives. The other ranks tell: connections close when a process ends.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.processes.failures import is_about_others
from hangscope.trace.model import ExceptionFacts, RankFacts, Trace

_CLOSED = re.compile(
    r"connection (?:was )?(?:closed|reset)|(?:closed|reset) by peer|remote process exited",
    re.IGNORECASE,
)
_BEATS = 2
"""A heartbeat may have been written just before, and the next one been late."""


def with_vanished(trace: Trace) -> Trace:
    """The trace, in which the ranks of a host have ended whose connections all others lost.

    That is concluded only where the first failure is such a connection, where every rank of the
    other hosts is known to have ended, none of them in order, and where nothing was heard of this
    host since.
    """
    silent = [facts for facts in trace.ranks.values() if _nobody_knows(facts)]
    others = [facts for facts in trace.ranks.values() if not _nobody_knows(facts)]
    hosts = {facts.host for facts in silent}
    if trace.live or trace.missing_ranks or len(hosts) != 1 or hosts & {f.host for f in others}:
        return trace
    if any(f.alive is not False or (f.exit and f.exit.kind == "clean") for f in others):
        return trace
    failures = [f.exception for f in others if f.exception is not None and f.exception.at_ns]
    first = min(failures, key=lambda failure: failure.at_ns, default=None)
    if first is None or not _lost_a_peer(first):
        return trace
    late_ns = [int(_BEATS * 1e9 * (facts.heartbeat_interval_s or 1)) for facts in silent]
    heard_ns = max(f.heartbeat_ns - late for f, late in zip(silent, late_ns, strict=True))
    if heard_ns > first.at_ns:
        return trace
    gone = {facts.rank: replace(facts, alive=False) for facts in silent}
    return replace(trace, ranks={**trace.ranks, **gone})


def _nobody_knows(facts: RankFacts) -> bool:
    """Whether a rank has recorded, and neither it nor anybody else tells whether it has ended."""
    return facts.alive is None and facts.exit is None and facts.heartbeat_ns > 0


def _lost_a_peer(failure: ExceptionFacts) -> bool:
    """Whether it is of a connection between ranks that the other side has closed."""
    return bool(_CLOSED.search(failure.message)) and is_about_others(failure) is True
