"""A group whose operations come from a thread of their own hangs while the rank trains on."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExceptionFacts, Frame, ThreadStack
from tests.diagnosis.builder import START, Job

MAIN, SIDE = 4711, 4712


def _job(*, thread: int = SIDE) -> Job:
    """All ranks wait for rank 1 in the group that a second thread uses; the main thread goes on."""
    job = Job(3, live=True)
    side = job.group(0, 1, 2, desc="heartbeat")
    for _ in range(3):
        job.all()
        job.all(group=side)
    for rank in (0, 2):
        job.op(rank, group=side, done=False)
    for _ in range(4):
        job.all(at=job.now + 20)
    for row in job.rows:
        row["thread"] = thread if row["group"] == side else MAIN
    main = (Frame("train", "/home/me/train.py", 88),)
    beat = (Frame("read_sensor", "/home/me/beat.py", 12), Frame("beat", "/home/me/beat.py", 30))
    threads = (
        ThreadStack("MainThread", True, main, START + 5, native_id=MAIN),
        ThreadStack("beat", False, beat, START + 5, native_id=SIDE),
    )
    for rank in range(3):
        job.rank(rank, pid=MAIN, threads=threads, observed_ns=START + int(90e9))
    return job


def test_the_line_is_that_of_the_group_s_own_thread() -> None:
    found = diagnose(_job().trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    (side,) = [s for s in found.findings[0].sides if s.ranks == (1,)]
    assert side.stack[0].name == "read_sensor"
    assert "beat.py:12" in found.findings[0].fix
    assert "read_sensor" in found.findings[0].why


def test_the_main_thread_s_own_group_shows_the_main_thread() -> None:
    found = diagnose(_job(thread=MAIN).trace())
    (side,) = [s for s in found.findings[0].sides if s.ranks == (1,)]
    assert side.stack[0].name == "train"


def _dead(message: str = "'loss'", *, native_id: int = SIDE) -> Job:
    """As above, but rank 1's thread has died, and the main threads stand still after some steps:
    rank 0's waits for its own thread, the others in the next collective of the world.
    """
    job = _job()
    for rank in (1, 2):
        job.op(rank, done=False)
    for row in job.rows:
        row["thread"] = row.get("thread", MAIN)
    error = ExceptionFacts(
        "KeyError",
        message,
        (Frame("report", "/home/me/metrics.py", 14),),
        START + 5,
        "metrics",
        is_main_thread=False,
        native_id=native_id,
    )
    threads = tuple(t for t in job.facts[1].threads if t.is_main)
    for rank in range(3):
        job.rank(rank, observed_ns=START + int(200e9))
    job.rank(1, exception=error, threads=threads)
    return job


def test_what_a_dead_thread_owes_is_the_cause_whatever_its_main_thread_waits_for() -> None:
    found = diagnose(_dead().trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    first = found.findings[0]
    assert "its thread metrics ended with KeyError: 'loss'" in first.summary
    assert "metrics.py:14 in report" in first.fix
    (side,) = [s for s in first.sides if s.ranks == (1,)]
    assert side.stack[0].name == "report"


@pytest.mark.parametrize(
    "job",
    [
        _dead(native_id=MAIN + 7),  # another thread than the one that issued the operations
        _dead("Connection closed by peer [127.0.0.1]:5535"),  # a victim itself
    ],
)
def test_another_thread_s_end_or_a_victim_s_explains_nothing(job: Job) -> None:
    found = diagnose(job.trace())
    assert found.verdict.value == "deadlock_cycle"
    assert "its thread" not in found.summary


def _race(*, started: bool = True, shared: bool = True) -> Job:
    """A thread of ranks 0 and 1 gathers in the default group while rank 2's main thread reduces."""
    job = Job(3, live=True)
    job.steps(4)
    if not shared:
        job.rows.clear()
    for rank in (0, 1):
        job.op(rank, "all_gather", size=(1,), done=False, line=8, function="save")
    job.op(2, done=False)
    stack = [Frame("run", "/usr/lib/python3.11/threading.py", 982)] if started else []
    save = next(i for i, s in enumerate(job.stacks) if s[0].name == "save")
    job.stacks[save] = (job.stacks[save][0], *stack)
    for row in job.rows:
        row["thread"] = SIDE + row["rank"] if row["stack"] == save else MAIN
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    return job


def test_two_threads_in_one_group_are_a_race() -> None:
    fix = diagnose(_race().trace()).findings[0].fix
    assert "two threads issue operations in this group" in fix
    for job in (_race(started=False), _race(shared=False)):
        assert "two threads" not in diagnose(job.trace()).findings[0].fix
