"""What ranks do once the first of them has given up waiting is no part of the hang."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame, Phase, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job

_IN_VAIN = "Timed out waiting 9000ms for recv operation to complete"
_RESET = "Read error [127.0.0.1]:1234: Connection reset by peer"
_REFUSED = "Gloo connectFullMesh failed with pair.cc:152 timed out connecting: Connection refused"


def _failed(job: Job, rank: int, message: str, at_s: float) -> None:
    at_ns = START + int(at_s * SECOND)
    job.rank(
        rank,
        alive=False,
        host="node0",
        exit=ExitFacts("exception", code=1, at_ns=at_ns),
        exception=ExceptionFacts("RuntimeError", message, at_ns=at_ns),
    )


def _one_held_a_lock(gave_up_s: float, *, moved_s: float = 0.0) -> Diagnosis:
    """Rank 1 waits in the world while its other thread cannot come to the metrics group.

    When it gives up, its lock opens: the thread comes, the others are let go and follow.
    """
    job = Job(3)
    metrics = job.group(0, 1, 2, desc="metrics")
    for _ in range(3):
        job.all(group=metrics)
        job.all()
    if moved_s:
        job.all(at=moved_s)
    began_s = job.now
    job.op(1, done=False, flags=Flag.RETIRED, at=began_s + 0.01)
    for rank in (0, 2):
        job.op(rank, group=metrics, at=began_s + 0.01)
        job.rows[-1]["completed_ns"] = START + int((gave_up_s + 0.01) * SECOND)
    job.op(1, group=metrics, at=gave_up_s + 0.005)
    for rank in (0, 2):
        job.op(rank, done=False, flags=Flag.RETIRED, at=gave_up_s + 0.02)
    at_lock = (Frame("push", "/job/metrics.py", 8),)
    thread = ThreadStack("metrics", False, at_lock, START + int((gave_up_s - 0.1) * SECOND))
    job.rank(1, threads=(thread,))
    _failed(job, 1, _IN_VAIN, gave_up_s)
    for rank in (0, 2):
        _failed(job, rank, _RESET, gave_up_s + 0.03)
    return diagnose(job.trace(after_s=1.0))


def test_who_comes_after_the_first_gave_up_was_not_there() -> None:
    found = _one_held_a_lock(9.0)
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (1,))
    assert "order" in found.summary
    seen = found.findings[0].evidence
    assert "rank 1: its thread metrics is at metrics.py:8 in push" in seen


def test_of_a_job_that_moved_at_that_moment_nothing_is_taken_back() -> None:
    found = _one_held_a_lock(9.0, moved_s=8.5)
    assert found.verdict.value != "deadlock_cycle"


def _meeting(error: str) -> Diagnosis:
    """Three ranks make their groups anew; two fail there."""
    job = Job(3)
    job.steps(2)
    for rank in range(3):
        phase = Phase("init_process_group", START + SECOND)
        job.rank(rank, phases=(phase,), initialized=False, alive=True)
    for rank in (0, 1):
        _failed(job, rank, error, 3.0)
    return diagnose(job.trace(after_s=20.0))


def test_who_cannot_reach_the_others_at_the_start_is_not_accused() -> None:
    found = _meeting(_REFUSED)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "ranks 0, 1 could not connect to the other ranks" in found.summary.lower()
    assert "GLOO_SOCKET_IFNAME" in found.findings[0].fix


def test_who_fails_of_its_own_at_the_start_is() -> None:
    found = _meeting("no space left on device")
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0, 1))


def test_a_key_of_the_store_that_all_waited_for_in_vain_is_told() -> None:
    found = _ended_in("wait timeout after 300000ms, keys: /rpc_prefix_0/0/0")
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "ranks 0–2 waited in vain for /rpc_prefix_0/0/0" in found.summary.lower()
    assert "network" not in found.findings[0].fix


def _ended_in(message: str) -> Diagnosis:
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        _failed(job, rank, f"DistStoreError: {message}", 20.0)
    return diagnose(job.trace(after_s=1.0))


def test_keys_that_differ_are_no_one_key() -> None:
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        _failed(job, rank, f"wait timeout after 300ms, keys: /default_pg/0/{rank}", 20.0)
    assert "in vain" not in diagnose(job.trace(after_s=1.0)).summary


def test_where_all_stand_idle_the_report_says_where() -> None:
    job = Job(3, live=True)
    job.steps(3)
    stack = (Frame("connect", "/env/site-packages/torch/x.py", 4), Frame("setup", "/job/a.py", 7))
    at_ns = START + 40 * SECOND
    for rank in range(3):
        job.rank(rank, threads=(ThreadStack("MainThread", True, stack, at_ns),))
    found = diagnose(job.trace(after_s=60.0))
    assert found.verdict.value == "quiescent"
    assert found.findings[0].evidence == ("ranks 0–2: at a.py:7 in setup, inside connect",)


def test_those_who_come_out_of_a_lock_when_its_holder_has_given_up_were_at_the_lock() -> None:
    """Rank 0 waits in a barrier and holds the lock that all others need on their way there."""
    job = Job(4)
    job.steps(3)
    at_lock = (Frame("enter", "/job/cache.py", 12),)
    in_barrier = (Frame("barrier", "/env/torch/distributed/distributed_c10d.py", 9), *at_lock)
    job.op(0, "barrier", done=False, flags=Flag.RETIRED)
    for rank in (1, 2, 3):
        job.op(rank, "barrier", done=False, flags=Flag.RETIRED, at=9.1 + rank / 10)
        stacks = ((at_lock, 8.9), (in_barrier, 9.15 + rank / 10))
        threads = tuple(
            ThreadStack("MainThread", True, stack, START + int(at_s * SECOND))
            for stack, at_s in stacks
        )
        job.rank(rank, threads=threads, phases=(Phase("interpreter exit", START + 10 * SECOND),))
    _failed(job, 0, _IN_VAIN, 9.0)
    for rank in (1, 3):
        _failed(job, rank, _RESET, 9.2 + rank / 10)
    end = ExitFacts("signal", signal=15, at_ns=START + 10 * SECOND)
    job.rank(2, alive=False, host="node0", exit=end)
    found = diagnose(job.trace(after_s=1.0))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert found.confidence.value == "likely"
    assert "if ranks 1–3 wait at cache.py:12 in enter for a lock" in found.findings[0].fix
