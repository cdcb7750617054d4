"""Labels of torch 2.3 number groups per rank: ``PG 1`` is a different group on another rank."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.groups.local_numbers import ambiguous_numbers, split_logged_numbers
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Group, Source
from tests.diagnosis.builder import Job
from tests.trace.logs import trace_of

GATHER = "_all_gather_base"


def overdue(rank: int, number: int, place: int, seq: int, op: str = "ALLREDUCE") -> str:
    head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp"
    return (
        f"{head}:563] [Rank {place}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for "
        "600041 milliseconds before timing out.\n"
        f"{head}:1537] [PG {number} Rank {place}] Timeout at NCCL work: {seq}, last enqueued NCCL "
        f"work: {seq}, last completed NCCL work: {seq - 1}.\n"
    )


def test_one_place_of_two_ranks_means_two_groups() -> None:
    """Two tensor groups of two: the first has advanced further than the second, and no rank is
    stuck on its device."""
    text = "world_size=4\n" + overdue(0, 1, 0, 97) + overdue(1, 1, 1, 97)
    text += overdue(2, 1, 0, 60, "BROADCAST") + overdue(3, 1, 1, 60, "BROADCAST")
    diagnosis = diagnose(trace_of(text))
    assert not diagnosis.culprits
    assert diagnosis.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.INCONCLUSIVE)


def test_rank_that_waits_for_nothing_is_still_reported() -> None:
    text = "world_size=4\n" + overdue(0, 1, 0, 97) + overdue(3, 1, 1, 60) + overdue(2, 1, 0, 60)
    text += (
        "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Received a timeout signal from this "
        "local rank and will start to dump the debug info. Last enqueued NCCL work: 5, last "
        "completed NCCL work: 5.\n"
    )
    assert diagnose(trace_of(text)).culprits in ((1,), ())


def test_wrapped_dumps_show_incomplete_sets_of_groups() -> None:
    """Tensor pairs are number 1 of every rank: eight ranks use what has two parts."""
    job = Job(8)
    job.groups = [Group(name) for name in "0123"]

    def gather(ranks: tuple[int, ...], group: int, size: int, *, done: bool = True) -> None:
        for rank in ranks:
            job.op(rank, GATHER, group=group, size=(4,), out=(4 * size,), done=done)

    for _ in range(5):
        gather(tuple(range(8)), 1, 2)
    gather((1, 3, 5), 0, 8)
    gather((0, 2), 2, 4)
    gather((4, 6), 3, 2)
    gather((2,), 1, 2, done=False)
    gather((0, 1, 4, 5, 6, 7), 2, 4, done=False)
    for rank in range(8):
        job.rank(rank, oldest_record_id=3)
    dumps = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(8))
    found = diagnose(job.trace(sources=dumps))
    assert [finding.culprits for finding in found.findings] == [(3,)]
    assert found.confidence is Confidence.LIKELY


def test_number_shared_by_all_places_is_one_group() -> None:
    text = "world_size=4\n" + "".join(overdue(r, 1, r, 97) for r in (0, 1, 3))
    assert diagnose(trace_of(text)).culprits == (2,)


def bare(rank: int, place: int, seq: int, op: str = "ALLREDUCE", size: int = 64) -> str:
    """What torch 2.2 prints: no group, and the rank inside it."""
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {place}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, "
        "Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
    )


def test_group_rank_different_from_rank_means_smaller_groups() -> None:
    """Rank 5 is the second of some group; the group rank 1 waits in need not contain all ranks."""
    text = "world_size=8\n" + bare(1, 1, 7, size=1) + bare(4, 0, 7, "BROADCAST")
    text += bare(5, 1, 7, "BROADCAST")
    assert not diagnose(trace_of(text)).culprits
    everybody = "world_size=8\n" + "".join(bare(r, r, 7, "BROADCAST") for r in range(8) if r != 1)
    found = diagnose(trace_of(everybody + bare(1, 1, 7, size=1)))
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, (1,))


def test_log_beside_dumps_does_not_merge_groups_of_one_number() -> None:
    """Data groups are number 1 of both stages, and those issue other sizes."""
    job = Job(4)
    job.groups = [Group("0"), Group("1"), Group("?3", "unknown group")]
    for rank in range(4):
        job.op(rank, group=0)
        for done in (True, True, True, False):
            size, both = 4 + rank // 2, 8 + rank // 2 * 2
            job.op(rank, GATHER, group=1, size=(size,), out=(both,), done=done)
    job.op(3, group=2, done=False)
    dumps = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(4))
    found = diagnose(job.trace(sources=(*dumps, Source("job.log", "job-log"))))
    assert found.verdict is not Verdict.SHAPE_MISMATCH


def test_name_is_one_group_despite_different_descriptions() -> None:
    """Only numbers are assigned by each rank; one of the two labels of ``tp`` is wrong."""
    text = "world_size=4\n" + overdue(0, 1, 0, 97) + overdue(1, 1, 0, 97)
    numbered = split_logged_numbers(trace_of(text))
    named = trace_of(text.replace("[PG 1 ", "[PG tp "))
    assert len(numbered.groups) > len(trace_of(text).groups)
    assert split_logged_numbers(named) is named


def test_group_without_a_name_is_the_default_group() -> None:
    job = Job(2)
    job.steps(3)
    group = job.group(0, 1)
    job.all(group=group)
    groups = tuple(Group("" if g.name == "0" else g.name, "", g.ranks) for g in job.groups)
    assert ambiguous_numbers(job.trace(groups=groups), {}) == [group]
