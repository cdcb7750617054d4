"""Ranks that wait for a file lock, and the rank that holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Frame, KernelWait, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job

LOCK = "/data/cache.lock"
POLLS = Frame("acquire", "/venv/lib/python3.11/site-packages/filelock/_api.py", 344)


def _job(world: int) -> Job:
    job = Job(world, live=True)
    job.steps(3)
    for rank in range(world):
        job.rank(rank, host="node0", pid=100 + rank, observed_ns=START + 60 * SECOND)
    return job


def _stands(job: Job, rank: int, wait: KernelWait | None, *below: Frame) -> None:
    stack = (*below, Frame("prepare", "/home/me/train.py", 41))
    threads = (ThreadStack("MainThread", True, stack, START + 60 * SECOND),)
    job.rank(rank, wait=wait, threads=threads, process_state="sleeping")


def _waits(job: Job, rank: int, holder: int, *, since_s: float = 20.0) -> None:
    times = {"since_ns": START + int(since_s * SECOND), "seen_ns": START + 60 * SECOND}
    _stands(job, rank, KernelWait("lock", LOCK, (100 + holder,), ("python",), **times))


def _holds(job: Job, rank: int, *paths: str) -> None:
    wait = KernelWait("thread", locked=paths, since_ns=START, seen_ns=START + 60 * SECOND)
    job.rank(rank, wait=wait)


def _told(found: Diagnosis) -> tuple[str, tuple[int, ...], str]:
    return found.verdict.value, found.culprits, found.confidence.value


def test_lock_holder_in_a_barrier_waits_for_those_at_the_lock() -> None:
    job = _job(2)
    _holds(job, 0, LOCK)
    _waits(job, 1, 0)
    job.op(0, "barrier", done=False, line=7)
    found = diagnose(job.trace())
    assert _told(found) == ("deadlock_cycle", (0, 1), "ambiguous")
    assert "Rank 0 waits in barrier #4" in found.summary
    assert f"holds the lock on '{LOCK}', for which rank 1 waits" in found.summary
    assert found.findings[0].fix.startswith("release that lock before train.py:7")
    assert {(edge.waiter, edge.on) for edge in found.wait_for} == {(0, 1), (1, 0)}


def test_lock_holder_blocking_all_others_is_named() -> None:
    job = _job(4)
    _holds(job, 0, LOCK)
    for rank in (1, 2, 3):
        _waits(job, rank, 0)
    job.op(0, "barrier", done=False)
    assert _told(diagnose(job.trace())) == ("deadlock_cycle", (0,), "likely")


def test_blocked_lock_holder_needs_no_minimum_time() -> None:
    job = _job(2)
    _holds(job, 0, LOCK)
    _waits(job, 1, 0, since_s=60.0)
    job.op(0, "barrier", done=False)
    assert diagnose(job.trace()).verdict.value == "deadlock_cycle"


def _one_elsewhere(since_s: float) -> Diagnosis:
    job = _job(4)
    _waits(job, 1, 0, since_s=since_s)
    _stands(job, 0, KernelWait(locked=(LOCK,), since_ns=START, seen_ns=START + 60 * SECOND))
    for rank in (2, 3):
        job.op(rank, done=False)
    return diagnose(job.trace())


def test_rank_waiting_for_a_lock_is_a_victim_of_its_holder() -> None:
    found = _one_elsewhere(20.0)
    assert _told(found) == ("missing_rank", (0,), "certain")
    assert 1 in found.findings[0].victims
    words = f"rank 1 waits for the lock on '{LOCK}', which rank 0 holds"
    assert words in found.findings[0].evidence


def test_lock_wait_observed_once_may_be_momentary() -> None:
    assert _one_elsewhere(60.0).culprits == (0, 1)


def test_lock_holder_is_named_although_no_rank_waits_for_it_directly() -> None:
    job = _job(4)
    pair = job.group(1, 2, desc="tp")
    _waits(job, 1, 0)
    _stands(job, 0, KernelWait(locked=(LOCK,), since_ns=START, seen_ns=START + 60 * SECOND))
    job.op(2, group=pair, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))
    assert found.summary == f"Rank 0 holds the lock on '{LOCK}' that rank 1 waits for"
    assert "until it releases that lock" in found.findings[0].fix
    assert "train.py:41 in prepare" in found.findings[0].fix


def test_lock_holder_is_named_without_waiting_collectives() -> None:
    job = _job(3)
    for rank in (0, 2):
        _waits(job, rank, 1)
    _stands(job, 1, KernelWait(locked=(LOCK,), since_ns=START, seen_ns=START + 60 * SECOND))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_two_locks_taken_in_opposite_orders_are_a_cycle() -> None:
    job = _job(3)
    times = {"since_ns": START + 20 * SECOND, "seen_ns": START + 60 * SECOND}
    for rank, other in ((1, 2), (2, 1)):
        wait = KernelWait("lock", f"/data/{other}", (100 + other,), (), locked=(f"/data/{rank}",))
        _stands(job, rank, replace(wait, **times))
    job.op(0, "barrier", done=False)
    found = diagnose(job.trace())
    assert _told(found) == ("deadlock_cycle", (1, 2), "ambiguous")
    assert "in the same order on all ranks" in found.findings[0].fix


def test_lock_held_by_an_outside_process_excuses_no_rank() -> None:
    job = _job(3)
    _waits(job, 1, 900)
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert _told(found) == ("missing_rank", (1,), "certain")
    words = f"it waits for the lock on {LOCK}, held by python, which is no rank of this job"
    assert words in found.findings[0].fix


def test_rank_with_progress_since_the_observation_waits_for_no_lock() -> None:
    job = _job(3)
    _holds(job, 0, LOCK)
    _waits(job, 1, 0)
    job.op(1, group=job.group(1, desc="own"), at=80.0)
    for rank in (0, 2):
        job.op(rank, done=False, at=4.0)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


@pytest.mark.parametrize(
    ("locked", "verdict"),
    [
        ((LOCK,), "deadlock_cycle"),
        ((), "missing_rank"),
        ((LOCK, "/data/b"), "missing_rank"),
        (("/data/meta.db",), "missing_rank"),
    ],
)
def test_polling_rank_waits_for_the_only_lock(locked: tuple[str, ...], verdict: str) -> None:
    job = _job(2)
    _holds(job, 0, *locked)
    _stands(job, 1, None, POLLS)
    job.op(0, "barrier", done=False)
    found = diagnose(job.trace())
    assert found.verdict.value == verdict
    if verdict == "deadlock_cycle":
        assert any("is inferred" in line for line in found.findings[0].unknowns)
    else:
        assert "another process holds that file lock" in found.findings[0].fix


def test_presumed_lock_holder_is_not_certain() -> None:
    job = _job(3)
    _stands(job, 0, KernelWait(locked=(LOCK,), since_ns=START, seen_ns=START + 60 * SECOND))
    _stands(job, 1, None, POLLS)
    job.op(2, done=False)
    assert _told(diagnose(job.trace())) == ("missing_rank", (0,), "likely")


def test_locks_of_another_host_are_different() -> None:
    job = _job(2)
    _holds(job, 0, LOCK)
    job.rank(0, host="node1")
    _waits(job, 1, 0)
    job.op(0, "barrier", done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_verdict_on_a_lock_is_the_same_after_the_job_was_killed() -> None:
    job = _job(2)
    _holds(job, 0, LOCK)
    _waits(job, 1, 0)
    job.op(0, "barrier", done=False)
    job.live = False
    trace = job.trace()
    ended = {r: replace(f, alive=False, process_state="gone") for r, f in trace.ranks.items()}
    assert diagnose(replace(trace, ranks=ended)).verdict.value == "deadlock_cycle"


@pytest.mark.parametrize(
    ("wait", "below", "words"),
    [
        (KernelWait("child", names=("sleep 9 (pid 7)",)), (), "that it started: sleep 9 (pid 7)"),
        (KernelWait("fifo"), (), "whose other end nobody has opened"),
        (KernelWait("full pipe", names=("less (pid 7)",)), (), "less (pid 7) does not read it"),
        (KernelWait("pipe", alone=True), (), "no other process is left"),
        (KernelWait("socket", "10.0.0.7:443"), (), "waits for 10.0.0.7:443; give that call a time"),
        (KernelWait("thread"), (), "a lock, a device or another thread of its own process"),
        (KernelWait("semaphore"), (), "a lock or semaphore that processes share"),
        (KernelWait("semaphore", alone=True), (), "no other process has it any more"),
        (KernelWait("semaphore", names=("python (pid 7)",)), (), "python (pid 7) can hold it"),
        (
            KernelWait("semaphore", alone=True),
            (Frame("put", "/usr/lib/python3.11/multiprocessing/queues.py", 9),),
            "that queue is full",
        ),
        (
            KernelWait("semaphore", alone=True),
            (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 9),),
            "no other process has it any more",
        ),
        (
            KernelWait("pipe", alone=True, helpers=("python (pid 7, killed by SIGKILL)",)),
            (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 9),),
            "anything into that queue (no other process is left at the other end of its pipe, "
            "python (pid 7, killed by SIGKILL))",
        ),
    ],
)
def test_what_the_culprit_waits_for_is_reported(
    wait: KernelWait, below: tuple[Frame, ...], words: str
) -> None:
    job = _job(3)
    _stands(job, 1, wait, *below)
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert found.culprits == (1,)
    assert words in found.findings[0].fix


def test_rank_that_may_hold_the_semaphore_of_another_one_makes_it_likely() -> None:
    """Nobody knows who holds a semaphore, only which processes share it."""
    told = {}
    for sharing in ((), (100,)):
        job = _job(3)
        _stands(job, 1, KernelWait("semaphore", "", sharing, ("python (pid 100)",)[: len(sharing)]))
        for rank in (0, 2):
            job.op(rank, done=False)
        found = diagnose(job.trace())
        told[sharing] = (*_told(found), "rank 0 can hold it" in found.findings[0].fix)
    assert told == {
        (): ("missing_rank", (1,), "certain", False),
        (100,): ("missing_rank", (1,), "likely", True),
    }


def test_runnable_rank_without_cpu_time() -> None:
    job = _job(3)
    times = {"since_ns": START + 20 * SECOND, "seen_ns": START + 60 * SECOND}
    _stands(job, 1, KernelWait("processor", "0.5% of one", **times))
    for rank in (0, 2):
        job.op(rank, done=False)
    words = "its control group may use 0.5% of one (cpu.max)"
    for busy, told in ((0.01, True), (0.9, False), (None, False)):
        job.rank(1, cpu_busy=busy, process_state="running")
        assert (words in diagnose(job.trace()).findings[0].fix) is told


@pytest.mark.parametrize("how", [{"process_state": "stopped"}, {"gil_blocked": True}])
def test_rank_without_cpu_time_waits_for_no_lock(how: dict[str, object]) -> None:
    """It would not arrive even if the lock were free, so the holder does not block it."""
    job = _job(4)
    _waits(job, 1, 0)
    _stands(job, 0, KernelWait(locked=(LOCK,), since_ns=START, seen_ns=START + 60 * SECOND))
    job.rank(1, alive=True, **how)
    assert diagnose(job.trace()).culprits == ()
    for rank in (0, 2, 3):
        job.op(rank, "barrier", done=False)
    assert _told(diagnose(job.trace())) == ("missing_rank", (1,), "certain")


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (KernelWait("socket", "127.0.0.1:80", (100,)), "rank 1 waits for an answer of rank 0"),
        (
            KernelWait("locked file", "/m.db", (100,)),
            "rank 0 holds a lock that rank 1 may wait for",
        ),
        (KernelWait("socket", "127.0.0.1:80", (7,)), ""),
        (KernelWait("socket", "127.0.0.1:80", alone=True), ""),
    ],
)
def test_rank_that_seems_to_wait_for_another_rank_is_only_likely_missing(
    wait: KernelWait, words: str
) -> None:
    job = _job(3)
    times = {"since_ns": START + 20 * SECOND, "seen_ns": START + 60 * SECOND}
    _stands(job, 1, replace(wait, **times))
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert _told(found) == ("missing_rank", (1,), "likely" if words else "certain")
    assert not words or any(words in line for line in found.findings[0].unknowns)
