"""Of several ends, which is the first failure, and which only follow from another rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hangscope.diagnosis.exits.first_timeout import MARGIN_NS, came_too_late
from hangscope.diagnosis.exits.primary_failures import (
    first_to_fail,
    judge_ends,
    primary_crashes,
)
from hangscope.diagnosis.processes.failures import failure_of
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, RankFacts
from tests.diagnosis.builder import SECOND, START, Job

TIMED_OUT = "RuntimeError: Timed out waiting 60000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [::1]:4711"
LOADER = (Frame("load", "/job/data.py", 7),)


def state(
    rank: int, end: End, at_s: float = 0.0, text: str = "ValueError: no label", **how: Any
) -> ProcessState:
    """A process that ended so many seconds after the job began; 0: nobody noted when."""
    return ProcessState(
        rank, end, "gone", end_ns=int(at_s * SECOND) and START + int(at_s * SECOND),
        end_text=text, failure=failure_of(text), **how,
    )  # fmt: skip


def primary(processes: Sequence[ProcessState], waits_on: dict[int, set[int]]) -> list[int]:
    found = primary_crashes({process.rank: process for process in processes}, waits_on)
    return [process.rank for process in found]


# -- failures of ranks that waited for others ------------------------------------------------


def test_failure_after_the_awaited_rank_has_ended_is_that_ranks_doing() -> None:
    left, failed = state(0, End.CLEAN, 10), state(1, End.CRASHED, 12)
    other = state(2, End.CRASHED, 12.5, text="OSError: no space")
    assert primary([left, failed, other], {1: {0}}) == [2]


def test_failure_before_the_awaited_rank_ended_is_the_ranks_own() -> None:
    first, second = state(0, End.CRASHED, 10), state(1, End.CRASHED, 20, text="KeyError: 3")
    assert primary([first, second], {0: {1}}) == [0]


@pytest.mark.parametrize("end", [End.ALIVE, End.UNKNOWN, End.TORN_DOWN])
def test_failure_is_not_explained_by_an_awaited_rank_that_did_not_end_by_itself(end: End) -> None:
    """Without times, both failures may have been the first."""
    processes = [state(0, End.CRASHED), state(1, end), state(2, End.CRASHED, text="KeyError: 3")]
    assert primary(processes, {0: {1}}) == [0, 2]


def test_failure_is_explained_by_an_end_at_an_unknown_time() -> None:
    processes = [state(0, End.CRASHED), state(1, End.CLEAN, 10), state(2, End.CRASHED)]
    assert primary(processes, {0: {1}}) == [2]
    processes = [state(0, End.CRASHED, 9), state(1, End.CLEAN), state(2, End.CRASHED, 9.5)]
    assert primary(processes, {0: {1}}) == [2]


def test_rank_in_a_collective_with_itself_does_not_explain_its_own_failure() -> None:
    """Every member of a place waits for all of its members."""
    processes = [state(0, End.CRASHED, 10), state(1, End.CRASHED, 11, text="KeyError: 3")]
    assert primary(processes, {0: {0, 2}}) == [0]


# -- failures beside each other --------------------------------------------------------------


@pytest.mark.parametrize(
    ("after_s", "text", "named"),
    [
        pytest.param(1.0, "ValueError: no label", [0, 1], id="the same at one moment"),
        pytest.param(1.0, "KeyError: 3", [0], id="another at one moment"),
        pytest.param(3.0, "ValueError: no label", [0], id="the same much later"),
    ],
)
def test_later_failure_counts_only_if_it_is_the_same_at_the_same_moment(
    after_s: float, text: str, named: list[int]
) -> None:
    failed = [state(1, End.CRASHED, 10 + after_s, text), state(0, End.CRASHED, 10)]
    assert [process.rank for process in first_to_fail(failed)] == named


def test_undated_failure_may_have_been_the_first() -> None:
    failed = [state(0, End.CRASHED, 10), state(1, End.CRASHED, text="KeyError: 3")]
    assert [process.rank for process in first_to_fail(failed)] == [1, 0]


# -- ends that nobody saw --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beat_s", "host", "end"),
    [
        pytest.param(11.0, "node0", End.TORN_DOWN, id="alive after the failure"),
        pytest.param(9.0, "node0", End.CRASHED, id="silent before the failure"),
        pytest.param(11.0, "node1", End.CRASHED, id="on another host's clock"),
    ],
)
def test_rank_that_outlived_a_failure_of_its_host_did_not_cause_it(
    beat_s: float, host: str, end: End
) -> None:
    job = Job(2)
    failed_ns = START + 10 * SECOND
    job.rank(
        0,
        host="node0",
        alive=False,
        exception=ExceptionFacts("ValueError", "no label", LOADER, failed_ns),
        exit=ExitFacts("exception", code=1, at_ns=failed_ns),
    )
    job.rank(1, host=host, alive=False, exit=None, heartbeat_ns=START + int(beat_s * SECOND))
    ends = judge_ends(job.trace())
    assert ends[0].end is End.CRASHED
    assert ends[1].end is end


# -- ranks that came when nobody waited any more ---------------------------------------------


def too_late(
    *waiters: ProcessState | None, at_s: float = 20.0, host: str = "node1", **how: Any
) -> bool:
    late = state(0, End.CRASHED, at_s, CLOSED, **{"secondary": True, **how})
    ranks = {0: RankFacts(0, host=host)} | {r: RankFacts(r, host="node1") for r in (1, 2)}
    return came_too_late(late, waiters, ranks)


def gave_up(rank: int, at_s: float = 10.0, text: str = TIMED_OUT, **how: Any) -> ProcessState:
    return state(rank, End.CRASHED, at_s, text, **{"secondary": True, **how})


def test_rank_that_finds_connections_closed_after_all_gave_up_on_it_came_too_late() -> None:
    assert too_late(gave_up(1), gave_up(2, text=CLOSED))


@pytest.mark.parametrize(
    "waiters",
    [
        pytest.param((), id="nobody waited"),
        pytest.param((gave_up(1), None), id="one of them left nothing"),
        pytest.param((gave_up(1), state(2, End.ALIVE)), id="one of them still waits"),
        pytest.param((gave_up(1), gave_up(2, secondary=False)), id="one failed on its own"),
        pytest.param((gave_up(1, text=CLOSED), gave_up(2, text=CLOSED)), id="nobody timed out"),
        pytest.param((gave_up(1), gave_up(2, at_s=0)), id="one ended nobody knows when"),
        pytest.param((gave_up(1), gave_up(2, at_s=21)), id="one ended after it"),
    ],
)
def test_rank_came_too_late_only_if_all_who_waited_had_given_up(
    waiters: tuple[ProcessState | None, ...],
) -> None:
    assert not too_late(*waiters)


def test_failure_of_a_ranks_own_is_not_for_coming_too_late() -> None:
    assert not too_late(gave_up(1), secondary=False)
    assert not too_late(gave_up(1), at_s=0)


def test_clock_of_another_host_leaves_a_margin_to_come_too_late() -> None:
    soon_s = 10 + MARGIN_NS / SECOND / 2
    assert too_late(gave_up(1), at_s=soon_s)
    assert not too_late(gave_up(1), at_s=soon_s, host="node0")
