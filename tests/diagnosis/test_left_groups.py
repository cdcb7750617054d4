"""Ranks that destroyed their groups while others still used them, and live on."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame, Phase
from tests.diagnosis.builder import SECOND, START, Job, blame, stack_of

_CLOSED = ExceptionFacts(
    "RuntimeError",
    "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:23189",
    (Frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 1),),
    START + SECOND,
)


def _left_by_rank_1(*, live: bool, finalized: bool = True) -> Job:
    """Ranks 0 and 2 issue what rank 1 never will."""
    job = Job(3, live=live)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.rank(1, finalized=finalized, threads=stack_of("upload"))
    return job


def test_who_destroyed_its_groups_is_named_before_the_timeout() -> None:
    found = diagnose(_left_by_rank_1(live=True).trace(after_s=2))
    assert (*blame(found), found.confidence.value) == ("missing_rank", (1,), "certain")
    assert "has already called destroy_process_group" in found.findings[0].why


def test_so_is_who_destroyed_that_group_alone_whatever_it_works_at() -> None:
    job = _left_by_rank_1(live=True, finalized=False)
    job.rank(1, cpu_busy=1.0, stack_moved=True)
    counted = {"rank": 1, "group": 0, "enqueued": 4, "started": 4, "completed": 4}
    job.members.append({**counted, "left_ns": START + SECOND})
    found = diagnose(job.trace(after_s=2))
    assert (*blame(found), found.confidence.value) == ("missing_rank", (1,), "certain")
    assert "has already left this group" in found.findings[0].why
    job.members[-1]["left_ns"] = 0
    assert diagnose(job.trace(after_s=2)).culprits == ()


def test_who_may_still_come_is_not() -> None:
    assert diagnose(_left_by_rank_1(live=True, finalized=False).trace(after_s=2)).culprits == ()


def test_who_makes_a_new_world_may_come() -> None:
    job = _left_by_rank_1(live=True)
    job.rank(1, phases=(Phase("init_process_group", START, 0),))
    assert diagnose(job.trace(after_s=2)).culprits == ()


def test_send_that_nobody_will_receive_is_left_alone() -> None:
    job = Job(2, live=True)
    job.steps(4)
    job.op(0, "send", peer=1, done=False, flags=Flag.ASYNC)
    job.rank(1, finalized=True)
    assert diagnose(job.trace(after_s=2)).culprits == ()


def test_groups_made_by_hand_outlive_torchs() -> None:
    job = _left_by_rank_1(live=True)
    job.groups[0] = replace(job.groups[0], place=0, size=4)
    assert diagnose(job.trace(after_s=2)).culprits == ()


def test_who_loses_the_connection_to_it_is_a_victim() -> None:
    job = _left_by_rank_1(live=True)
    for rank in (0, 2):
        end = ExitFacts("exception", 1, at_ns=START + 2 * SECOND)
        job.rank(rank, alive=False, exception=_CLOSED, exit=end)
    assert blame(diagnose(job.trace(after_s=5))) == ("missing_rank", (1,))


def test_being_killed_long_afterwards_is_no_crash() -> None:
    job = _left_by_rank_1(live=False)
    for rank in (0, 2):
        end = ExitFacts("exception", 1, at_ns=START + SECOND)
        job.rank(rank, alive=False, exception=_CLOSED, exit=end)
    job.rank(1, alive=False, exit=ExitFacts("signal", signal=9, at_ns=START + 50 * SECOND))
    assert blame(diagnose(job.trace())) == ("missing_rank", (1,))
