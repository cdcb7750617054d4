"""Ranks whose program is over but whose process has not ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.ring.layout import LEAVING_PHASE
from hangscope.trace.model import ExitFacts, Frame, KernelWait, Phase, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job, blame

SHUTDOWN = (Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),)
FEED = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 327),
    Frame("feed", "/home/me/loader.py", 12),
    Frame("run", "/usr/lib/python3.11/threading.py", 975),
)
CLEAN = ExitFacts("clean", 0, at_ns=START + SECOND)


def _job(*, live: bool = True) -> Job:
    """Rank 1's program was over after a second; rank 0 had ended."""
    job = Job(2, live=live)
    job.steps(3)
    job.rank(0, alive=False, finalized=True, exit=CLEAN)
    at_ns = START + 59 * SECOND
    job.rank(
        1,
        finalized=True,
        phases=(Phase(LEAVING_PHASE, START + SECOND),),
        heartbeat_ns=START + 60 * SECOND,
        observed_ns=START + 60 * SECOND,
        threads=(
            ThreadStack("MainThread", True, SHUTDOWN, at_ns, daemon=False),
            ThreadStack(
                "pulse", False, (Frame("beat", "/home/me/pulse.py", 3),), at_ns, daemon=True
            ),
            ThreadStack("feeder", False, FEED, at_ns, daemon=False),
        ),
    )
    return job


@pytest.mark.parametrize("around", [(), (Frame("_bootstrap", "/x/process.py", 332),)])
def test_thread_that_blocks_interpreter_exit_is_reported(around: tuple[Frame, ...]) -> None:
    """Daemon threads are ignored; ``multiprocessing`` waits as well."""
    job = _job()
    main, *others = job.facts[1].threads
    job.rank(1, threads=(replace(main, stack=(*SHUTDOWN, *around)), *others))
    found = diagnose(job.trace())
    assert blame(found) == ("quiescent", ())
    assert "The program of rank 1 was over 59 s ago" in found.summary
    assert "it waits for thread feeder (loader.py:12 in feed)" in found.summary
    assert "pulse" not in repr(found)


@pytest.mark.parametrize("facts", [{"cpu_busy": 0.5}, {"stack_moved": True}])
def test_busy_rank_is_not_lingering(facts: dict[str, float]) -> None:
    """It may have something to write before it exits."""
    job = _job()
    job.rank(1, **facts)
    assert blame(diagnose(job.trace())) == ("healthy", ())


def test_rank_still_in_its_program_is_waited_for() -> None:
    """A job continues as long as one of its ranks does."""
    job = _job()
    job.rank(0, alive=True, exit=None, cpu_busy=0.9)
    assert blame(diagnose(job.trace())) == ("healthy", ())


def test_single_idle_rank_is_reported_if_the_kernel_confirms() -> None:
    """A rank may take any time at its end, provided it does something."""
    job = _job()
    stack = (
        Frame("_wait", "/usr/lib/python3.11/subprocess.py", 2046),
        Frame("upload", "/home/me/post.py", 31),
    )
    wait = KernelWait("child", names=("aws (pid 9)",), processes=(9,))
    threads = (ThreadStack("MainThread", True, stack, START + 59 * SECOND, daemon=False),)
    job.rank(1, phases=(), threads=threads, wait=wait)
    found = diagnose(job.trace())
    assert blame(found) == ("quiescent", ())
    assert (
        "Rank 1 is all that is left of the job, and has not moved from post.py:31" in found.summary
    )
    assert "aws (pid 9)" in found.summary
    assert found.findings[0].unchanged_s == job.timeout_s
    job.rank(1, stack_moved=True)
    assert blame(diagnose(job.trace())) == ("healthy", ())


def test_lingering_on_one_node_is_independent_of_other_nodes() -> None:
    """A monitor may know nothing about ranks on other nodes."""
    job = _job()
    job.world = 4
    found = diagnose(job.trace())
    assert blame(found) == ("quiescent", ())
    assert "it waits for thread feeder" in found.summary


def test_nothing_is_reported_right_after_the_end() -> None:
    """Exiting takes a while: devices, files and connections are released."""
    job = _job()
    job.rank(1, observed_ns=START + 9 * SECOND, heartbeat_ns=START + 9 * SECOND)
    assert blame(diagnose(job.trace(after_s=8))) == ("healthy", ())


def test_atexit_function_is_reported() -> None:
    """The main thread is neither in the program nor waiting for others."""
    job = _job()
    at_ns = START + 59 * SECOND
    close = (Frame("close", "/home/me/log.py", 7),)
    job.rank(1, threads=(ThreadStack("MainThread", True, close, at_ns, daemon=False),))
    found = diagnose(job.trace())
    assert "a function that runs at exit is at log.py:7 in close" in found.summary


def test_after_the_recorders_end_only_the_kernel_is_used() -> None:
    """Its stacks are older than that, so they are not shown."""
    job = _job()
    job.rank(1, heartbeat_ns=START + SECOND)
    assert "what runs last when it exits does not return" in diagnose(job.trace()).summary
    wait = KernelWait("child", processes=(7,), names=("python (pid 7)",))
    job.rank(1, wait=wait, threads=())
    found = diagnose(job.trace())
    assert "it waits for a process that it started: python (pid 7)" in found.summary


@pytest.mark.parametrize("signal", [15, 9])
def test_lingering_rank_that_was_killed_has_not_crashed(signal: int) -> None:
    """Whoever ends a job that does not exit kills the remaining processes."""
    job = _job(live=False)
    ended = ExitFacts("signal", signal=signal, at_ns=START + 60 * SECOND)
    job.rank(1, alive=False, exit=ended)
    found = diagnose(job.trace())
    assert blame(found) == ("quiescent", ())
    assert "was over 59 s before its process was stopped" in found.summary


def test_lingering_rank_released_by_ctrl_c_had_lingered() -> None:
    """Python then exits with status 0; its activity is part of its exit."""
    job = _job(live=False)
    freed = START + 60 * SECOND
    job.rank(1, alive=False, exit=replace(CLEAN, at_ns=freed), freed_ns=freed, cpu_busy=0.6)
    found = diagnose(job.trace())
    assert blame(found) == ("quiescent", ())
    assert "was over 59 s before its process was stopped" in found.summary


def test_rank_killed_soon_after_its_exit_began_has_crashed() -> None:
    """At that time nobody would have run out of patience."""
    job = _job(live=False)
    ended = ExitFacts("signal", signal=9, at_ns=START + 3 * SECOND)
    job.rank(1, alive=False, exit=ended, observed_ns=START + 3 * SECOND)
    assert blame(diagnose(job.trace())) == ("rank_crashed", (1,))
