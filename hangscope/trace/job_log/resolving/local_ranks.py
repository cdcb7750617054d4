"""Maps local ranks to ranks; each further node has the same local ranks."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.process_ends import LauncherFailure
from hangscope.trace.job_log.evidence.process_ranks import Process
from hangscope.trace.signals import SIGABRT, codes_of

ABORTED = codes_of(SIGABRT)
"""Exit statuses of a process that aborted itself, as a watchdog does after a timeout."""
_ON_ONE_NODE = 8
"""Ranks from this one on may be on another node, however few processes a log mentions."""


def spans_nodes(evidence: Evidence) -> bool:
    """Whether a local rank in this log may differ from the rank."""
    locals_seen = {n.local_rank for n in evidence.ranks.values() if n.local_rank is not None}
    hosts = {n.host for n in evidence.ranks.values() if n.host}
    largest = max(evidence.ranks, default=0)
    processes = evidence.processes
    if len(hosts) > 1 or (bool(locals_seen) and largest > max(locals_seen)):
        return True
    if processes.nodes > 1 or len(processes.machines) > 1:
        return True
    # Each node has one agent; the logs of several may be concatenated or interleaved.
    ends = evidence.ends
    if len({agent.pid for agent in ends.agents}) > 1 or ends.agents_go_back:
        return True
    # In a hang nearly every rank on a launcher's node prints something. If most ranks up to the
    # largest are silent, or there are more ranks than a node has, it is another node's launcher.
    failed = {Process(f.pid, f.machine) for f in evidence.ends.failures if f.pid is not None}
    ended = failed | evidence.ends.stopped
    if largest >= max(_ON_ONE_NODE, len(ended)):
        return True
    heard = set(evidence.ranks) | {f.local_rank for f in evidence.ends.failures}
    return bool(evidence.ranks) and len(heard) * 2 <= largest + 1


def rank_of_ended_process(evidence: Evidence, failure: LauncherFailure) -> int | None:
    """The rank of a local rank that ended, if several nodes have written to the log.

    Among the ranks with this local rank, it is the one that did not give up waiting itself.
    """
    local, code = failure.local_rank, failure.exit_code
    known = [n for n in evidence.ranks.values() if n.local_rank is not None]
    per_node = max((n.local_rank or 0 for n in known), default=-1) + 1
    if any(n.rank % per_node != n.local_rank for n in known):
        return evidence.processes.of_local(
            local, failure.machine
        )  # as many on each node, in their order, or unknown
    first = evidence.processes.first_ranks(failure.machine) if local < per_node else []
    alike = [rank + local for rank in first]
    if len(alike) < 2:
        return alike[0] if alike else None
    quiet = [r for r in alike if r not in evidence.ranks or not evidence.ranks[r].operations]
    return quiet[0] if len(quiet) == 1 and code not in ABORTED else None
