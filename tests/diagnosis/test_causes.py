"""Every verdict on the smallest job that deserves it, and the traps next to it."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Flag,
    Phase,
)
from tests.diagnosis.builder import SECOND, START, Job, blame, stack_of


def test_rank_in_its_data_loader_is_missing() -> None:
    job = Job(4, live=True)
    job.steps(17)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    job.rank(2, threads=stack_of("load_batch"), host="node0", pid=4711)
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (2,))
    assert found.confidence is Confidence.CERTAIN
    finding = found.findings[0]
    assert finding.victims == (0, 1, 3)
    assert (finding.seq, finding.op) == (18, "all_reduce")
    assert "load_batch" in finding.why
    assert "data.py:41" in finding.fix
    assert "4711" in finding.fix
    assert finding.sides[0].ranks == (0, 1, 3)
    assert finding.sides[1].ranks == (2,)
    assert {(e.waiter, e.on) for e in found.wait_for} == {(0, 2), (1, 2), (3, 2)}


def test_thousands_of_waiting_ranks_are_all_victims() -> None:
    world = 5000
    job = Job(world, live=True)
    for rank in range(world - 1):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (world - 1,))
    assert [(e.waiter, e.on) for e in found.wait_for] == [(r, world - 1) for r in range(world - 1)]


def test_cycle_of_large_groups_waits_for_a_few_ranks() -> None:
    world = 400
    job = Job(world, live=True)
    half = world // 2
    other = job.group(*range(world), desc="other")
    for rank in range(world):
        job.op(rank, group=0 if rank < half else other, done=False)
    found = diagnose(job.trace())
    assert found.verdict is Verdict.DEADLOCK_CYCLE
    assert {e.waiter for e in found.wait_for} == set(range(world))
    assert all(e.waiter != e.on for e in found.wait_for)
    assert len(found.wait_for) <= 4096


def test_report_of_another_node_stays_valid_until_replaced() -> None:
    """Its ranks wait as long as all others, but were last seen before the timeout."""
    job = Job(6, live=True, timeout_s=6.0)
    host = job.group(2, 3)
    across = job.group(0, 2, 4)
    for _ in range(2):
        job.all(group=host)
        job.all(group=across)
    job.op(2, group=host, done=False)
    for rank in (0, 4):
        job.op(rank, group=across, done=False)
    for rank in (2, 3):
        job.rank(rank, observed_ns=START + int((job.now + 3) * SECOND))
    found = diagnose(job.trace(after_s=7))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert found.findings[0].confidence is Confidence.CERTAIN
    assert len(found.findings) == 1
    long_ago = diagnose(job.trace(after_s=40))
    assert (long_ago.culprits, long_ago.confidence) == ((3,), Confidence.LIKELY)
    assert "ranks 2, 3 was last heard from 37 s ago" in str(long_ago.findings[0].unknowns)


def test_crash_is_the_cause_and_echoes_are_victims() -> None:
    job = Job(4)
    job.steps(3)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    at = START + 5 * SECOND
    job.rank(
        1,
        alive=False,
        exception=ExceptionFacts("builtins.ValueError", "bad sample", stack_of("f")[0].stack, at),
        exit=ExitFacts("exception", code=1, at_ns=at + SECOND),
    )
    for rank in (0, 2, 3):
        job.rank(
            rank,
            alive=False,
            exception=ExceptionFacts(
                "builtins.RuntimeError",
                "[pair.cc:1] Connection closed by peer [1.2.3.4]:5",
                (),
                at - 1,
            ),
            exit=ExitFacts("exception", code=1, at_ns=at + SECOND),
        )
    found = diagnose(job.trace())
    assert blame(found) == ("rank_crashed", (1,))
    assert "bad sample" in found.summary
    assert len(found.findings) == 1


def test_sigkill_and_the_launchers_sigterm() -> None:
    job = Job(4)
    job.steps(3)
    for rank in (0, 3):
        job.op(rank, done=False)
    at = START + 5 * SECOND
    job.rank(1, alive=False, exit=ExitFacts("signal", signal=9, at_ns=at))
    for rank in (0, 2, 3):
        job.rank(
            rank,
            alive=False,
            exit=ExitFacts("signal", signal=15, at_ns=at + SECOND, by_launcher=True),
        )
    assert blame(diagnose(job.trace())) == ("rank_crashed", (1,))


def test_early_clean_exit_is_rank_exited() -> None:
    job = Job(4, live=True, timeout_s=100)
    job.steps(3)
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    job.rank(3, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
    assert blame(diagnose(job.trace(after_s=1))) == ("rank_exited", (3,))


def test_hang_that_was_killed_is_still_a_hang() -> None:
    job = Job(4)
    job.steps(30)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    for rank in range(4):
        job.rank(
            rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=START + 300 * SECOND + rank)
        )
    assert blame(diagnose(job.trace(after_s=400))) == ("missing_rank", (2,))


def test_opposite_order_of_two_groups_is_a_deadlock() -> None:
    job = Job(4)
    a, b = job.group(0, 1, 2, 3), job.group(0, 1, 2, 3)
    job.steps(3)
    job.op(3, group=b, done=False)
    for rank in (0, 1, 2):
        job.op(rank, group=a, done=False)
    assert blame(diagnose(job.trace())) == ("deadlock_cycle", (3,))


def test_opposite_order_with_the_host_running_ahead_is_a_deadlock() -> None:
    job = Job(4)
    a, b = job.group(0, 1, 2, 3), job.group(0, 1, 2, 3)
    job.steps(3)
    for rank in range(4):
        for group in (b, a) if rank == 3 else (a, b):
            job.op(rank, group=group, done=False)
    assert blame(diagnose(job.trace())) == ("deadlock_cycle", (3,))


def test_operation_issued_by_all_and_completed_by_none_is_stuck() -> None:
    job = Job(4)
    job.steps(3)
    job.all(done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("stuck_collective", ())


def test_rank_stuck_on_the_device_is_named() -> None:
    job = Job(4)
    job.steps(3)
    job.all(size=(3,), done=True)
    job.rows[-1]["state"] = 0
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("stuck_collective", (3,))


def test_rank_that_never_reached_init_is_missing() -> None:
    job = Job(4, live=True)
    for rank in (0, 1, 3):
        job.rank(rank, phases=(Phase("init_process_group", START),), initialized=False)
    job.rank(2, initialized=False, threads=stack_of("download"))
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (2,))
    assert "init_process_group" in found.summary


@pytest.mark.parametrize("again", [True, False])
def test_init_left_by_one_rank_is_complete_for_that_rank(again: bool) -> None:
    """The others are in it as well, and find the addresses of their previous group."""
    job = Job(4, live=True)
    job.op(0, "all_gather", done=False)
    for rank in (1, 2, 3):
        phases = (Phase("init_process_group", START),)
        job.rank(rank, phases=phases, initialized=False, finalized=again)
    found = diagnose(job.trace())
    assert blame(found) == ("stuck_collective", ())
    assert found.summary == (
        "Ranks 1–3 cannot finish init_process_group (ranks 0–3), which is over on rank 0"
    )
    assert ("addresses of the group" in found.findings[0].why) is again


def test_lost_rank_is_accused_only_without_another_explanation() -> None:
    job = Job(4)
    job.steps(3)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    job.lose(2)
    found = diagnose(job.trace())
    assert blame(found) == ("rank_lost", (2,))
    assert found.confidence is Confidence.LIKELY

    job = Job(4)
    job.steps(3)
    for rank in (0, 3):
        job.op(rank, done=False)
    job.lose(2)
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (1,))
    assert found.confidence is Confidence.LIKELY


def test_hybrid_mesh_has_one_cause() -> None:
    """Rank 5 of a 2 x 4 mesh stalls: its tensor group waits for it, data groups for that group."""
    job = Job(8)
    tensor = [job.group(0, 1, 2, 3, desc="tp"), job.group(4, 5, 6, 7, desc="tp")]
    data = [job.group(r, r + 4, desc="dp") for r in range(4)]
    for _ in range(3):
        for g in tensor + data:
            job.all(group=g)
    for rank in (4, 6, 7):
        job.op(rank, group=tensor[1], done=False)
    job.all(group=tensor[0])
    for rank in range(4):
        job.op(rank, group=data[rank], done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (5,))
    assert set(found.findings[0].victims) == {0, 1, 2, 3, 4, 6, 7}
    assert len(found.findings) == 1


def test_extra_collective_after_all_others_finished_is_named() -> None:
    job = Job(4)
    job.steps(3)
    job.op(0, "barrier", done=False, line=99)
    for rank in (1, 2, 3):
        job.rank(rank, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
    job.rank(0, alive=True)
    found = diagnose(job.trace())
    assert blame(found) == ("collective_mismatch", (0,))
    assert "D21" in found.findings[0].playbook


def test_dumps_of_unfinished_entries_prove_no_absence() -> None:
    job = Job(4)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
        job.rows[-1]["collective_seq"] = 118
    for rank in range(4):
        job.rank(rank, only_active=True)
        job.members.append(
            {
                "rank": rank,
                "group": 0,
                "enqueued": 118 if rank != 2 else 117,
                "completed": 117,
                "p2p_enqueued": -1,
                "started": -1,
            }
        )
    assert blame(diagnose(job.trace())) == ("missing_rank", (2,))


def test_unobservable_completion_is_judged_by_arrivals() -> None:
    job = Job(4)
    for step in range(5):
        for rank in range(4):
            if (step, rank) != (4, 2):
                last = step == (3 if rank == 2 else 4)
                job.op(rank, done=False, flags=Flag.UNOBSERVED if last else Flag.RETIRED)
                job.rows[-1]["state"] = 0 if last else 2
    assert blame(diagnose(job.trace())) == ("missing_rank", (2,))


def test_unobservable_completion_with_all_members_present_is_no_hang() -> None:
    job = Job(4)
    job.steps(4)
    job.all(done=False, flags=Flag.UNOBSERVED)
    assert blame(diagnose(job.trace())) == ("stuck_collective", ())


def test_later_collective_of_all_ranks_proves_earlier_ones() -> None:
    job = Job(4)
    job.steps(3)
    job.all("_reduce_scatter_base", done=False)
    job.all("_all_gather_base")
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    assert blame(diagnose(job.trace())) == ("missing_rank", (2,))


def test_ranks_alone_at_one_collective_are_named_together() -> None:
    """A grid of 4 x 2: only ranks 2 and 6 issue a global barrier before their column's sum."""
    job = Job(8)
    rows = [job.group(r, r + 1, desc="tp") for r in range(0, 8, 2)]
    columns = [job.group(*range(first, 8, 2), desc="dp") for first in (0, 1)]
    for _ in range(3):
        for group in (*rows, *columns):
            job.all(group=group)
    for group in rows:
        job.all(group=group)
    for rank in (2, 6):
        job.op(rank, "barrier", size=(), done=False)
    for rank in (0, 4):
        job.op(rank, group=columns[0], done=False)
    job.all(group=columns[1])
    for rank in (1, 3, 5, 7):
        job.op(rank, group=rows[rank // 2], done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("deadlock_cycle", (2, 6))
    assert found.confidence is Confidence.LIKELY


def test_signal_that_ended_a_rank_is_not_its_fault() -> None:
    job = Job(4)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    for rank in range(4):
        ended = ExitFacts("signal", signal=15, at_ns=START + 90 * SECOND, by_launcher=True)
        job.rank(rank, alive=False, exit=ended, host="node0", pid=40 + rank)
    first = diagnose(job.trace(after_s=91)).findings[0]
    assert first.culprits == (1,)
    assert "rank 1 issued nothing in this group" in first.why
    assert "what runs there instead on host node0 (pid 41)" in first.fix
