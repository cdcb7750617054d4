"""A verdict that hangs on an exit status waits for ranks on their way out, but not for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.monitor.leaving_ranks import SHUTDOWN_S, LeavingRanks
from hangscope.monitor.rank_state import is_shutting_down
from hangscope.ring.layout import LEAVING_PHASE
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Phase, RankFacts, Trace
from tests.diagnosis.builder import START, Job

EXITING = (Phase(LEAVING_PHASE, START),)
FAILED = ExceptionFacts("ValueError", "no label", (Frame("load", "data.py", 7),), START)


def job_with(**facts: Any) -> Trace:
    job = Job(2, live=True)
    job.steps(3)
    job.rank(1, alive=True, **facts)
    return job.trace(after_s=1)


def told(trace: Trace, verdict: Verdict, *culprits: int) -> Diagnosis:
    return replace(diagnose(trace), verdict=verdict, culprits=culprits)


def nobody(facts: RankFacts) -> bool:
    return False


LEAVING = job_with(phases=EXITING)
RUNNING = job_with()


def test_examples_are_what_they_are_called() -> None:
    assert is_shutting_down(LEAVING.ranks[1])
    assert not is_shutting_down(RUNNING.ranks[1])


@pytest.mark.parametrize(
    ("verdict", "awaited"),
    [
        (Verdict.RANK_EXITED, True),
        (Verdict.INCONCLUSIVE, True),
        (Verdict.COLLECTIVE_MISMATCH, False),
        (Verdict.MISSING_RANK, False),
    ],
)
def test_only_a_verdict_on_ends_waits_for_a_rank_on_its_way_out(
    verdict: Verdict, awaited: bool
) -> None:
    assert LeavingRanks(nobody).are_awaited(LEAVING, told(LEAVING, verdict, 1), 5.0) is awaited
    assert not LeavingRanks(nobody).are_awaited(RUNNING, told(RUNNING, verdict, 1), 5.0)


def test_process_without_a_status_yet_is_awaited() -> None:
    ending = LeavingRanks(lambda facts: facts.rank == 1)
    assert ending.are_awaited(RUNNING, told(RUNNING, Verdict.RANK_EXITED, 1), 5.0)


def test_failure_that_is_known_already_waits_for_no_shutdown() -> None:
    trace = job_with(phases=EXITING, exception=FAILED, exit=ExitFacts("exception", 1, at_ns=START))
    assert not LeavingRanks(nobody).are_awaited(trace, told(trace, Verdict.RANK_CRASHED, 1), 5.0)


def test_rank_that_does_not_end_is_awaited_for_a_while_only() -> None:
    ranks, verdict = LeavingRanks(nobody), told(LEAVING, Verdict.RANK_EXITED, 1)
    assert ranks.are_awaited(LEAVING, verdict, 5.0)
    assert ranks.are_awaited(LEAVING, verdict, 5.0 + SHUTDOWN_S - 0.1)
    assert not ranks.are_awaited(LEAVING, verdict, 5.0 + SHUTDOWN_S)
    assert not ranks.are_awaited(RUNNING, told(RUNNING, Verdict.RANK_EXITED, 1), 30.0)
    assert ranks.are_awaited(LEAVING, verdict, 40.0), "it had gone on in between"
