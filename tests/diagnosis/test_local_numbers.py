"""Labels of torch 2.3 count a rank's own groups: ``PG 1`` is another group on another rank."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from tests.trace.logs import trace_of


def overdue(rank: int, number: int, place: int, seq: int, op: str = "ALLREDUCE") -> str:
    head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp"
    return (
        f"{head}:563] [Rank {place}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for "
        "600041 milliseconds before timing out.\n"
        f"{head}:1537] [PG {number} Rank {place}] Timeout at NCCL work: {seq}, last enqueued NCCL "
        f"work: {seq}, last completed NCCL work: {seq - 1}.\n"
    )


def test_one_place_of_two_ranks_shows_two_groups() -> None:
    """Two tensor groups of two: the first is farther than the second, and nobody is stuck on its
    device for that."""
    text = "world_size=4\n" + overdue(0, 1, 0, 97) + overdue(1, 1, 1, 97)
    text += overdue(2, 1, 0, 60, "BROADCAST") + overdue(3, 1, 1, 60, "BROADCAST")
    diagnosis = diagnose(trace_of(text))
    assert not diagnosis.culprits
    assert diagnosis.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.INCONCLUSIVE)


def test_who_waits_for_nothing_is_still_told() -> None:
    text = "world_size=4\n" + overdue(0, 1, 0, 97) + overdue(3, 1, 1, 60) + overdue(2, 1, 0, 60)
    text += (
        "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Received a timeout signal from this "
        "local rank and will start to dump the debug info. Last enqueued NCCL work: 5, last "
        "completed NCCL work: 5.\n"
    )
    assert diagnose(trace_of(text)).culprits in ((1,), ())


def test_a_number_that_all_places_share_is_one_group() -> None:
    text = "world_size=4\n" + "".join(overdue(r, 1, r, 97) for r in (0, 1, 3))
    assert diagnose(trace_of(text)).culprits == (2,)


def bare(rank: int, place: int, seq: int, op: str = "ALLREDUCE", size: int = 64) -> str:
    """What torch 2.2 prints: no group, and the rank inside it."""
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {place}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, "
        "Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
    )


def test_a_place_that_is_not_the_rank_shows_smaller_groups() -> None:
    """Rank 5 is the second of some group; what rank 1 waits in need not be everybody's group."""
    text = "world_size=8\n" + bare(1, 1, 7, size=1) + bare(4, 0, 7, "BROADCAST")
    text += bare(5, 1, 7, "BROADCAST")
    assert not diagnose(trace_of(text)).culprits
    everybody = "world_size=8\n" + "".join(bare(r, r, 7, "BROADCAST") for r in range(8) if r != 1)
    found = diagnose(trace_of(everybody + bare(1, 1, 7, size=1)))
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, (1,))
