"""Waits in manually created groups, whose other members may be processes of another job."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import Flag, Frame, Group, ThreadStack
from tests.diagnosis.builder import START, Job

PACKAGE = "/env/lib/python3.11/site-packages/torchft/manager.py"
QUORUM = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 327),
    Frame("wait_quorum", PACKAGE, 632),
    Frame("train", "/job/train.py", 40),
)


def _by_hand(job: Job, rank: int, place: int = 0) -> int:
    job.groups.append(Group(f"@{rank}", "weights", (rank,), size=2, place=place))
    return len(job.groups) - 1


@pytest.mark.parametrize("flags", [Flag(0), Flag.UNOBSERVED])
def test_rank_waiting_for_an_engine_accuses_no_rank_of_its_own_job(flags: Flag) -> None:
    job = Job(3, live=True)
    weights = _by_hand(job, 0)
    for _ in range(3):
        job.all()
        job.op(0, "broadcast", group=weights)
    job.all()
    job.op(0, group=weights, done=False, flags=flags)
    for rank in (1, 2):
        job.op(rank, "barrier", size=(), done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.findings[0].victims == (0, 1, 2)
    assert found.summary == (
        "Rank 0 waits in all_reduce #4 in group weights for a process that is no known rank of "
        "this job"
    )


def test_ranks_in_separate_groups_wait_for_outside_members_together() -> None:
    job = Job(2, live=True)
    for group in [_by_hand(job, rank) for rank in range(2)]:
        job.steps(2)
        job.op(group - 1, group=group, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert len(found.findings) == 1
    assert found.summary.startswith("Ranks 0, 1 wait in all_reduce #1 in group weights and other")


def test_rank_elsewhere_is_named_despite_outside_members() -> None:
    """An engine waits for the trainers' first rank; the other trainers wait for it, too."""
    job = Job(3, live=True)
    _by_hand(job, 0)
    job.steps(3)
    for rank in (1, 2):
        job.op(rank, done=False)
    assert diagnose(job.trace()).culprits == (0,)


def test_world_of_one_that_shares_a_group_may_hang() -> None:
    job = Job(1, live=True)
    group = _by_hand(job, 0, place=1)
    for _ in range(3):
        job.op(0, group=group)
    generate = (Frame("generate", "/job/engine.py", 14),)
    job.rank(0, threads=(ThreadStack("MainThread", True, generate, START + 1),))
    found = diagnose(job.trace())
    assert found.verdict.value == "quiescent"
    assert found.findings[0].evidence == ("rank 0: at engine.py:14 in generate",)


def _quiet(*asleep: int) -> str:
    """The advice where no rank waits in a collective, and all but some are inside a package."""
    job = Job(3, live=True)
    job.steps(3)
    load = (Frame("load", "/job/data.py", 10), Frame("train", "/job/train.py", 38))
    for rank in range(3):
        stack = load if rank in asleep else QUORUM
        job.rank(rank, threads=(ThreadStack("MainThread", True, stack, START + 1),))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("quiescent", ())
    return found.findings[0].fix


def test_rank_in_its_own_code_precedes_those_inside_a_package() -> None:
    assert _quiet(1).startswith(
        "look at data.py:10 in load on rank 1 first: ranks 0, 2 are inside torchft (manager.py:632 "
        "in wait_quorum)"
    )
    assert _quiet(0, 1, 2).startswith("no rank waits in a collective: look at")


def test_advice_leads_outside_the_job_if_all_are_inside_a_package() -> None:
    assert _quiet().startswith("every rank is inside torchft (manager.py:632 in wait_quorum), ")
