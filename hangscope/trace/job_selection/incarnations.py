"""Which rings of one run and attempt belong to its newest life.

Launchers that give a job no name of its own (DeepSpeed's, mpirun, ranks passed as arguments) leave
the rendezvous address as the only name on which all ranks agree, and that is the same again for the
next job. Its rings then come to lie beside those of the job before, under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """One ring: when it was made, by whom, and when its process was last heard of (ns)."""

    rank: int
    created_ns: int
    process: tuple[str, int]
    """Machine and process id: a process may begin recording more than once."""
    last_sign_ns: int
    meets_at: str = ""
    """Where it meets the other ranks, where that is known."""


@dataclass(frozen=True, slots=True)
class Member:
    """One ring, and who started its process: machine and process id of the parent."""

    start: Start
    launcher: tuple[str, int]


def beside(own: Sequence[Member], others: Sequence[Member]) -> list[bool]:
    """Which rings of other attempts live in the same life of the job as ``own``.

    Every node's launcher counts the attempts by the failures of its own ranks: when a rank of one
    node has failed, those of the others go on under another number. Who was there when the newest
    of ``own`` began, and was started by somebody who has started none of these, is one of them.
    """
    newest: dict[int, Member] = {}
    for member in sorted(own, key=lambda m: m.start.created_ns):
        newest[member.start.rank] = member
    if not newest:
        return [False] * len(others)
    began_ns = min(member.start.created_ns for member in newest.values())
    launchers = {member.launcher for member in newest.values()}
    return [
        member.start.rank not in newest
        and member.launcher not in launchers
        and member.start.last_sign_ns >= began_ns
        for member in others
    ]


def of_newest_life(starts: Sequence[Start]) -> list[bool]:
    """For each ring whether it belongs to the life that began last.

    A rank that two processes have recorded shows that there were two lives. Every other ring goes
    with the life it began closer to, unless its process was there when the newest one began.
    """
    by_rank: dict[int, list[Start]] = {}
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
        else start.last_sign_ns >= began_ns
        or start.created_ns - before_ns > began_ns - start.created_ns
        for start in starts
    ]
