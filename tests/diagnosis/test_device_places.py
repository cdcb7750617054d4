"""Device operations whose end nobody observes: what NCCL's counters and roots reveal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, Flag, Source, Trace
from tests.diagnosis.builder import SECOND, START, Job, judged

UNSEEN = {"done": False, "flags": Flag.UNOBSERVED | Flag.ASYNC}


def rings(job: Job, *, without: tuple[int, ...] = ()) -> Trace:
    """Of ranks ``without`` a ring at most a monitor's journal tells."""
    left = [r for r in range(job.world) if r not in without]
    return job.trace(sources=tuple(Source(f"rank_{r}.ring", formats.RING, "3", r) for r in left))


def count(job: Job, finished: list[int], group: int = 0) -> None:
    """What NCCL has counted for a group, per rank."""
    for rank, done in enumerate(finished):
        if rank in job.groups[group].ranks:
            job.members.append(
                {
                    "rank": rank,
                    "group": group,
                    "enqueued": job.seq[rank, group],
                    "completed": done,
                    "p2p_enqueued": 0,
                }
            )


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_operation_issued_by_all_and_completed_by_none_waits_on_devices(backend: str) -> None:
    job = Job(4)
    for _ in range(6):
        job.all(**UNSEEN)
    count(job, [5, 5, 5, 5])
    job.signatures = [replace(signature, backend=backend) for signature in job.signatures]
    assert judged(rings(job)) == (Verdict.STUCK_COLLECTIVE, (), Confidence.LIKELY)
    (finding,) = diagnose(rings(job)).findings
    assert "what else is queued in their streams" in finding.fix


def test_oldest_of_several_operations_in_flight_is_reported() -> None:
    job = Job(2)
    for line in range(1, 9):
        job.all(line=line, **UNSEEN)
    count(job, [4, 5])
    assert "all_reduce #6" in diagnose(rings(job)).summary


@pytest.mark.parametrize("finished", [[6, 6, 6, 6], [5, 5, 6, 5], [0, 0, 0, 0], [5, 5, 5, 0]])
def test_device_state_is_unknown_if_a_counter_exists_or_shows_nothing(finished: list[int]) -> None:
    job = Job(4)
    for _ in range(6):
        job.all(**UNSEEN)
    count(job, finished)
    assert diagnose(rings(job)).verdict is not Verdict.STUCK_COLLECTIVE


def test_captured_operations_never_count_as_completed() -> None:
    job = Job(4)
    for _ in range(6):
        job.all(**UNSEEN)
    count(job, [5, 5, 5, 5])
    job.rank(2, unobservable=("a CUDA graph",))
    assert diagnose(rings(job)).verdict is not Verdict.STUCK_COLLECTIVE


def test_stream_may_wait_for_another_group() -> None:
    """Ranks 0 and 1 have both issued the last reduction of their group, after one of all ranks
    which rank 3 never reaches."""
    job = Job(4)
    pair = job.group(0, 1)
    for _ in range(3):
        job.all(**UNSEEN)
        job.all(group=pair, **UNSEEN)
    for rank in (0, 1, 2):
        job.op(rank, **UNSEEN)
    job.all(group=pair, **UNSEEN)
    count(job, [3, 3, 3, 3])
    count(job, [3, 3], group=pair)
    assert judged(rings(job))[:2] == (Verdict.MISSING_RANK, (3,))


def test_receiver_waits_for_an_absent_root() -> None:
    job = Job(4)
    job.all("barrier", **UNSEEN)
    for rank in (1, 2, 3):
        job.op(rank, "broadcast", root=0, **UNSEEN)
    assert judged(rings(job))[:2] == (Verdict.MISSING_RANK, (0,))


def test_root_that_has_sent_waits_for_no_rank() -> None:
    job = Job(4)
    job.all("barrier", **UNSEEN)
    for rank in (0, 1, 2):
        job.op(rank, "broadcast", root=0, **UNSEEN)
    assert diagnose(rings(job)).culprits == ()


def stopped_by_the_launcher(job: Job) -> None:
    for rank in range(job.world):
        end = ExitFacts("signal", None, 15, START + 600 * SECOND, by_launcher=True)
        job.rank(rank, exit=end, heartbeat_ns=START + 599 * SECOND)


@pytest.mark.parametrize("in_journal", [True, False])
def test_operation_issued_by_all_others_waits_for_a_rank_without_ring(in_journal: bool) -> None:
    """It was reported as quiescent, or as healthy if that rank had exited with status 0."""
    job = Job(4)
    for _ in range(6):
        job.all(**UNSEEN)
    count(job, [5, 5, 5, 5])
    del job.members[2]
    facts = job.facts[2]
    job.lose(2)
    if in_journal:
        job.facts[2] = facts
        stopped_by_the_launcher(job)
    trace = rings(job, without=(2,))
    assert judged(trace) == (Verdict.RANK_LOST, (2,), Confidence.LIKELY)


def test_half_a_world_without_rings_accuses_no_rank() -> None:
    job = Job(8)
    shard = job.group(4, 5, 6, 7)
    for _ in range(6):
        job.all(group=shard, **UNSEEN)
    count(job, [5] * 8, group=shard)
    facts = dict(job.facts)
    job.members = [m for m in job.members if m["rank"] != 5]
    job.lose(1, 2, 3, 5)
    job.facts = facts
    stopped_by_the_launcher(job)
    assert diagnose(rings(job, without=(1, 2, 3, 5))).culprits == ()


def test_recorded_ranks_in_different_groups_accuse_no_rank_without_ring() -> None:
    """Rank 1 reached the two groups in the opposite order, which is enough to hang the job."""
    job = Job(4)
    first, second = job.group(0, 1, 2, 3, desc="a"), job.group(0, 1, 2, 3, desc="b")
    for _ in range(3):
        job.all(group=first, **UNSEEN)
        job.all(group=second, **UNSEEN)
    for rank in range(4):
        for group in (second, first) if rank == 1 else (first, second):
            job.op(rank, group=group, **UNSEEN)
    for group in (first, second):
        count(job, [3, 3, 3, 3], group=group)
    job.members = [m for m in job.members if m["rank"] != 0]
    job.lose(0)
    assert diagnose(rings(job, without=(0,))).culprits in ((), (1,))


@pytest.mark.parametrize(
    ("stands", "facts", "named"),
    [
        (True, {}, ()),
        (False, {}, (3,)),
        (True, {"unobservable": ("a CUDA graph",)}, (3,)),
    ],
    ids=["on its device", "elsewhere", "counters are not all"],
)
def test_absent_rank_with_a_blocked_device_is_not_accused(
    *, stands: bool, facts: dict[str, Any], named: tuple[int, ...]
) -> None:
    """NCCL has not completed what ranks 1 and 3 have issued, and it is not observed for which rank
    it waits."""
    job = Job(4)
    pair = job.group(1, 3)
    for _ in range(4):
        job.all(group=pair, **UNSEEN)
    job.op(0, "barrier", **UNSEEN)
    job.op(1, "barrier", **UNSEEN)
    job.op(2, "barrier", **UNSEEN)
    count(job, [3 if stands else 4] * 4, group=pair)
    stopped_by_the_launcher(job)
    job.rank(3, **facts)
    assert diagnose(rings(job)).culprits == named


@pytest.mark.parametrize("waited_for", [True, False])
def test_device_may_wait_for_what_another_member_waits_for(waited_for: bool) -> None:
    """Two rings of three; rank 5 skips a round and reaches the barrier. Ranks 3 and 4 have no
    partner for their last round, and block their counterparts 0 and 1 on the devices: those have
    completed all but the last reduction, and are blameless. A send that no rank waits for may be
    left over; then no rank is named."""
    job = Job(6)
    pair = {"done": False, "flags": Flag.UNOBSERVED if waited_for else UNSEEN["flags"]}
    circles = [(0, 1, 2), (3, 4, 5)]
    rings_of = [job.group(*circle) for circle in circles]
    columns = [job.group(r, r + 3) for r in range(3)]
    for step in range(4):
        for turn in range(2):
            for circle, group in zip(circles, rings_of, strict=True):
                for at, rank in enumerate(circle):
                    if (step, turn, rank) == (3, 1, 5):
                        continue
                    job.op(rank, "send", group=group, peer=circle[(at + 1) % 3], **pair)
                    job.op(rank, "recv", group=group, peer=circle[at - 1], **pair)
        for column in columns:
            job.all(group=column, **UNSEEN)
    for rank in (2, 5):
        job.op(rank, "barrier", line=30, **UNSEEN)
    for column, done in zip(columns, (3, 3, 4), strict=True):
        count(job, [done] * 6, group=column)
    stopped_by_the_launcher(job)
    job.signatures = [replace(signature, backend="nccl") for signature in job.signatures]
    named = (Verdict.P2P_UNMATCHED, (5,), Confidence.LIKELY)
    nobody = (Verdict.INCONCLUSIVE, (), Confidence.AMBIGUOUS)
    assert judged(rings(job)) == (named if waited_for else nobody)


def test_two_groups_in_opposite_orders_wait_on_their_devices() -> None:
    """All have issued both reductions; rank 1 did so in the opposite order."""
    job = Job(4)
    groups = [job.group(*range(4), desc=name) for name in "ab"]
    for _ in range(5):
        for line, group in enumerate(groups):
            job.all(group=group, line=line, **UNSEEN)
    for rank in range(4):
        for line, group in list(enumerate(groups))[:: -1 if rank == 1 else 1]:
            job.op(rank, group=group, line=line, **UNSEEN)
    for group in groups:
        count(job, [5] * 4, group=group)
    assert judged(rings(job)) == (Verdict.DEADLOCK_CYCLE, (1,), Confidence.LIKELY)


def test_backend_counters_show_which_rank_changed_its_order() -> None:
    """Either of the two ranks in both groups could break the cycle: rank 2 reversed it."""
    job = Job(4)
    evens, low = job.group(0, 2, desc="even"), job.group(0, 1, 2, desc="low")
    for step in range(8):
        for rank in range(4):
            order = [(evens, 10), (low, 11)]
            for group, line in order[:: -1 if (step, rank) == (7, 2) else 1]:
                if rank in job.groups[group].ranks:
                    job.op(rank, group=group, line=line, **UNSEEN)
        job.all(line=12, **UNSEEN)
    for group in (evens, low, 0):
        count(job, [7] * 4, group=group)
    assert judged(rings(job)) == (Verdict.DEADLOCK_CYCLE, (2,), Confidence.LIKELY)


@pytest.mark.parametrize("root_is_done", [False, True])
def test_broadcast_completed_by_none_waits_for_an_absent_rank(root_is_done: bool) -> None:
    """A root may proceed alone; if its own device is blocked as well, some rank is absent."""
    job = Job(4)
    job.all("all_gather", **UNSEEN)
    for rank in (0, 1, 2):
        job.op(rank, "broadcast", root=0, **UNSEEN)
    count(job, [2 if root_is_done else 1, 1, 1, 0])
    found = judged(rings(job))
    if root_is_done:
        assert found[0] is not Verdict.MISSING_RANK
    else:
        assert found == (Verdict.MISSING_RANK, (3,), Confidence.LIKELY)
