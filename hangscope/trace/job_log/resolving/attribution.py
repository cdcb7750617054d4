"""Attributes exceptions and stacks whose lines state only a local rank or pid."""

from __future__ import annotations

import re

from hangscope.trace.helper_stacks import describe_helper
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import LoggedException
from hangscope.trace.job_log.readers.stacks import threads_of
from hangscope.trace.job_log.resolving.local_ranks import spans_nodes
from hangscope.trace.job_log.resolving.unattributed import dead_thread_claim

_SIGNED = re.compile(r"Rank (\d{1,7})(?::|, (?:node|host|device)\b)")


def attribute_exceptions(evidence: Evidence) -> None:
    """Assign exceptions of writers known only by local rank or pid to ranks."""
    several = spans_nodes(evidence)
    several_in_a_task = evidence.elastic or evidence.ends.failures or evidence.shared_tasks
    processes = evidence.processes
    for trouble, local, pid, machine in evidence.raised.pending:
        node = machine.node
        rank = processes.of_pid(pid, machine)
        if rank is None and local is not None:
            rank = processes.of_local(local, machine)
            if rank is not None and processes.is_counted(rank):
                evidence.of(rank).by_local_rank = True
            if rank is None and not node and not several:
                rank = local
                evidence.of(rank).by_local_rank = True
                evidence.of(rank).local_as_rank = not processes.is_one_node
        unknown = rank is None and local is None and pid is None
        if unknown and node is not None and not several_in_a_task:
            rank = node  # srun --label with one task per rank
            evidence.of(rank).by_local_rank = True
        if unknown and rank is None:
            rank = _signed_by(trouble)
        if rank is not None:
            evidence.of(rank).exceptions.append(trouble)
        elif local is not None or node is not None or pid is not None:
            evidence.raised.unranked.append(trouble)
        else:
            evidence.raised.anonymous.append(trouble)
            if trouble.thread_name != "MainThread":
                evidence.claims.append((dead_thread_claim(trouble), None))
    evidence.raised.pending.clear()


def _signed_by(trouble: LoggedException) -> int | None:
    """The rank that a message begins with as whoever wrote it (``Rank 11: found NaN``)."""
    found = _SIGNED.match(trouble.message)
    return int(found.group(1)) if found else None


def attribute_stacks(evidence: Evidence) -> None:
    """Assign stacks to ranks; the rest stays unattributed.

    Helpers and launchers are dropped: where they stand says nothing about a rank.
    """
    rest = []
    several = spans_nodes(evidence)
    for seen in evidence.stacks:
        rank = seen.rank
        if rank is None and seen.pid is not None:
            rank = evidence.processes.of_pid(seen.pid, seen.machine)
        if rank is None and seen.local_rank is not None:
            rank = evidence.processes.of_local(seen.local_rank, seen.machine)
            if rank is None and not several:
                rank = seen.local_rank
        main = next((t.stack for t in threads_of(seen) if t.is_main), ())
        if not main or describe_helper(main):
            evidence.helpers += any(frames for _, _, frames in seen.threads)
            continue
        if rank is None:
            rest.append(seen)
        else:
            evidence.of(rank).seen = seen
    evidence.stacks[:] = rest
