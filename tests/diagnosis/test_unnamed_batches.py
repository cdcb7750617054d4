"""Logs of pipelines: an overdue batch of sends and receives names its group and no partner."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from tests.trace.logs import trace_of

SIZE = 18446744073709551615
"""What the watchdog prints where a batch has no size."""


def overdue(rank: int, op: str, seq: int, group: str, place: int, size: int = 64) -> str:
    head = f"[rank{rank}]:[E1009 08:53:20.111111111 ProcessGroupNCCL.cpp"
    return (
        f"{head}:629] [Rank {place}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, "
        "Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
        f"{head}:2168] [PG ID 1 PG GUID {group} Rank {place}]  failure detected by watchdog at "
        f"work sequence id: {seq} PG status: last enqueued work: {seq}, "
        f"last completed work: {seq - 1}\n"
    )


def heard(rank: int) -> str:
    return (
        f"[rank{rank}]:[E1009 08:53:22.111111111 ProcessGroupNCCL.cpp:1772] [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank "
        "1 and we will try our best to dump the debug info. Last enqueued NCCL work: 5, last "
        "completed NCCL work: 5.This is most likely\n"
    )


def batch(rank: int, group: str, place: int) -> str:
    return overdue(rank, "COALESCED", 14, group, place, SIZE)


TENSOR, PIPES = "3(tensor)", ("5(pipe)", "6(pipe)")


def test_a_rank_in_a_batch_is_no_absent_one() -> None:
    """Rank 2 waits for its pipeline's first stage, which waits for its tensor group's rank 1."""
    text = "world_size=4\n" + overdue(3, "ALLREDUCE", 95, "4(tensor)", 1)
    text += batch(2, PIPES[0], 1) + overdue(0, "ALLREDUCE", 95, TENSOR, 0) + heard(1)
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (1,))
    assert diagnosis.confidence is not Confidence.CERTAIN


def test_a_partner_that_waits_for_nothing_is_the_one() -> None:
    text = "world_size=4\n" + batch(2, PIPES[0], 1) + overdue(3, "ALLREDUCE", 95, "4(tensor)", 1)
    text += heard(0) + heard(1)
    assert diagnose(trace_of(text)).culprits in ((0,), ())


def test_batches_of_everybody_name_nobody() -> None:
    text = "world_size=4\n"
    text += "".join(batch(rank, PIPES[rank % 2], rank // 2) for rank in range(4))
    assert not diagnose(trace_of(text)).culprits


def test_stages_that_wait_for_nothing_are_not_accused_alone() -> None:
    """Rank 0 has done its part: of its pipeline rank 4 waits in something else, and the batches of
    ranks 2 and 6 may be for that. Of the other pipeline ranks 1 and 5 wait for nothing."""
    text = "world_size=8\n" + overdue(4, "ALLREDUCE", 95, "5(tensor)", 0)
    text += batch(6, "7(pipe)", 3) + batch(2, "7(pipe)", 1)
    text += batch(7, "8(pipe)", 3) + batch(3, "8(pipe)", 1) + heard(0) + heard(1) + heard(5)
    found = diagnose(trace_of(text))
    assert (found.culprits, found.confidence) == ((1, 5), Confidence.AMBIGUOUS)
    assert all(0 not in finding.culprits for finding in found.findings)
