"""Separates the incarnations of a job whose processes share one run id and attempt, or do not.

Some launches give a job no id (DeepSpeed's launcher, mpirun, ranks passed as arguments). Then the
rendezvous address is the only name that all ranks agree on, and the next job has the same one: its
rings end up beside those of the previous job, under the same name. The other way round, a node that
was given another port, or the same host under another name, appears to be a run of its own; and the
nodes of an elastic job count their attempts independently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hangscope.trace.job_selection.processes import RankProcess


def in_same_incarnation(own: Sequence[RankProcess], others: Sequence[RankProcess]) -> list[bool]:
    """For each process of another attempt, whether it belongs to the same incarnation as ``own``.

    Each node's launcher counts attempts by the failures of its own ranks. When a rank of one node
    fails, the ranks of the other nodes restart under a different attempt number. A process belongs
    to this incarnation if it was still alive when the newest of ``own`` began and its launcher has
    started none of ``own``.
    """
    newest: dict[int, RankProcess] = {}
    for member in sorted(own, key=lambda m: m.created_ns):
        newest[member.rank] = member
    if not newest:
        return [False] * len(others)
    began_ns = min(member.created_ns for member in newest.values())
    launchers = {member.launcher for member in newest.values()}
    return [
        member.rank not in newest
        and member.launcher not in launchers
        and member.last_seen_ns >= began_ns
        for member in others
    ]


def in_newest_incarnation(present: Sequence[RankProcess]) -> list[bool]:
    """For each process, whether it belongs to the incarnation that began last.

    A rank recorded by two processes shows that there were two incarnations. Every other process is
    assigned to the incarnation whose start is closer to its own, unless it was still alive when the
    newest one began.
    """
    by_rank: dict[int, list[RankProcess]] = {}
    for one in sorted(present, key=lambda one: one.created_ns):
        by_rank.setdefault(one.rank, []).append(one)
    newest = {rank: own[-1].key for rank, own in by_rank.items()}
    replaced = [one for one in present if one.key != newest[one.rank]]
    if not replaced:
        return [True] * len(present)
    again = {one.rank for one in replaced}
    before_ns = max(one.created_ns for one in replaced)
    began_ns = min(by_rank[rank][-1].created_ns for rank in again)
    return [
        one.key == newest[one.rank]
        if one.rank in again
        else one.last_seen_ns >= began_ns or one.created_ns - before_ns > began_ns - one.created_ns
        for one in present
    ]


def runs_of_same_job(runs: Mapping[str, Sequence[RankProcess]], main: str) -> list[str]:
    """The names of the runs that are one job with ``main``, ``main`` included.

    Runs of one job overlap in time, expect the same world size, have no rank in common, and
    together have no more ranks than that size. Concurrent jobs each have a rank 0.
    """
    found = [main]
    ranks = {one.rank for one in runs[main]}
    for name, run in sorted(runs.items(), key=lambda item: (-len(_ranks(item[1])), item[0])):
        if name != main and _is_same_job(run, runs[main], ranks):
            found.append(name)
            ranks |= _ranks(run)
    return found


def _ranks(run: Sequence[RankProcess]) -> set[int]:
    return {one.rank for one in run}


def _is_same_job(run: Sequence[RankProcess], main: Sequence[RankProcess], taken: set[int]) -> bool:
    sizes = {one.world_size for one in (*run, *main)}
    return (
        len(sizes) == 1
        and taken.isdisjoint(_ranks(run))
        and max(_ranks(run)) < min(sizes)
        and min(one.created_ns for one in run) <= max(one.last_seen_ns for one in main)
        and min(one.created_ns for one in main) <= max(one.last_seen_ns for one in run)
    )
