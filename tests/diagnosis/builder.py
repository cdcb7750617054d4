"""Hand-written traces: ``Job(4)``, then one line per operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.exits.primary_failures import judge_ends
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.waiting.graph_builder import GraphBuilder
from hangscope.trace.model import (
    MEMBER_DTYPE,
    RECORD_DTYPE,
    Flag,
    Frame,
    Group,
    RankFacts,
    Signature,
    Stack,
    State,
    ThreadStack,
    Trace,
)

NO_FLAG = Flag(0)
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


class Job:
    """Collects operations of virtual ranks; ``trace()`` returns the `Trace`.

    Times are in seconds after the start of the job. Operations are completed by default.
    """

    def __init__(self, world: int, *, live: bool = False, timeout_s: float = 10.0) -> None:
        self.world = world
        self.live = live
        self.timeout_s = timeout_s
        self.groups = [Group("0", "default_pg", tuple(range(world)))]
        self.rows: list[dict[str, Any]] = []
        self.members: list[dict[str, Any]] = []
        self.facts = {r: RankFacts(r, alive=True if live else None) for r in range(world)}
        self.signatures: list[Signature] = []
        self.stacks: list[Stack] = []
        self.seq: dict[tuple[int, int], int] = {}
        self.p2p: dict[tuple[int, int], int] = {}
        self.now = 0.0

    def group(self, *ranks: int, desc: str = "") -> int:
        """Add a group; returns its index."""
        self.groups.append(Group(str(len(self.groups)), desc, ranks))
        return len(self.groups) - 1

    def op(
        self,
        rank: int,
        op: str = "all_reduce",
        *,
        group: int = 0,
        size: tuple[int, ...] = (16,),
        out: tuple[int, ...] | None = None,
        dtype: str = "Float",
        reduce_op: str | None = "SUM",
        root: int = -1,
        peer: int = -1,
        done: bool = True,
        flags: Flag = NO_FLAG,
        line: int = 88,
        at: float | None = None,
        history: int = 0,
        function: str = "train",
    ) -> None:
        """One operation of one rank, issued ``at`` (default: one millisecond after the last)."""
        p2p = op in ("send", "recv")
        signature = Signature(
            op,
            op,
            "gloo",
            (size,),
            (out or size,),
            (dtype,),
            (dtype,),
            reduce_op if op in ("all_reduce", "reduce", "reduce_scatter") else None,
        )
        if signature not in self.signatures:
            self.signatures.append(signature)
        stack = (
            Frame(function, "/home/me/train.py", line),
            Frame("<module>", "/home/me/train.py", 1),
        )
        if stack not in self.stacks:
            self.stacks.append(stack)
        key = (rank, group)
        counter = self.p2p if p2p else self.seq
        if not flags & Flag.COALESCED_MEMBER:
            counter[key] = counter.get(key, 0) + 1
        self.now = max(self.now + 0.001, at or 0.0)
        created = START + int((at if at is not None else self.now) * SECOND)
        self.rows.append(
            {
                "rank": rank,
                "group": group,
                "collective_seq": self.seq.get(key, 0),
                "p2p_seq": self.p2p.get(key, 0),
                "signature": self.signatures.index(signature),
                "stack": self.stacks.index(stack),
                "peer": peer,
                "root": root,
                "created_ns": created,
                "completed_ns": created + 1000 if done else 0,
                "state": State.COMPLETED if done else State.SCHEDULED,
                "flags": flags | (Flag.P2P if p2p else Flag(0)),
                "history": history,
            }
        )

    def all(self, op: str = "all_reduce", *, group: int = 0, **how: Any) -> None:
        """Issue the operation on every member of the group."""
        for rank in self.groups[group].ranks:
            self.op(rank, op, group=group, **how)

    def steps(self, count: int) -> None:
        """An uneventful start: completed all_reduces on all ranks."""
        for _ in range(count):
            self.all()

    def rank(self, rank: int, **changes: Any) -> None:
        """Set facts about one rank."""
        self.facts[rank] = replace(self.facts[rank], **changes)

    def lose(self, *ranks: int) -> None:
        """Leave out the dumps of these ranks."""
        for rank in ranks:
            del self.facts[rank]
            self.rows = [r for r in self.rows if r["rank"] != rank]

    def trace(self, after_s: float = 60.0, **changes: Any) -> Trace:
        """The trace as seen ``after_s`` seconds after the last operation."""
        observed = START + int((self.now + after_s) * SECOND)
        rows = sorted(self.rows, key=lambda r: r["rank"])
        records = np.zeros(len(rows), RECORD_DTYPE)
        ids: dict[int, int] = {}
        for i, row in enumerate(rows):
            for name, value in row.items():
                records[name][i] = value
            ids[row["rank"]] = ids.get(row["rank"], 0) + 1
            records["record_id"][i] = ids[row["rank"]]
        members = np.zeros(len(self.members), MEMBER_DTYPE)
        for i, row in enumerate(self.members):
            for name, value in row.items():
                members[name][i] = value
        trace = Trace(
            records,
            members,
            tuple(self.groups),
            tuple(self.signatures),
            tuple(self.stacks),
            self.facts,
            world_size=self.world,
            live=self.live,
            looks=2 if self.live else 1,
            timeout_s=self.timeout_s,
            observed_ns=observed,
        )
        return replace(trace, **changes)


def judged(trace: Trace) -> tuple[Verdict, tuple[int, ...], Confidence]:
    """The verdict on a trace, its culprits and its confidence."""
    found = diagnose(trace)
    return found.verdict, found.culprits, found.confidence


def context_of(trace: Trace) -> Context:
    """What rules are given: the trace with its wait-for graph."""
    front, processes = frontiers(trace), judge_ends(trace)
    return Context(trace, front, processes, GraphBuilder(trace, front, processes).build())


def blame(diagnosis: Diagnosis) -> tuple[str, tuple[int, ...]]:
    """The verdict and its culprits."""
    return diagnosis.verdict.value, diagnosis.culprits


def stack_of(function: str, line: int = 41) -> tuple[ThreadStack, ...]:
    """The main thread of a rank that is in a user function."""
    frames = (Frame(function, "/home/me/data.py", line), Frame("<module>", "/home/me/train.py", 1))
    return (ThreadStack("MainThread", True, frames, START),)
