"""Early notices: long for this job, said once, taken back when the job goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hangscope.monitor.notices import Notice, Notices
from hangscope.trace.model import Frame, Phase, State, Trace
from tests.diagnosis.builder import SECOND, START, Job, stack_of


def waiting(after_s: float, *, passes: int = 20, job: Job | None = None) -> Trace:
    """Four ranks after some steps; rank 2 sleeps in load_batch and the others wait for it."""
    job = job or Job(4, live=True, timeout_s=120.0)
    job.steps(passes)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    job.rank(2, threads=stack_of("load_batch"), cpu_busy=0.0, stack_moved=False)
    return job.trace(after_s)


def lines(*traces: Trace) -> list[str | None]:
    notices = Notices()
    said = [notices.line(trace, notices.early(trace)) for trace in traces]
    return [word.line if isinstance(word, Notice) else word for word in said]


def test_two_looks_make_a_notice_that_says_who_waits_for_whom_and_what_is_usual() -> None:
    first, second = lines(waiting(6.0), waiting(7.0))
    assert first is None
    assert second is not None
    assert second.startswith("3 ranks have waited 7 s for rank 2 in all_reduce #21 (usually ")
    assert second.endswith("rank 2 is in load_batch, data.py:41")


def test_a_cause_is_noticed_once() -> None:
    assert lines(waiting(6.0), waiting(7.0), waiting(8.0), waiting(9.0))[2:] == [None, None]


def test_a_notice_is_taken_back_when_the_operation_is_over() -> None:
    over = waiting(9.0)
    records = over.records.copy()
    records["state"] = int(State.COMPLETED)
    records["completed_ns"] = over.observed_ns
    said = lines(waiting(6.0), waiting(7.0), replace(over, records=records))
    assert said[2] == "the job goes on: the wait for rank 2 is over after 9 s"


def test_of_a_job_on_several_nodes_the_ranks_that_are_seen_tell_that_a_wait_is_over() -> None:
    notices = Notices()
    for after_s in (6.0, 7.0):
        trace = waiting(after_s)
        notices.line(trace, notices.early(trace))
    here, there = (
        replace(
            trace,
            ranks={rank: trace.ranks[rank] for rank in ranks},
            records=trace.records[np.isin(trace.records["rank"], ranks)],
        )
        for ranks in ((0, 1), (2,))
    )
    assert notices.over(here) is None
    assert notices.over(there) is None  # nothing is seen of those who wait
    moved = here.records.copy()
    moved["state"] = int(State.COMPLETED)
    assert notices.over(replace(here, records=moved)) is not None


def test_a_wait_that_is_usual_for_this_job_is_none() -> None:
    job = Job(4, live=True, timeout_s=120.0)
    for step in range(20):
        for rank in range(4):
            job.op(rank, at=step * 10.0 + (4.0 if rank == 2 else 0.0))
    for row in job.rows:
        row["completed_ns"] = max(
            r["created_ns"] for r in job.rows if r["collective_seq"] == row["collective_seq"]
        )
    assert lines(waiting(8.0, passes=0, job=job), waiting(9.0, passes=0, job=job))[1] is None


@pytest.mark.parametrize("busy", [True, False])
def test_at_a_new_call_site_only_an_idle_rank_is_worth_a_word(busy: bool) -> None:
    traces = []
    for after_s in (10.0, 11.0):
        trace = waiting(after_s, passes=1)
        facts = replace(trace.ranks[2], cpu_busy=1.0 if busy else 0.0, stack_moved=busy)
        traces.append(replace(trace, ranks={**trace.ranks, 2: facts}))
    said = lines(*traces)[1]
    assert (said is None) == busy


def test_what_the_job_itself_announces_is_no_news() -> None:
    traces = []
    for after_s in (10.0, 11.0):
        trace = waiting(after_s)
        facts = replace(trace.ranks[2], phases=(Phase("checkpoint"),))
        traces.append(replace(trace, ranks={**trace.ranks, 2: facts}))
    assert lines(*traces) == [None, None]


def test_switched_off() -> None:
    assert Notices(enabled=False).early(waiting(60.0)) is None


def at_work(trace: Trace, **what: Any) -> Trace:
    """The same look, and what rank 2 does instead of sleeping."""
    return replace(trace, ranks={**trace.ranks, 2: replace(trace.ranks[2], **what)})


@pytest.mark.parametrize(
    "what",
    [
        {"cpu_busy": 0.2},
        {"stack_moved": True},
        {"process_state": "disk-sleep"},
        {"wakeups_hz": 5.0},
        {"threads": stack_of("save_checkpoint")},
    ],
)
def test_a_rank_at_work_may_take_a_minute_even_where_waits_are_short(
    what: dict[str, Any],
) -> None:
    assert lines(*(at_work(waiting(s), **what) for s in (50.0, 55.0)))[1] is None
    assert lines(*(at_work(waiting(s), **what) for s in (65.0, 66.0)))[1] is not None


def test_so_may_one_whose_helper_processes_are_at_work() -> None:
    notices = Notices()
    for after_s in (20.0, 25.0):
        trace = waiting(after_s)
        assert notices.line(trace, notices.early(trace), {2}) is None


def test_a_stretch_that_was_long_for_all_ranks_is_measured_by_the_slowest_so_far() -> None:
    def after_a_minute(after_s: float) -> Trace:
        job = Job(4, live=True, timeout_s=120.0)
        job.steps(20)
        newest = max(row["completed_ns"] for row in job.rows) / 1e9
        began = min(row["created_ns"] for row in job.rows) / 1e9
        for rank in (0, 1, 3):
            job.op(rank, at=newest - began + 40.0, done=False)
        job.rank(2, threads=stack_of("load_batch"), cpu_busy=0.0, stack_moved=False)
        return job.trace(after_s)

    assert lines(after_a_minute(20.0), after_a_minute(25.0))[1] is None
    assert lines(after_a_minute(45.0), after_a_minute(46.0))[1] is not None


def test_a_rank_that_was_noticed_once_is_noticed_again_only_for_much_longer() -> None:
    notices = Notices()
    over = waiting(9.0)
    records = over.records.copy()
    records["state"] = int(State.COMPLETED)
    records["completed_ns"] = over.observed_ns
    looks = [waiting(6.0), waiting(7.0), replace(over, records=records)]
    looks += [waiting(8.0), waiting(20.0), waiting(28.0), waiting(29.0)]
    said = [notices.line(trace, notices.early(trace)) for trace in looks]
    assert [word is not None for word in said] == [False, True, True, False, False, True, False]


def test_polling_for_a_key_of_the_store_is_no_work() -> None:
    stack = (
        Frame("get", "/site-packages/hangscope/recording/store_waits.py", 60),
        *stack_of("f")[0].stack,
    )
    threads = (replace(stack_of("f")[0], stack=stack),)
    what = {"wakeups_hz": 20.0, "threads": threads, "phases": (Phase("store.get", 1, "a key"),)}
    said = lines(*(at_work(waiting(s), **what) for s in (6.0, 7.0)))[1]
    assert said is not None


def in_the_meeting(after_s: float, **what: Any) -> Trace:
    """Three ranks wait in ``init_process_group`` since half a second after their start."""
    job = Job(4, live=True, timeout_s=120.0)
    for rank in (0, 1, 3):
        phase = Phase("init_process_group", START + SECOND // 2)
        job.rank(rank, initialized=False, phases=(phase,), started_ns=START, heartbeat_ns=START)
    idle = {"cpu_busy": 0.0, "stack_moved": False, "threads": stack_of("load_tokenizer")}
    job.rank(2, initialized=False, started_ns=START, heartbeat_ns=START, **{**idle, **what})
    return job.trace(after_s)


def test_a_rank_that_does_not_come_to_the_first_meeting() -> None:
    first, second = lines(in_the_meeting(10.0), in_the_meeting(11.0))
    assert first is None
    assert second is not None
    assert second.startswith("3 ranks have waited 11 s for rank 2 in init_process_group: rank 2 is")
    busy = {"cpu_busy": 1.0}
    assert lines(in_the_meeting(10.0, **busy), in_the_meeting(11.0, **busy)) == [None, None]
