"""Which rank is half a step off, judged by the little that dumps of a long job hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, judged, listed, pending, write

PIPE: dict[str, Any] = {"pg_id": 1, "process_group": ("7", "PIPELINE")}


def half(number: int, name: str, record: int, *, done: bool) -> dict[str, Any]:
    made = entry if done else pending
    return made(0, f"nccl:{name}", **PIPE, p2p_seq_id=number, is_p2p=True, record_id=record)


def test_rank_with_a_new_partner_is_wrong_in_wrapped_rings_too(tmp_path: Path) -> None:
    """Rank 0 waits for rank 2, with which it never communicated; what rank 1 sent it is
    unreceived."""
    rows = {
        0: [half(n, "recv 0<-1", 300 + n, done=True) for n in (40, 41, 42)]
        + [half(43, "recv 0<-2", 343, done=False)],
        1: [half(n, "send 1->0", 500 + n, done=True) for n in (70, 71, 72)]
        + [half(73, "send 1->0", 573, done=False), pending(9, record_id=600)],
        2: [entry(8, record_id=700), pending(9, record_id=701)],
    }
    diagnosis = judged(tmp_path, rows, {"0": ("default_pg", rows), "7": ("PIPELINE", rows)})
    assert diagnosis.verdict is Verdict.P2P_UNMATCHED
    assert diagnosis.culprits == (0,)


def test_lost_rank_is_found_by_an_unreceived_send(tmp_path: Path) -> None:
    """All have reached the collective; before it rank 0 sent to a rank that left no record."""
    config = listed(
        {"0": ("default_pg", range(3)), "7": ("PIPELINE", [0, 2]), "8": ("TENSOR", [0, 1])}
    )
    tensor: dict[str, Any] = {"pg_id": 2, "process_group": ("8", "TENSOR")}
    rows = {
        0: [
            entry(1, record_id=0),
            half(1, "send 0->1", 1, done=False),
            pending(1, **tensor, record_id=2),
            half(2, "recv 0<-1", 3, done=False),
        ],
        1: [entry(1, record_id=0), pending(1, **tensor, record_id=1)],
    }
    for rank, entries in rows.items():
        mine = {k: v for k, v in config.items() if k != "7" or rank == 0}
        write(tmp_path, f"trace_{rank}", dump(entries, pg_config=mine, pg_status=None))
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (2,))


def test_many_unknown_ranks_are_not_accused_by_one(tmp_path: Path) -> None:
    rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(6)}
    rows[4] = [pending(9, record_id=40)]
    config = listed({"0": ("default_pg", rows)})
    for rank, entries in rows.items():
        made = dump(entries, version="2.7", pg_config=config, pg_status=None)
        write(tmp_path, f"trace_{rank}", made | {"entries": entries})
    diagnosis = diagnose(load_trace([tmp_path]))
    assert len(diagnosis.culprits) < 3


def test_chain_of_sends_leads_to_the_lost_rank(tmp_path: Path) -> None:
    """Rank 0 sends to 1, which first has to send to 2, which first has to send to the lost one."""
    rows = {
        0: [half(1, "send 0->1", 0, done=True), half(2, "send 0->1", 1, done=False)],
        1: [
            half(1, "recv 1<-0", 0, done=True),
            half(2, "send 1->2", 1, done=False),
            half(3, "recv 1<-0", 2, done=False),
        ],
        2: [half(1, "send 2->3", 0, done=False), half(2, "recv 2<-1", 1, done=False)],
    }
    diagnosis = judged(tmp_path, rows, {"7": ("PIPELINE", range(4))})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (3,))


def test_later_operations_do_not_break_a_chain_of_sends(tmp_path: Path) -> None:
    """Rank 3 is asleep; rank 2 issued a collective after the receive that its send blocks."""
    rows = {
        0: [half(1, "send 0->1", 1, done=False)],
        1: [half(1, "send 1->2", 1, done=False), half(2, "recv 1<-0", 2, done=False)],
        2: [
            half(1, "send 2->3", 1, done=False),
            half(2, "recv 2<-1", 2, done=False),
            pending(2, record_id=3),
        ],
        3: [],
    }
    rows = {rank: [entry(1, record_id=0), *entries] for rank, entries in rows.items()}
    diagnosis = judged(tmp_path, rows, {"0": ("default_pg", rows), "7": ("PIPELINE", rows)})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (3,))
    assert all(3 in finding.culprits for finding in diagnosis.findings)
