"""Hand-built jobs for the reports and the terminal application.

`hang()` is the running example: a job in which one rank is asleep in its data loader while all
others wait for it in an all-reduce. The clock is fixed, so that pictures of it never change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.model import (
    Confidence,
    Diagnosis,
    Finding,
    GroupRef,
    LastOperation,
    RankReport,
    Side,
    Verdict,
    WaitEdge,
)
from hangscope.trace.model import (
    MEMBER_DTYPE,
    RECORD_DTYPE,
    Frame,
    Group,
    RankFacts,
    Records,
    Signature,
    Source,
    Stack,
    State,
    ThreadStack,
    Trace,
)

SECOND = 1_000_000_000
NOW_NS = 1_800_000_000 * SECOND

MAIN = Frame("<module>", "/job/train.py", 131)
LOOP = Frame("train", "/job/train.py", 104)
BACKWARD: Stack = (Frame("backward", "/job/train.py", 88), LOOP, MAIN)
LOADER: Stack = (
    Frame("load_batch", "/job/data.py", 41),
    Frame("__next__", "/job/data.py", 27),
    Frame("train", "/job/train.py", 97),
    MAIN,
)
REDUCE = Signature(
    "all_reduce", "gloo:all_reduce", "gloo", ((4096,),), ((4096,),), ("Float",), ("Float",), "SUM"
)
GATHER = Signature(
    "_all_gather_base",
    "gloo:_all_gather_base",
    "gloo",
    ((1024,),),
    ((2048,),),
    ("Half",),
    ("Half",),
)


@dataclass(frozen=True)
class Job:
    """A trace and what is to be said about it."""

    trace: Trace
    diagnosis: Diagnosis


def hang(
    world: int = 4,
    culprit: int = 2,
    steps: int = 17,
    waited_s: float = 12.0,
    per_step: int = 6,
    hosts: int = 8,
    loader: Stack = LOADER,
    backward: Stack = BACKWARD,
) -> Job:
    """`world` ranks in a group "dp" and pairs in "tp"; `culprit` sleeps before its last step.

    Every step has `per_step` all-reduces in "dp" and, for the pair groups, two all-gathers.
    """
    everyone = tuple(range(world))
    pairs = (
        Group(str(1 + first // 2), f"tp{first // 2}", (first, first + 1), 0, "gloo")
        for first in range(0, world - 1, 2)
    )
    groups = (Group("0", "dp", everyone, backend="gloo"), *pairs)
    records, members = _history(world, culprit, steps, waited_s, per_step)
    stuck = steps * per_step + 1
    trace = Trace(
        records=records,
        members=members,
        groups=groups,
        signatures=(REDUCE, GATHER),
        stacks=(backward, loader),
        ranks={r: _facts(r, world, hosts, loader if r == culprit else backward) for r in everyone},
        sources=tuple(
            Source(f"rank_{r}.ring", "hangscope-ring", "1", r, int((records["rank"] == r).sum()))
            for r in everyone
        ),
        world_size=world,
        live=True,
        looks=2,
        timeout_s=10.0,
        observed_ns=NOW_NS,
    )
    return Job(trace, _verdict(world, culprit, stuck, waited_s, hosts, loader, backward))


def _history(
    world: int, culprit: int, steps: int, waited_s: float, per_step: int
) -> tuple[Records, Records]:
    """Steps of 100 ms; everything complete up to the stall, `waited_s` before `NOW_NS`."""
    stall = NOW_NS - int(waited_s * SECOND)
    rows, members = [], []
    step_ns = SECOND // 10
    for rank in range(world):
        number, reduces, gathers = 0, 0, 0
        pair = rank // 2 + 1 if rank // 2 * 2 + 1 < world else -1
        jitter = (rank * 7919) % 997 * 1000
        for step in range(steps):
            begin = stall - (steps - step) * step_ns + jitter
            for i in range(2 if pair > 0 else 0):
                number, gathers = number + 1, gathers + 1
                at = begin + i * step_ns // 20
                rows.append(_row(rank, pair, gathers, number, 1, at, at + step_ns // 40))
            for i in range(per_step):
                number, reduces = number + 1, reduces + 1
                at = begin + step_ns // 3 + i * step_ns // (2 * per_step)
                rows.append(_row(rank, 0, reduces, number, 0, at, at + step_ns // (3 * per_step)))
        if rank != culprit:
            number, reduces = number + 1, reduces + 1
            rows.append(_row(rank, 0, reduces, number, 0, stall + jitter, 0))
        done = steps * per_step
        members.append((rank, 0, reduces, reduces, done, 0, 0, stall, stall - step_ns // 2, 0))
        if pair > 0:
            members.append((rank, pair, gathers, gathers, gathers, 0, 0, stall, stall, 0))
    return np.array(rows, RECORD_DTYPE), np.array(members, MEMBER_DTYPE)


def _row(
    rank: int, group: int, seq: int, record: int, signature: int, created: int, completed: int
) -> tuple[int, ...]:
    state = State.COMPLETED if completed else State.STARTED
    what = (rank, group, seq, 0, seq, record, signature, 0, -1, -1)
    when = (created, created + 1000, completed, 0, 1, 10_000, int(state), 0)
    return what + when


def _facts(rank: int, world: int, hosts: int, stack: Stack) -> RankFacts:
    return RankFacts(
        rank=rank,
        host=f"node{rank * hosts // world if world >= hosts else 0}",
        pid=4709 + rank,
        local_rank=rank,
        world_size=world,
        alive=True,
        process_state="sleeping",
        heartbeat_ns=NOW_NS,
        initialized=True,
        threads=(ThreadStack("MainThread", True, stack, NOW_NS),),
        observed_ns=NOW_NS,
    )


def _verdict(
    world: int,
    culprit: int,
    stuck: int,
    waited_s: float,
    hosts: int,
    loader: Stack,
    backward: Stack,
) -> Diagnosis:
    others = tuple(r for r in range(world) if r != culprit)
    host = f"node{culprit * hosts // world if world >= hosts else 0}"
    summary = f"Rank {culprit} never joined all_reduce #{stuck} in group dp (ranks 0–{world - 1})"
    finding = Finding(
        verdict=Verdict.MISSING_RANK,
        culprits=(culprit,),
        victims=others,
        confidence=Confidence.CERTAIN,
        summary=summary,
        why=f"rank {culprit} is still in load_batch; the others finished step 17 without it",
        fix=(
            f"look at data.py:41 on host {host} (pid {4709 + culprit}); if loaders differ in"
            " length, equalise them or use Join"
        ),
        playbook="D9, D22",
        group=GroupRef("0", "dp", tuple(range(world))),
        seq=stuck,
        op="all_reduce",
        sides=(
            Side(
                others,
                "all_reduce",
                stuck,
                ((4096,),),
                ((4096,),),
                ("Float",),
                stack=backward,
                full_stack=backward,
                differs_at=1,
                waiting_s=waited_s,
            ),
            Side(
                (culprit,),
                stack=loader,
                full_stack=loader,
                differs_at=2,
                activity="in load_batch",
                last_op="all_reduce",
                last_seq=stuck - 1,
                last_age_s=waited_s + 0.04,
            ),
        ),
        evidence=(
            f"{world - 1} of {world} members issued all_reduce #{stuck}",
            f"rank {culprit} sleeps and its stack did not move between two looks",
        ),
        began_ns=NOW_NS - int(waited_s * SECOND),
    )
    ranks = tuple(
        RankReport(
            r,
            "culprit" if r == culprit else "victim",
            "sleeping" if r == culprit else "waiting",
            f"node{r * hosts // world if world >= hosts else 0}",
            4709 + r,
            () if r == culprit else (culprit,),
            None if r == culprit else waited_s,
            LastOperation("0", stuck - 1 if r == culprit else stuck, "all_reduce"),
            loader if r == culprit else backward,
        )
        for r in range(world)
    )
    return Diagnosis(
        Verdict.MISSING_RANK,
        (culprit,),
        Confidence.CERTAIN,
        summary,
        world,
        "gloo",
        waited_s,
        True,
        ranks,
        (finding,),
        tuple(WaitEdge(r, culprit, "0", stuck, "all_reduce") for r in others),
    )


def healthy(world: int = 4) -> Job:
    """The same job while it still moves."""
    job = hang(world, waited_s=0.05)
    ranks = tuple(
        replace(r, role="bystander", state="running", waiting_for=(), waiting_s=None)
        for r in job.diagnosis.ranks
    )
    return Job(
        job.trace,
        Diagnosis(
            Verdict.HEALTHY,
            (),
            Confidence.CERTAIN,
            "Nothing waits on anything for longer than it should",
            world,
            "gloo",
            live=True,
            ranks=ranks,
            notes=("rank 1 is the slowest: it comes 40 ms after the others",),
        ),
    )


def deadlock() -> Job:
    """Ranks 0 and 1 use two groups in opposite orders; 2 and 3 wait for them."""
    job = hang(4)
    side_a = Side((0,), "all_reduce", 9, stack=BACKWARD, differs_at=0, waiting_s=30.0)
    side_b = Side((1,), "broadcast", 4, root=0, stack=LOADER, differs_at=0, waiting_s=30.0)
    finding = Finding(
        Verdict.DEADLOCK_CYCLE,
        (0, 1),
        (2, 3),
        Confidence.AMBIGUOUS,
        "Ranks 0 and 1 wait on each other: all_reduce #9 in dp against broadcast #4 in tp0",
        "two groups are used in opposite orders",
        "issue the two collectives in the same order on every rank",
        "D19",
        GroupRef("0", "dp", (0, 1, 2, 3)),
        9,
        "all_reduce",
        (side_a, side_b),
        ("rank 0 waits on rank 1 in dp", "rank 1 waits on rank 0 in tp0"),
        ("the dump of rank 3 was written 4 s before the others",),
    )
    edges = (
        WaitEdge(0, 1, "0", 9, "all_reduce"),
        WaitEdge(1, 0, "1", 4, "broadcast"),
        WaitEdge(2, 1, "0", 9, "all_reduce"),
        WaitEdge(3, 1, "0", 9, "all_reduce"),
    )
    return Job(
        job.trace,
        replace(
            job.diagnosis,
            verdict=Verdict.DEADLOCK_CYCLE,
            culprits=(0, 1),
            confidence=Confidence.AMBIGUOUS,
            summary=finding.summary,
            findings=(finding, *job.diagnosis.findings),
            wait_for=edges,
            warnings=("rank_3: 2 records were half written and left out",),
        ),
    )


def inconclusive() -> Diagnosis:
    """One rank's log, and nothing else."""
    summary = "One rank waited in broadcast #7 until its timeout; the evidence names no rank"
    finding = Finding(
        Verdict.INCONCLUSIVE,
        (),
        (5,),
        Confidence.LIKELY,
        summary,
        fix="collect the logs or dumps of the other 7 ranks and run analyze on all of them",
        unknowns=("what ranks 0–4 6–7 were doing: no source speaks of them",),
    )
    return Diagnosis(
        Verdict.INCONCLUSIVE, (), Confidence.LIKELY, summary, 8, "nccl", 600.0, findings=(finding,)
    )


EVIL = "evil\x1b[31m[red]\u202e<script>alert(1)</script>\x07\udc80\n{{7*7}}"


def hostile() -> Job:
    """Every name is an attempt to steer a terminal, Rich, or a browser."""
    frame = Frame(EVIL, f"/job/{EVIL}.py", 3)
    job = hang(4, loader=(frame, MAIN), backward=(frame, LOOP, MAIN))
    diagnosis = job.diagnosis
    finding = diagnosis.findings[0]
    bad = replace(
        finding,
        summary=EVIL,
        why=EVIL,
        fix=EVIL,
        playbook=EVIL,
        op=EVIL,
        group=GroupRef(EVIL, EVIL, (0, 1, 2, 3)),
        evidence=(EVIL,),
        unknowns=(EVIL,),
        sides=tuple(
            replace(s, op=EVIL, activity=EVIL, last_op=EVIL, dtypes=(EVIL,)) for s in finding.sides
        ),
    )
    return Job(
        replace(
            job.trace,
            groups=tuple(replace(g, desc=EVIL) for g in job.trace.groups),
            signatures=tuple(replace(s, op=EVIL, raw=EVIL) for s in job.trace.signatures),
        ),
        replace(
            diagnosis,
            summary=EVIL,
            backend=EVIL,
            findings=(bad,),
            warnings=(EVIL,),
            notes=(EVIL,),
            ranks=tuple(
                replace(r, host=EVIL, phase=EVIL, exit=EVIL, last=LastOperation(EVIL, 3, EVIL))
                for r in diagnosis.ranks
            ),
            wait_for=tuple(replace(e, group=EVIL, op=EVIL) for e in diagnosis.wait_for),
            sources=(Source(EVIL, EVIL),),
        ),
    )
