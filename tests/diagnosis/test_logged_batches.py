"""Logs of pipelines: an overdue batch of sends and receives names its group but no peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag
from tests.trace.dumps import dump, entry, pending, write
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


def test_rank_in_a_batch_is_not_absent() -> None:
    """Rank 2 waits for its pipeline's first stage, which waits for its tensor group's rank 1."""
    text = "world_size=4\n" + overdue(3, "ALLREDUCE", 95, "4(tensor)", 1)
    text += batch(2, PIPES[0], 1) + overdue(0, "ALLREDUCE", 95, TENSOR, 0) + heard(1)
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (1,))
    assert diagnosis.confidence is not Confidence.CERTAIN


def test_batch_partner_that_waits_for_nothing_is_named() -> None:
    text = "world_size=4\n" + batch(2, PIPES[0], 1) + overdue(3, "ALLREDUCE", 95, "4(tensor)", 1)
    text += heard(0) + heard(1)
    assert diagnose(trace_of(text)).culprits in ((0,), ())


def test_batches_of_all_ranks_name_no_rank() -> None:
    text = "world_size=4\n"
    text += "".join(batch(rank, PIPES[rank % 2], rank // 2) for rank in range(4))
    assert not diagnose(trace_of(text)).culprits


def test_stages_that_wait_for_nothing_are_not_accused_alone() -> None:
    """Rank 0 has done its part: in its pipeline rank 4 waits in another operation, and the batches
    of ranks 2 and 6 may be for it. In the other pipeline ranks 1 and 5 wait for nothing."""
    text = "world_size=8\n" + overdue(4, "ALLREDUCE", 95, "5(tensor)", 0)
    text += batch(6, "7(pipe)", 3) + batch(2, "7(pipe)", 1)
    text += batch(7, "8(pipe)", 3) + batch(3, "8(pipe)", 1) + heard(0) + heard(1) + heard(5)
    found = diagnose(trace_of(text))
    assert (found.culprits, found.confidence) == ((1, 5), Confidence.AMBIGUOUS)
    assert all(0 not in finding.culprits for finding in found.findings)


WORLD = "0(default_pg)"


def test_batch_with_a_rank_that_waits_for_its_owner_names_no_rank() -> None:
    """Ranks 0, 2 and 3 are past a batch in which rank 1 still waits: one of them skipped its part,
    or rank 1 began one too many."""
    text = "world_size=4\n" + overdue(1, "COALESCED", 9, WORLD, 1, SIZE)
    text += "".join(overdue(rank, "ALLREDUCE", 10, WORLD, rank) for rank in (0, 2, 3))
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())


def _batched(rank: int, others: tuple[tuple[str, int], ...], over: bool) -> dict[str, Any]:
    """torch 2.5: a batch is counted with the collectives, and what is in it never seen to end."""
    entries = [entry(n, record_id=n - 1) for n in range(1, 9)]
    for verb, peer in others:
        name = f"nccl:{verb} {rank}{'->' if verb == 'send' else '<-'}{peer}"
        entries.append(pending(9, name, record_id=len(entries), is_p2p=True))
    end = entry if over else pending
    entries.append(end(9, "nccl:coalesced", record_id=len(entries), input_sizes=[]))
    if over:
        entries.append(pending(10, record_id=len(entries)))
    return dump(entries, world=4)


def test_log_beside_dumps_mentions_a_batch_known_from_the_dumps(tmp_path: Path) -> None:
    for rank in range(4):
        halves = [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]
        told = tuple(halves[:1] if rank == 2 else halves)
        write(tmp_path, f"nccl_trace_rank_{rank}", _batched(rank, told, over=rank != 1))
    text = overdue(1, "COALESCED", 9, WORLD, 1, SIZE)
    text += "".join(overdue(rank, "ALLREDUCE", 10, WORLD, rank) for rank in (0, 2, 3))
    (tmp_path / "job.log").write_text(text.replace("E1009 08:53:20", "E0615 15:16:50"))
    trace = load_trace([tmp_path])
    assert not (trace.records["flags"] & int(Flag.SYNTHETIC)).any()
    assert int(((trace.records["flags"] & int(Flag.TIMED_OUT)) != 0).sum()) == 4
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (2,))


def test_activity_of_an_absent_rank_is_not_in_a_log() -> None:
    """It may wait in a smaller group with a longer timeout."""
    text = "".join(overdue(rank, "ALLREDUCE", 6, WORLD, rank) for rank in (0, 2, 3)) + heard(1)
    found = diagnose(trace_of("world_size=4\n" + text))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))
    assert found.confidence is Confidence.LIKELY
