"""Ranks that are stopped or whose GIL is held: what they had started, and what still holds them
up."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.process_state import process_of
from hangscope.trace import formats
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    KernelWait,
    RankFacts,
    Source,
    ThreadStack,
    Trace,
)
from tests.diagnosis.builder import SECOND, START, Job

HALTED: tuple[dict[str, Any], ...] = ({"process_state": "stopped"}, {"gil_blocked": True})


def recorded(job: Job) -> Trace:
    """The job as recorded by rings."""
    sources = tuple(Source(f"rank_{r}.ring", formats.RING, "3", r) for r in range(job.world))
    return job.trace(sources=sources)


def found_in(job: Job) -> list[tuple[Verdict, tuple[int, ...]]]:
    return [(f.verdict, f.culprits) for f in diagnose(recorded(job)).findings]


@pytest.mark.parametrize("halted", HALTED)
@pytest.mark.parametrize(("op", "roots"), [("broadcast", (0,)), ("scatter", (2, 0))])
def test_unfinished_operation_of_a_stopped_rank_may_have_completed(
    halted: dict[str, Any], op: str, roots: tuple[int, ...]
) -> None:
    """Two broadcasts of DDP that no Python code waits for: one rank could not record their
    completion."""
    job = Job(3, live=True)
    job.steps(3)
    for root in roots:
        for rank in range(3):
            job.op(rank, op, root=root, done=rank != 1, flags=Flag.ASYNC)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.rank(1, **halted)
    assert found_in(job) == [(Verdict.MISSING_RANK, (1,))]


@pytest.mark.parametrize("halted", HALTED)
@pytest.mark.parametrize("blocking", [True, False])
def test_rank_waiting_for_an_absent_one_is_a_victim_even_if_stopped(
    halted: dict[str, Any], blocking: bool
) -> None:
    """An operator attaches a debugger to rank 1, which waits for rank 2 while rank 0 waits for it.
    If its operation did not block its caller, it may have been anywhere."""
    job = Job(3, live=True)
    first, second = job.group(0, 1), job.group(1, 2)
    job.steps(3)
    job.op(1, group=second, done=False, flags=Flag(0) if blocking else Flag.ASYNC)
    job.op(0, group=first, done=False)
    job.rank(1, **halted)
    job.rank(2, process_state="sleeping")
    named = {rank for _, culprits in found_in(job) for rank in culprits}
    assert named == ({2} if blocking else {1, 2})


@pytest.mark.parametrize("halted", HALTED)
def test_operation_issued_without_waiting_makes_no_cycle(halted: dict[str, Any]) -> None:
    """Rank 1 has issued in a pair with rank 2 what rank 2 reaches only after a global step."""
    job = Job(3, live=True)
    pair = job.group(1, 2)
    job.steps(3)
    job.op(1, group=pair, done=False, flags=Flag.ASYNC)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.rank(1, **halted)
    assert found_in(job) == [(Verdict.MISSING_RANK, (1,))]


def test_receiver_of_a_stopped_sender_waits_for_it() -> None:
    job = Job(3, live=True)
    job.steps(3)
    job.op(1, "send", peer=2, done=False, flags=Flag.ASYNC)
    job.op(2, "recv", peer=1, done=False, flags=Flag.BLOCKING)
    job.op(0, done=False)
    job.rank(1, process_state="stopped")
    assert found_in(job) == [(Verdict.MISSING_RANK, (1,))]
    assert set(diagnose(recorded(job)).findings[0].victims) == {0, 2}


@pytest.mark.parametrize("ran_s", [0.0, 30.0])
@pytest.mark.parametrize("pair", [True, False])
def test_rank_stopped_long_after_the_wait_began_is_not_missing(ran_s: float, pair: bool) -> None:
    """A debugger is attached to one rank while the network is stuck."""
    job = Job(2, live=True)
    job.steps(3)
    if pair:
        job.op(0, "recv", peer=1, done=False, flags=Flag.BLOCKING)
        job.op(1, "send", peer=0, done=False, flags=Flag.BLOCKING)
    else:
        job.all(done=False)
    beat_ns = START + int((job.now + ran_s) * SECOND)
    job.rank(1, process_state="stopped", heartbeat_ns=beat_ns)
    assert set(found_in(job)) == {(Verdict.STUCK_COLLECTIVE, () if ran_s else (1,))}


@pytest.mark.parametrize("killed", [True, False])
def test_observed_wait_ends_if_the_rank_went_on_by_itself(killed: bool) -> None:
    """It was stopped until its peers timed out; then it ran, and failed because they were gone."""
    wait = KernelWait("processor", since_ns=START, seen_ns=START + 9 * SECOND)
    stack = (Frame("train", "/home/me/train.py", 7),)
    facts = RankFacts(
        1,
        process_state="gone",
        wait=wait,
        cpu_busy=0.01,
        threads=(ThreadStack("MainThread", True, stack, START),),
        exit=ExitFacts("signal", signal=9) if killed else ExitFacts("exception", code=1),
        exception=None if killed else ExceptionFacts("RuntimeError", "Connection closed by peer"),
    )
    assert (process_of(facts, None).wait is not None) == killed


def test_rank_stopped_in_an_unobservable_operation_blocks_the_others() -> None:
    """The others' dumps show that no rank has completed it; the stopped rank left only its ring."""
    job = Job(4, live=True)
    job.steps(3)
    for rank in range(4):
        job.op(rank, done=False, flags=Flag.UNOBSERVED if rank == 1 else Flag(0))
    job.rank(1, process_state="stopped", heartbeat_ns=START + int(job.now * SECOND))
    assert found_in(job) == [(Verdict.STUCK_COLLECTIVE, (1,))]


@pytest.mark.parametrize("halted", HALTED)
def test_stopped_rank_may_have_lived_as_long_as_the_others(halted: dict[str, Any]) -> None:
    """All are killed with their monitor, which had observed that rank 1 could not run. Its
    heartbeat stopped long before those of the others."""
    job = Job(3)
    job.steps(3)
    for rank in (0, 2):
        job.op(rank, done=False)
    for rank, beat_s in ((0, 12), (1, 0), (2, 12.5)):
        beat_ns = START + int((job.now + beat_s) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat_ns)
    assert found_in(job) == [(Verdict.RANK_CRASHED, (1,))]
    job.rank(1, **halted)
    assert found_in(job) == [(Verdict.MISSING_RANK, (1,))]


@pytest.mark.parametrize("seen_s", [30.0, 0.0])
def test_stopped_rank_lived_when_it_was_last_seen(seen_s: float) -> None:
    """A debugger holds rank 1; nobody sees its end, and the others are killed later."""
    job = Job(3)
    job.steps(10)
    for rank in (0, 2):
        job.op(rank, done=False)
        at_ns = START + int((job.now + 40) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=at_ns))
    job.rank(
        1,
        alive=False,
        process_state="stopped",
        held_by="gdb (pid 7)",
        heartbeat_ns=START + int(job.now * SECOND),
        observed_ns=START + int((job.now + seen_s) * SECOND),
        exit=ExitFacts("unknown"),
    )
    found = diagnose(job.trace()).findings[0]
    assert found.culprits == (1,)
    assert (found.verdict is Verdict.MISSING_RANK) is (seen_s > 0)
    assert ("(gdb (pid 7))" in found.fix) is (seen_s > 0)
