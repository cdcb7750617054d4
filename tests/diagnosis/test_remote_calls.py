"""Ranks that wait for the answer to a remote call while others wait for them."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExitFacts, Frame, ThreadStack
from tests.diagnosis.builder import START, Job

API = "/site-packages/torch/distributed/rpc/api.py"
RUN = Frame("_run_function", "/site-packages/torch/distributed/rpc/internal.py", 209)
PUSH = Frame("push_grad", "/home/me/server.py", 6)
CALL = (Frame("rpc_sync", API, 842), Frame("<module>", "/home/me/train.py", 17))


def _judged(*handlers: int, nested: bool = False, in_c: bool = False) -> Diagnosis:
    """Rank 0 calls another rank's function, and the others wait for it in a barrier.

    ``in_c``: that function is not written in Python, as ``time.sleep``.
    """
    job = Job(4, live=True)
    job.steps(3)
    for rank in (1, 2, 3):
        job.op(rank, "barrier", size=(), done=False)
    job.rank(0, threads=(ThreadStack("MainThread", True, CALL, START),))
    inner = (Frame("rpc_sync", API, 842), PUSH) if nested else () if in_c else (PUSH,)
    for rank in handlers:
        job.rank(rank, threads=(ThreadStack("", False, (*inner, RUN), START),))
    return diagnose(job.trace())


def test_rank_with_a_stuck_handler_is_named_instead_of_its_caller() -> None:
    found = _judged(2)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    first = found.findings[0]
    assert "its handler is at server.py:6 in push_grad" in first.summary
    assert 0 in first.victims
    assert first.sides[-1].stack == (PUSH,)


def test_without_a_single_handler_the_absent_rank_is_accused() -> None:
    assert _judged().culprits == (0,)
    assert _judged(1, 2).culprits == (0,)
    assert _judged(2, nested=True).culprits == (0,)
    found = _judged()
    assert found.confidence.value == "likely", "it may be another one that does not answer"
    assert "which rank owes the answer" in found.findings[0].unknowns[0]


def test_handler_without_python_frames_is_one() -> None:
    assert _judged(2, in_c=True).culprits == (2,)


SHUTDOWN = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 629),
    Frame("_all_gather", API, 257),
    Frame("shutdown", API, 340),
    Frame("<module>", "/home/me/train.py", 21),
)


def _calls_alone(
    *handlers: int, live: bool = True, moved: bool = False, end: ExitFacts | None = None
) -> Diagnosis:
    """A job without collectives: rank 0 calls, the others have nothing left to do."""
    job = Job(4, live=live)
    for rank in range(4):
        main = ThreadStack("MainThread", True, CALL if rank == 0 else SHUTDOWN, START)
        handler = (ThreadStack("", False, (PUSH, RUN), START),) if rank in handlers else ()
        job.rank(rank, threads=(main, *handler), stack_moved=moved if live else None)
        if end is not None:
            job.rank(rank, alive=False, exit=end)
    return diagnose(job.trace())


def test_unreturned_call_is_reported_without_collectives() -> None:
    found = _calls_alone(2)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert found.summary == (
        "Rank 0 waits for an answer to a remote call; rank 2 runs a handler at server.py:6 in "
        "push_grad"
    )
    first = found.findings[0]
    assert first.unchanged_s == 10.0
    assert any("ranks 1–3 in rpc.shutdown" in line for line in first.evidence)


def test_several_handlers_name_no_rank() -> None:
    assert _calls_alone(1, 3).verdict.value == "inconclusive"
    assert _calls_alone().verdict.value == "inconclusive"


def test_moving_ranks_are_no_hang() -> None:
    assert _calls_alone(2, moved=True).verdict.value == "healthy"


def test_ended_job_is_judged_by_the_last_observation() -> None:
    found = _calls_alone(2, live=False, end=ExitFacts("signal", signal=15, at_ns=START))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "rank 2 runs a handler" in found.summary


def test_job_that_ended_cleanly_is_healthy() -> None:
    found = _calls_alone(live=False, end=ExitFacts("clean", 0, at_ns=START))
    assert found.verdict.value == "healthy"


def test_method_of_a_remote_object_is_called_through_the_package() -> None:
    proxy = Frame("_local_invoke", "/site-packages/torch/distributed/rpc/rref_proxy.py", 10)
    job = Job(2, live=True)
    for rank, main in enumerate((CALL, SHUTDOWN)):
        threads = [ThreadStack("MainThread", True, main, START)]
        if rank == 1:
            threads.append(ThreadStack("", False, (PUSH, proxy, RUN), START))
        job.rank(rank, threads=tuple(threads))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert "look at server.py:6 in push_grad" in found.findings[0].fix


def test_stopped_rank_answers_no_call_and_outlives_the_others() -> None:
    job = Job(3, live=True)
    for rank, main in enumerate((CALL, SHUTDOWN, SHUTDOWN)):
        state = "stopped" if rank == 2 else "sleeping"
        threads = (ThreadStack("MainThread", True, main, START),)
        job.rank(rank, threads=threads, process_state=state)
    for ended in (False, True):
        found = diagnose(job.trace())
        assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
        assert found.confidence.value == "likely"
        assert "kill -CONT" in found.findings[0].fix
        if not ended:  # somebody stops the job; the launcher's own signal reaches one after another
            for rank, by_launcher in ((1, False), (0, True)):
                end = ExitFacts("signal", signal=15, at_ns=START + rank, by_launcher=by_launcher)
                job.rank(rank, exit=end, alive=False, process_state="gone")


def _shutting_down(*absent: int, live: bool = True, silent_s: float = 20.0) -> Diagnosis:
    """Ranks wait in rpc.shutdown after some collectives; ``absent`` are in their own code."""
    job = Job(4, live=live)
    job.steps(3)
    for rank in range(4):
        main = (PUSH,) if rank in absent else SHUTDOWN
        job.rank(rank, threads=(ThreadStack("MainThread", True, main, START),), cpu_busy=0.5)
    newest_ns = max(int(row["completed_ns"]) for row in job.rows)
    return diagnose(replace(job.trace(), observed_ns=newest_ns + int(silent_s * 1e9)))


def test_rank_absent_from_shutdown_is_reported_after_collectives() -> None:
    """The agent's own threads poll all the time, so the process looks busy."""
    found = _shutting_down(3)
    told = (found.verdict.value, found.culprits, found.confidence.value)
    assert told == ("missing_rank", (3,), "likely")
    assert found.summary == "Rank 3 never came to rpc.shutdown, where ranks 0–2 wait"
    assert "server.py:6 in push_grad" in found.findings[0].fix
    assert found.findings[0].unchanged_s > 0
    assert _shutting_down(2, 3).confidence.value == "ambiguous"


def test_rank_that_may_still_reach_shutdown_is_not_accused() -> None:
    for found in (_shutting_down(3, silent_s=1.0), _shutting_down(3, live=False), _shutting_down()):
        assert found.culprits == ()
