"""What a dump omits: finished entries, their numbers, and what the buffer has overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import hidden_ranks
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.records.pairing import pending_halves
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag

from .dumps import dump, listed, pending, write

MEMBER = Flag.COALESCED_MEMBER
PIPE: dict[str, Any] = {"pg_id": 1, "process_group": ("7", "PIPELINE")}
CONFIG = listed({"0": ("default_pg", [0, 1]), "7": ("PIPELINE", [0, 1])})


def half(number: int, record_id: int, name: str) -> dict[str, Any]:
    """A send or receive: nothing ever notes the end of one that was issued in a batch."""
    return pending(0, f"nccl:{name}", **PIPE, record_id=record_id, p2p_seq_id=number, is_p2p=True)


def only_active(names: tuple[str, str], *, batched: bool) -> list[dict[str, Any]]:
    """Three exchanges that have finished, then a collective that has not.

    Each batch took two record ids, of which the second, its own row, is not listed.
    """
    rows = [
        half(number, 2 * number if batched else 10 + number, names[number % 2])
        for number in (1, 2, 3)
    ]
    return [*rows, pending(4, record_id=20)]


def test_completed_single_operation_batches_block_no_rank(tmp_path: Path) -> None:
    for rank, names in enumerate((("send 0->1", "recv 0<-1"), ("recv 1<-0", "send 1->0"))):
        rows = only_active(names, batched=True)
        status = {
            "0": {"last_enqueued_collective": 4 - rank, "last_completed_collective": 3},
            "1": {"last_enqueued_collective": 3, "last_completed_collective": 3},
        }
        made = dump(rows[: 4 - rank], version="2.9", pg_config=CONFIG, pg_status=status)
        write(tmp_path, f"trace_{rank}", made)
    trace = load_trace([tmp_path])
    assert all(facts.only_active for facts in trace.ranks.values())
    assert pending_halves(trace, frontiers(trace), hidden_ranks(trace)) == []
    diagnosis = diagnose(trace)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (1,))


def test_consecutive_single_p2p_operations_are_unfinished(tmp_path: Path) -> None:
    rows = only_active(("send 0->1", "recv 0<-1"), batched=False)
    write(tmp_path, "trace_0", dump(rows, version="2.9", pg_config=CONFIG))
    trace = load_trace([tmp_path])
    pairs = trace.records["p2p_seq"] > 0
    assert not (trace.records["flags"][pairs] & int(Flag.COALESCED_MEMBER)).any()


@pytest.mark.parametrize("overwritten", [True, False], ids=["overwritten", "none overwritten"])
def test_last_member_of_an_overwritten_batch_is_no_unfinished_receive(
    tmp_path: Path, overwritten: bool
) -> None:
    """Batches of a send and a receive take three record ids each: the last is their own row.

    Before the receive of batch 4 another send is overwritten, or none was: then it is a receive of
    its own. Receive 7, which no batch holds, is unfinished in both cases.
    """
    rows = [half(4, 10, "recv 0<-1")]
    for number in (5, 6):
        rows += [
            half(number, 3 * number - 3, "send 0->1"),
            half(number, 3 * number - 2, "recv 0<-1"),
        ]
    rows += [half(7, 18, "recv 0<-1"), pending(4, record_id=19)]
    if not overwritten:
        rows[1]["record_id"] = 11
    write(tmp_path, "trace_0", dump(rows, version="2.9", pg_config=CONFIG))
    records = load_trace([tmp_path]).records
    alone = records["p2p_seq"][(records["flags"] & Flag.P2P > 0) & (records["flags"] & MEMBER == 0)]
    assert alone.tolist() == ([7] if overwritten else [4, 7])


def test_ring_without_record_numbers_shows_that_it_has_wrapped(tmp_path: Path) -> None:
    """A rank with an overwritten last collective in a group was not absent from it."""
    world, pair = listed({"0": ("default_pg", range(3))}), listed({"8": ("TENSOR", [1, 2])})
    tensor: dict[str, Any] = {"pg_id": 1, "process_group": ("8", "TENSOR"), "record_id": None}
    write(tmp_path, "trace_0", dump([pending(5, record_id=None)], version="2.9", pg_config=world))
    for rank in (1, 2):
        rows = [pending(n, **tensor) for n in (40, 41)]
        write(
            tmp_path,
            f"trace_{rank}",
            dump(rows, version="2.9", pg_config=world | pair, pg_status=None),
        )
    trace = load_trace([tmp_path])
    assert hidden_ranks(trace) >= {1, 2}
    assert diagnose(trace).verdict is not Verdict.MISSING_RANK


def test_p2p_operation_reached_by_the_counter_has_completed(tmp_path: Path) -> None:
    """One batch alone shows no pattern; in a group of pairs only the counter shows its
    completion."""
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        rows = [half(9, 30, name), pending(4, record_id=40)]
        status = {
            "0": {"last_enqueued_collective": 4, "last_completed_collective": 3},
            "1": {"last_enqueued_collective": 9, "last_completed_collective": 9},
        }
        if rank:
            rows.pop()
            status["0"]["last_enqueued_collective"] = 3
        made = dump(rows, version="2.9", pg_config=CONFIG, pg_status=status)
        write(tmp_path, f"trace_{rank}", made)
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (1,))


def test_overwritten_but_counted_operation_leaves_the_cause_undecided(tmp_path: Path) -> None:
    """All members have issued what is listed, but it is queued behind something overwritten."""
    status = {"0": {"last_enqueued_collective": 42, "last_completed_collective": 30}}
    for rank in (0, 1):
        rows = [pending(n, record_id=n) for n in (40, 41, 42)]
        write(tmp_path, f"trace_{rank}", dump(rows, version="2.9", pg_status=status))
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.INCONCLUSIVE, ())


def test_numbers_assigned_by_every_rank_are_several_groups(tmp_path: Path) -> None:
    """The oldest dumps name a group by how many groups the rank had created before. Two tensor
    groups of two ranks each are number 1 on all four, and are not compared with each other."""

    def row(pg_id: int, seq: int, *, done: bool, op: str = "all_reduce") -> dict[str, Any]:
        return {
            "pg_id": pg_id,
            "seq_id": seq,
            "profiling_name": f"nccl:{op}",
            "state": "completed" if done else "scheduled",
            "input_sizes": [[8]],
            "output_sizes": [[8]],
            "time_created_us": 1_750_000_000_000_000 + seq,
        }

    for rank in range(4):
        broken = rank == 3  # it stays away from its group's third operation
        rows = [row(0, 1, done=True), *(row(1, n, done=True) for n in (1, 2))]
        if rank in (0, 1):  # the other tensor group runs another program, and is through
            rows += [row(1, n, done=True, op="broadcast") for n in (3, 4)]
            rows.append(row(0, 2, done=False))
        elif not broken:
            rows.append(row(1, 3, done=False))
        write(tmp_path, f"trace_{rank}", rows)
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (3,))
    assert diagnosis.findings[0].confidence is not Confidence.CERTAIN


def test_earlier_operation_for_the_same_partner_has_completed(tmp_path: Path) -> None:
    """The sends of two batches, too few to show a pattern; the counter has reached the second."""
    status = {"1": {"last_enqueued_collective": 30, "last_completed_collective": 30}}
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        rows = [half(29, 438, name), half(30, 452, name)]
        made = dump(rows, version="2.9", pg_config=CONFIG, pg_status=status)
        write(tmp_path, f"trace_{rank}", made)
    trace = load_trace([tmp_path])
    assert pending_halves(trace, frontiers(trace), hidden_ranks(trace)) == []
