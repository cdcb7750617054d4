"""Batches of sends and receives, which execute as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, listed, pending, write

PIPE: dict[str, Any] = {"pg_id": 1, "process_group": ("7", "PIPELINE")}
TENSOR = {0: ("8", [0, 1]), 1: ("8", [0, 1]), 2: ("9", [2, 3]), 3: ("9", [2, 3])}


def batch(number: int, record: int, *halves: str, done: bool = False) -> list[dict[str, Any]]:
    """The halves, followed by the row of the batch."""
    made = entry if done else pending
    rows = [
        pending(0, f"nccl:{h}", **PIPE, p2p_seq_id=number, is_p2p=True, record_id=record + place)
        for place, h in enumerate(halves)
    ]
    bare: dict[str, Any] = {
        "input_sizes": [],
        "output_sizes": [],
        "input_dtypes": [],
        "output_dtypes": [],
    }
    row = made(0, "nccl:coalesced", **PIPE, **bare, p2p_seq_id=number, record_id=record + 9)
    return [*rows, row]


def judged(folder: Path, rows: dict[int, list[dict[str, Any]]], tensor: bool = False) -> Diagnosis:
    for rank, entries in rows.items():
        groups = {"0": ("default_pg", sorted(rows)), "7": ("PIPELINE", sorted(rows))}
        if tensor:
            name, members = TENSOR[rank]
            groups[name] = ("TENSOR", members)
        write(folder, f"trace_{rank}", dump(entries, pg_config=listed(groups), pg_status=None))
    return diagnose(load_trace([folder]))


def tensor(rank: int, seq: int, record: int, *, done: bool = False) -> dict[str, Any]:
    made = entry if done else pending
    place: dict[str, Any] = {"pg_id": 2, "process_group": (TENSOR[rank][0], "TENSOR")}
    return made(seq, **place, record_id=record)


def test_rank_waits_in_the_second_operation_of_its_batch(tmp_path: Path) -> None:
    """Rank 0's send was received; its receive waits for rank 2, which waits for rank 3."""
    rows = {
        0: [*batch(1, 0, "send 0->1", "recv 0<-2"), pending(1, record_id=20)],
        1: [*batch(1, 0, "recv 1<-0", done=True), pending(1, record_id=20)],
        2: [tensor(2, 1, 0), *batch(1, 1, "send 2->0"), pending(1, record_id=20)],
        3: [entry(9, pg_id=3, process_group=("11", "DATA"), record_id=0)],
    }
    diagnosis = judged(tmp_path, rows, tensor=True)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (3,))


def test_batch_waits_for_the_absent_partner(tmp_path: Path) -> None:
    """Ranks 0 and 1 exchange with each other; rank 0's batch also waits for rank 2."""
    rows = {
        0: batch(1, 0, "send 0->1", "recv 0<-2"),
        1: batch(1, 0, "recv 1<-0", "send 1->2"),
        2: [tensor(2, 1, 0), *batch(1, 1, "send 2->0", "recv 2<-1")],
        3: [entry(9, pg_id=3, process_group=("11", "DATA"), record_id=0)],
    }
    diagnosis = judged(tmp_path, rows, tensor=True)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (3,))
    assert len(diagnosis.findings) == 1


def test_rank_queued_behind_others_has_not_changed_the_order_of_a_cycle(tmp_path: Path) -> None:
    """Rank 3 issued one operation more than rank 2, or rank 2 one fewer; rank 0 is queued behind
    both."""
    rows = {
        0: [*batch(1, 0, "recv 0<-3"), pending(1, record_id=20)],
        1: [pending(1, record_id=20)],
        2: [pending(1, record_id=20)],
        3: [tensor(3, 1, 0), *batch(1, 1, "send 3->0"), pending(1, record_id=20)],
    }
    diagnosis = judged(tmp_path, rows, tensor=True)
    assert diagnosis.confidence is not Confidence.CERTAIN
    assert set(diagnosis.culprits) <= {2, 3}
    assert diagnosis.culprits


def test_first_row_of_a_wrapped_ring_may_be_a_batch_without_members(tmp_path: Path) -> None:
    """It is not a collective that other ranks of the group would have to issue."""
    rows = {}
    for rank, half in ((0, "send 0->1"), (1, "recv 1<-0")):
        whole = batch(40, 100, half) + batch(41, 110, half) + [pending(1, record_id=130)]
        rows[rank] = whole[1 - rank :] if rank else whole[1:]
    diagnosis = judged(tmp_path, rows)
    assert Verdict.MISSING_RANK is not diagnosis.verdict
    assert all(f.op != "coalesced" for f in diagnosis.findings)


def test_batch_unfinished_although_all_partners_completed_is_stuck_on_device(
    tmp_path: Path,
) -> None:
    """Its rank is not absent from what it issued afterwards."""
    begun, last = entry(1, record_id=0), pending(2, record_id=20)
    rows = {
        0: [begun, *batch(1, 1, "send 0->1", "recv 0<-1"), last],
        1: [begun, *batch(1, 1, "recv 1<-0", "send 1->0", done=True), last],
        2: [begun, last],
    }
    found = judged(tmp_path, rows)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (0,))
    assert found.confidence is Confidence.LIKELY


def test_batch_paired_with_another_size_is_not_stuck_on_device(tmp_path: Path) -> None:
    """Rank 1 sent the second part of its first batch to rank 2, so rank 0 received a part of the
    next batch."""
    begun, last = entry(1, record_id=0), pending(2, record_id=40)
    small = {"input_sizes": [[7]], "output_sizes": [[7]]}
    asked = [
        row
        for number, record in ((1, 1), (2, 20))
        for row in batch(number, record, "recv 0<-1", "recv 0<-1")
    ]
    sent = [
        *batch(1, 1, "send 1->0", "send 1->2", done=True),
        *batch(2, 20, "send 1->0", "send 1->0", done=True),
    ]
    for row in (asked[1], asked[4], sent[1], sent[4]):
        row.update(small)
    rows = {0: [begun, *asked, last], 1: [begun, *sent, last], 2: [begun, last]}
    found = judged(tmp_path, rows)
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (0, 1))
    assert found.confidence is Confidence.AMBIGUOUS


def test_batch_whose_partner_record_is_overwritten_accuses_no_rank(tmp_path: Path) -> None:
    rows = {
        0: [*batch(31, 400, "send 0->1", "recv 0<-1"), pending(1, record_id=420)],
        1: [*batch(31, 400, "recv 1<-0", "send 1->0", done=True), pending(1, record_id=420)],
        2: [pending(1, record_id=0)],
    }
    found = judged(tmp_path, rows)
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())


def test_batch_with_overwritten_first_operations_is_not_compared(tmp_path: Path) -> None:
    """An uneven all_gather is a batch of broadcasts; each ring begins somewhere inside it."""
    for rank in range(3):
        parts = [
            pending(
                1, "nccl:_broadcast_oop", input_sizes=[[n]], output_sizes=[[n]], record_id=90 + n
            )
            for n in range(3)
        ]
        whole = entry(1, "nccl:coalesced", input_sizes=[], output_sizes=[], record_id=94)
        write(
            tmp_path,
            f"trace_{rank}",
            dump([*parts[rank:], whole, *([pending(2)] if rank else [])], world=3, pg_status={}),
        )
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (0,))
    assert len(found.findings) == 1


def uneven_gather(*sizes: int, dtype: str = "Float") -> list[dict[str, Any]]:
    """NCCL's all-gather of tensors of different sizes: a broadcast for each member in a batch."""
    same: dict[str, Any] = {"pg_id": 1, "process_group": ("7", "PIPELINE")}
    rows = [
        pending(
            1, "nccl:_broadcast_oop", **same, record_id=place,
            input_sizes=[[size]], output_sizes=[[size]],
            input_dtypes=[dtype], output_dtypes=[dtype],
        )
        for place, size in enumerate(sizes)
    ]  # fmt: skip
    bare: dict[str, Any] = {
        name: [] for name in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
    }
    return [*rows, pending(1, "nccl:ALLGATHER_coalesced", **same, **bare, record_id=len(sizes))]


def test_different_operations_inside_a_batch_are_reported(tmp_path: Path) -> None:
    rows = {rank: uneven_gather(8, 5, 8, 8) for rank in (0, 1, 3)}
    rows[2] = uneven_gather(8, 8, 8, 8)
    diagnosis = judged(tmp_path, rows)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.SHAPE_MISMATCH, (2,))
    assert diagnosis.confidence is Confidence.CERTAIN
    summary = diagnosis.findings[0].summary
    assert "rank 2 issued _broadcast_oop float32[8] as operation 2 of" in summary
    assert "float32[5] as operation 2 of" in summary
    assert {side.input_sizes for side in diagnosis.findings[0].sides} == {((8,),), ((5,),)}


def test_different_dtype_inside_a_batch_is_reported(tmp_path: Path) -> None:
    rows = {rank: uneven_gather(8, 5, 8, 8) for rank in range(3)}
    rows[3] = uneven_gather(8, 5, 8, 8, dtype="Half")
    diagnosis = judged(tmp_path, rows)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.DTYPE_MISMATCH, (3,))


def test_batch_with_one_operation_less_differs_as_a_whole(tmp_path: Path) -> None:
    rows = {rank: uneven_gather(8, 5, 8, 8) for rank in range(3)}
    rows[3] = uneven_gather(8, 5, 8)
    diagnosis = judged(tmp_path, rows)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.COLLECTIVE_MISMATCH, (3,))


def test_partner_of_a_blocked_batch_is_waiting_too(tmp_path: Path) -> None:
    """Rank 2 cannot reach its batch because of rank 3, which left nothing. So rank 1's batch is
    stuck, and rank 0's exchange with it is no network failure."""
    rows = {
        0: batch(1, 0, "send 0->1", "recv 0<-1"),
        1: batch(1, 0, "send 1->0", "recv 1<-0", "send 1->2", "recv 1<-2"),
        2: [tensor(2, 1, 0), *batch(1, 1, "send 2->1", "recv 2<-1")],
    }
    found = judged(tmp_path, rows, tensor=True)
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (3,))
    assert len(found.findings) == 1


def test_two_ranks_that_issued_their_exchange_wait_for_no_other(tmp_path: Path) -> None:
    """Rank 0's batch is paired with two of rank 1's; the first was issued and does not complete."""
    rows = {
        0: batch(1, 0, "send 0->1", "recv 0<-1"),
        1: [*batch(1, 0, "send 1->0"), *batch(2, 20, "recv 1<-0")],
    }
    found = judged(tmp_path, rows)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, ())


def test_broadcast_waits_for_a_root_blocked_in_an_earlier_send(tmp_path: Path) -> None:
    """Rank 1's device first runs its send to rank 2, and rank 2 waits for rank 1 in the default
    group: no network failure."""
    begun = entry(1, record_id=0)
    send = pending(0, "nccl:send 1->2", **PIPE, p2p_seq_id=1, is_p2p=True, record_id=1)
    group: dict[str, Any] = {"pg_id": 2, "process_group": ("8", "TENSOR")}
    rows = {
        0: [begun, entry(1, "nccl:broadcast", **group, record_id=1), pending(2, record_id=2)],
        1: [begun, send, pending(1, "nccl:broadcast", **group, record_id=2)],
        2: [begun, pending(2, record_id=1)],
        3: [begun, pending(2, record_id=1)],
    }
    found = judged(tmp_path, rows, tensor=True)
    assert found.verdict is not Verdict.STUCK_COLLECTIVE
    assert set(found.culprits) <= {1, 2}
    assert found.culprits
