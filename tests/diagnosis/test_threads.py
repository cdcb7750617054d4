"""A group whose operations come from a thread of their own hangs while the rank trains on."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import Frame, ThreadStack
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
