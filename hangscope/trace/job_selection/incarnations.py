"""Separates the incarnations of a job whose rings share one run id and attempt.

Some launches give a job no id (DeepSpeed's launcher, mpirun, ranks passed as arguments). Then the
rendezvous address is the only name that all ranks agree on, and the next job has the same one: its
rings end up beside those of the previous job, under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a ring was created, by which process, and when that process was last seen alive (ns)."""

    rank: int
    created_ns: int
    process: tuple[str, int]
    """Machine and process id; one process may start recording more than once."""
    last_seen_ns: int
    rendezvous: str = ""
    """Where the process meets the other ranks; empty if unknown."""


@dataclass(frozen=True, slots=True)
class LaunchedRing:
    """A ring's lifetime and the parent of its process (machine, process id)."""

    start: Lifetime
    launcher: tuple[str, int]


def in_same_incarnation(own: Sequence[LaunchedRing], others: Sequence[LaunchedRing]) -> list[bool]:
    """For each ring of another attempt, whether it belongs to the same incarnation as ``own``.

    Each node's launcher counts attempts by the failures of its own ranks. When a rank of one node
    fails, the ranks of the other nodes restart under a different attempt number. A ring belongs to
    this incarnation if its process was still alive when the newest of ``own`` began and its
    launcher has started none of ``own``.
    """
    newest: dict[int, LaunchedRing] = {}
    for member in sorted(own, key=lambda m: m.start.created_ns):
        newest[member.start.rank] = member
    if not newest:
        return [False] * len(others)
    began_ns = min(member.start.created_ns for member in newest.values())
    launchers = {member.launcher for member in newest.values()}
    return [
        member.start.rank not in newest
        and member.launcher not in launchers
        and member.start.last_seen_ns >= began_ns
        for member in others
    ]


def in_newest_incarnation(starts: Sequence[Lifetime]) -> list[bool]:
    """For each ring, whether it belongs to the incarnation that began last.

    A rank recorded by two processes shows that there were two incarnations. Every other ring is
    assigned to the incarnation whose start is closer to its own, unless its process was still alive
    when the newest one began.
    """
    by_rank: dict[int, list[Lifetime]] = {}
    for start in sorted(starts, key=lambda s: s.created_ns):
        by_rank.setdefault(start.rank, []).append(start)
    newest = {rank: own[-1].process for rank, own in by_rank.items()}
    replaced = [s for s in starts if s.process != newest[s.rank]]
    if not replaced:
        return [True] * len(starts)
    again = {s.rank for s in replaced}
    before_ns = max(s.created_ns for s in replaced)
    began_ns = min(by_rank[rank][-1].created_ns for rank in again)
    return [
        start.process == newest[start.rank]
        if start.rank in again
        else start.last_seen_ns >= began_ns
        or start.created_ns - before_ns > began_ns - start.created_ns
        for start in starts
    ]
