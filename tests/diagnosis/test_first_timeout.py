"""What ranks do after the first timeout is not part of the hang."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
    """Rank 1 waits in the world while its other thread cannot reach the metrics group.

    When rank 1 times out, its lock is released: the thread arrives, the others are released and
    follow.
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


def test_rank_that_arrives_after_the_first_timeout_was_absent() -> None:
    found = _one_held_a_lock(9.0)
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (1,))
    assert "without all_reduce #4 in group metrics" in found.summary
    seen = found.findings[0].evidence
    assert "rank 1: its thread metrics is at metrics.py:8 in push" in seen


def test_timeout_in_a_moving_job_changes_nothing() -> None:
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


def test_rank_unable_to_connect_at_the_start_is_not_accused() -> None:
    found = _meeting(_REFUSED)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("GLOO_SOCKET_IFNAME" in unknown for unknown in found.findings[0].unknowns)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [(True, ("missing_rank", (2,), "certain")), (False, ("rank_lost", (2,), "likely"))],
)
def test_rank_that_timed_out_at_the_start_waited_for_the_absent_one(
    recorded: bool, expected: tuple[str, tuple[int, ...], str]
) -> None:
    job = Job(3)
    at_ns = START + 9 * SECOND
    frames = (Frame("init_process_group", "/env/torch/distributed/distributed_c10d.py", 9),)
    for rank in (0, 1):
        _failed(job, rank, "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/2", 9.0)
        error = replace(job.facts[rank].exception, stack=frames)  # type: ignore[type-var]
        job.rank(rank, exception=error, initialized=False, heartbeat_ns=at_ns)
    ended = ExitFacts("signal", signal=15, at_ns=at_ns + SECOND, by_launcher=True)
    job.rank(2, alive=False, host="node0", exit=ended, initialized=False, heartbeat_ns=at_ns)
    if not recorded:
        job.lose(2)
    found = diagnose(job.trace(after_s=20.0))
    assert (found.verdict.value, found.culprits, found.confidence.value) == expected
    assert "init_process_group" in found.summary


def test_own_failure_at_the_start_is_named() -> None:
    found = _meeting("no space left on device")
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0, 1))


def test_store_key_that_all_waited_for_is_reported() -> None:
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


def test_different_store_keys_are_not_one_key() -> None:
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        _failed(job, rank, f"wait timeout after 300ms, keys: /default_pg/0/{rank}", 20.0)
    found = diagnose(job.trace(after_s=1.0))
    assert "in vain" not in found.summary
    assert "store" in found.findings[0].fix


def test_report_shows_where_all_ranks_are_idle() -> None:
    job = Job(3, live=True)
    job.steps(3)
    stack = (Frame("connect", "/env/site-packages/torch/x.py", 4), Frame("setup", "/job/a.py", 7))
    at_ns = START + 40 * SECOND
    for rank in range(3):
        job.rank(rank, threads=(ThreadStack("MainThread", True, stack, at_ns),))
    found = diagnose(job.trace(after_s=60.0))
    assert found.verdict.value == "quiescent"
    assert found.findings[0].evidence == ("ranks 0–2: at a.py:7 in setup, inside connect",)


def test_ranks_released_from_a_lock_by_its_holders_timeout_were_at_the_lock() -> None:
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


def _told_to_end(
    *,
    waits: bool = True,
    moved: bool = False,
    earlier: bool = False,
    kind: str = "code",
    ended_s: float = 31.0,
) -> Diagnosis:
    """Rank 1 does not arrive; it is told to end, and goes to a final barrier, in which it fails."""
    job = Job(3)
    job.steps(3)
    if earlier:  # a handler that takes stock while the job runs
        job.all(flags=Flag.LEAVING)
        job.steps(3)
    began_s = job.now
    if waits:
        for rank in (0, 2):
            job.op(rank, done=False, at=began_s + 0.01)
    if moved:
        job.op(2, "send", peer=0, at=began_s + 29.5)
    job.op(1, "barrier", done=False, flags=Flag.LEAVING, at=began_s + 30, line=99)
    if not waits:
        job.op(0, "barrier", done=False, flags=Flag.LEAVING, at=began_s + 30.1, line=99)
    at_ns = START + int((began_s + ended_s) * SECOND)
    left = (Frame("load_batch", "/job/data.py", 5),)
    later = (Frame("clean_up", "/job/train.py", 99),)
    job.rank(
        1,
        alive=False,
        host="node0",
        threads=(
            ThreadStack("MainThread", True, later, at_ns),
            ThreadStack("MainThread", True, left, START + int((began_s + 29.9) * SECOND), "left"),
        ),
        exit=ExitFacts(
            kind,
            code=143 if kind == "code" else None,
            signal=9 if kind == "signal" else None,
            at_ns=at_ns,
        ),
        exception=ExceptionFacts("RuntimeError", _RESET, at_ns=at_ns) if kind == "code" else None,
    )
    for rank in (0, 2):
        job.rank(rank, alive=False, host="node0", exit=ExitFacts("signal", signal=9, at_ns=at_ns))
    return diagnose(job.trace(after_s=1.0))


def test_operations_issued_during_exit_are_no_step() -> None:
    for kind in ("code", "clean", "signal"):
        found = _told_to_end(kind=kind)
        assert (found.verdict.value, found.culprits) == ("missing_rank", (1,)), kind
        assert found.findings[0].op == "all_reduce"
        (side,) = [side for side in found.findings[0].sides if side.ranks == (1,)]
        assert [frame.name for frame in side.stack] == ["load_batch"]


def test_operations_of_a_handler_in_a_job_that_continued_count() -> None:
    found = _told_to_end(earlier=True)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.findings[0].seq == 8


def test_rank_leaving_a_moving_job_has_diverged() -> None:
    found = _told_to_end(moved=True, kind="signal")
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert "on its way out" in found.findings[0].why
    assert "all-reduce the flag" in found.findings[0].fix


def test_rank_that_computes_long_and_then_waits_is_waiting() -> None:
    found = _told_to_end(waits=False, kind="signal", ended_s=70.0)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.findings[0].op == "barrier"


def test_rank_that_fails_as_the_leaver_is_killed_had_waited() -> None:
    """The others' all-reduce has failed since, and they are exiting themselves."""
    job = Job(3)
    job.steps(3)
    began_s = job.now
    for rank in (0, 2):
        job.op(rank, done=False, flags=Flag.RETIRED | Flag.FAILED, at=began_s + 0.01)
    job.op(1, "barrier", done=False, flags=Flag.LEAVING, at=began_s + 30, line=99)
    for rank in (0, 2):
        flags = Flag.RETIRED | Flag.FAILED | Flag.LEAVING
        job.op(rank, "barrier", done=False, flags=flags, at=began_s + 32.1, line=99)
        job.rank(rank, host="node0")
        _failed(job, rank, _RESET, began_s + 32)
    end = ExitFacts("signal", signal=9, at_ns=START + int((began_s + 32) * SECOND))
    job.rank(1, alive=False, host="node0", exit=end)
    found = diagnose(job.trace(after_s=1.0))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.findings[0].op == "all_reduce"
