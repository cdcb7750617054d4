"""The accused waits in a framework's own call that needs every worker, or is stopped in a save."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.wording import rank_advice
from hangscope.trace.model import Frame, Phase, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job

TRAIN = Frame("train", "/home/me/train.py", 30)


def missing(*frames: Frame, state: str = "sleeping", phase: str = "") -> Diagnosis:
    """Rank 2 does not come to the others' collective; its main thread is here."""
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 1):
        job.op(rank, done=False)
    threads = (ThreadStack("MainThread", True, (*frames, TRAIN), START),)
    beat_ns = START + int(job.now * SECOND)
    phases = (Phase(phase, beat_ns),) if phase else ()
    job.rank(2, threads=threads, process_state=state, heartbeat_ns=beat_ns, phases=phases)
    return diagnose(job.trace())


@pytest.mark.parametrize(("name", "meets"), [("report", True), ("decode", False)])
def test_accused_that_waits_for_every_worker_is_ambiguous(name: str, meets: bool) -> None:
    library = "/opt/venv/lib/python3.11/site-packages/ray/train/_internal/session.py"
    found = missing(Frame("wait", "/usr/lib/python3.11/threading.py", 5), Frame(name, library, 9))
    assert found.culprits == (2,)
    assert (found.confidence is Confidence.AMBIGUOUS) is meets
    assert any("report needs other ranks" in u for u in found.findings[0].unknowns) is meets


@pytest.mark.parametrize("function", ["save_checkpoint", "load_batch"])
def test_rank_stopped_during_a_checkpoint_says_so(function: str) -> None:
    found = missing(Frame(function, "/home/me/train.py", 9), state="stopped")
    (side,) = [s for s in found.findings[0].sides if s.ranks == (2,)]
    assert side.activity.startswith("stopped")
    assert ("during a checkpoint" in side.activity) is (function == "save_checkpoint")


@pytest.mark.parametrize(
    ("function", "phase", "saves"),
    [
        ("save_checkpoint", "", True),
        ("write", "checkpoint", True),
        ("load_checkpoint", "", False),
        ("write", "", False),
    ],
)
def test_advice_for_a_rank_stopped_in_a_checkpoint(function: str, phase: str, saves: bool) -> None:
    found = missing(Frame(function, "/home/me/train.py", 9), state="stopped", phase=phase)
    fix = found.findings[0].fix
    assert fix.startswith("resume the stopped process (kill -CONT)")
    assert ("it is in a checkpoint: if you end the job, what it was writing" in fix) is saves


def test_advice_for_a_rank_that_was_ended_while_stopped_in_a_checkpoint() -> None:
    process = ProcessState(1, End.TORN_DOWN, "stopped", phase="checkpoint")
    fix = rank_advice.missing(process).fix
    assert fix.startswith("find out what had stopped the process (SIGSTOP)")
    assert "it was in a checkpoint: what it was writing" in fix
