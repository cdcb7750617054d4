"""What native dumps do not show is not certain: recorded hangs as another recorder leaves them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from hangscope.trace.units import SECOND_NS
from tests.trace.dumps import BASE_NS, dump, pending, write

FIXTURES = Path(__file__).parents[2] / "fixtures"
_WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


@pytest.mark.parametrize(
    ("fixture", "accused", "confidence", "unknown"),
    [
        # rank 1 makes its groups in another order, and holds rank 0 in new_group
        ("groups-swapped", (0,), Confidence.LIKELY, "whether rank 0 had created this group"),
        # rank 2 has left a receive out, unlike before; rank 1 waits for its send, or has fired and
        # forgotten it
        (
            "pipeline-last-recv-skipped",
            (1, 2),
            Confidence.AMBIGUOUS,
            "whether rank 1 waits for its send",
        ),
    ],
)
def test_possibly_blocked_rank_is_never_certain(
    fixture: str,
    accused: tuple[int, ...],
    confidence: Confidence,
    unknown: str,
    tmp_path: Path,
) -> None:
    for path in flight_recorder.write(load_trace([FIXTURES / fixture / "dumps"]), tmp_path):
        document = pickle.loads(path.read_bytes())  # our own, written just now
        del document["hangscope"]  # neither stacks nor phases, nor how a send was meant
        path.write_bytes(pickle.dumps(document))
    finding = diagnose(load_trace([tmp_path])).findings[0]
    assert (finding.culprits, finding.confidence) == (accused, confidence)
    assert any(text.startswith(unknown) for text in finding.unknowns)


def _judged(folder: Path, rows: dict[int, list[dict[str, Any]]], **document: Any) -> Diagnosis:
    """Dumps that list only what is unfinished, written when rank 0 had waited for its timeout."""
    for rank, entries in rows.items():
        path = write(folder, f"nccl_trace_rank_{rank}", dump(entries, world=len(rows), **document))
        os.utime(path, ns=(BASE_NS + 650 * SECOND_NS,) * 2)
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("counted", [True, False])
def test_dump_without_entry_and_counter_proves_no_absence(tmp_path: Path, counted: bool) -> None:
    """It lists nothing unfinished, whenever it was written; a counter shows how far it had come."""
    rows: dict[int, list[dict[str, Any]]] = {r: [pending(9)] for r in range(3)} | {3: []}
    for rank in range(4):
        done = {"last_enqueued_collective": 8 + (rank < 3), "last_completed_collective": 8}
        status = {"0": done} if counted or rank < 3 else {}
        _judged(tmp_path, {rank: rows[rank]}, pg_status=status, pg_config=_WORLD)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert found.confidence is (Confidence.CERTAIN if counted else Confidence.LIKELY)


def test_known_members_are_not_certainly_all_members(tmp_path: Path) -> None:
    """All known members of each group wait in it; dumps of unfinished entries show no others."""
    own = [{"pg_id": 1, "process_group": (name, "undefined")} for name in ("5", "6")]
    rows = {rank: [pending(7, **own[rank // 2]), pending(9)] for rank in range(4)}
    found = _judged(tmp_path, rows, pg_config=None, pg_status=None)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, ())
    assert found.confidence is Confidence.LIKELY
