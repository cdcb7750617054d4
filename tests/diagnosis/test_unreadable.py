"""Dumps that exist but cannot be read: their ranks lived to write them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.diagnosis.observability import unreadable
from hangscope.trace.load import load_trace
from hangscope.trace.model import RankFacts, Unread
from tests.diagnosis.builder import Job
from tests.trace.dumps import dump, entry, pending, write
from tests.trace.logs import trace_of


def judged(folder: Path, *, gone: set[int], damaged: set[int]) -> Diagnosis:
    for rank in set(range(6)) - gone:
        path = write(folder, f"trace_rank_{rank}", dump([entry(1), pending(2)], world=6))
        if rank in damaged:
            path.write_bytes(path.read_bytes()[:40])
    return diagnose(load_trace([folder]))


def test_rank_that_left_nothing_is_lost(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, gone={2}, damaged={4})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (2,))


def test_damaged_dump_is_not_a_missing_dump(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, gone=set(), damaged={4})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (4,))
    assert "cannot be read" in diagnosis.summary
    assert "no sign of life" not in diagnosis.summary


def in_an_unknown_form(folder: Path, *, counters: bool, entries: list[Any]) -> Diagnosis:
    """Ranks wait in all-reduce #2; the last one's dump has entries that nobody can interpret."""
    counted = {"last_enqueued_collective": 2, "last_completed_collective": 1}
    for rank in range(4):
        odd = rank == 3
        made = dump([entry(1), pending(2)], world=4)
        made["entries"] = entries if odd else made["entries"]
        made["pg_status"] = {"0": counted} if counters or not odd else {"spoilt": "x"}
        write(folder, f"trace_rank_{rank}", made)
    return diagnose(load_trace([folder]))


UNKNOWN_FORMS: dict[str, list[Any]] = {
    "no operation and no number": [{"kind": "sum", "nr": 1}, {"kind": "sum", "nr": 2}],
    "no field": [{}],
    "numbers that are none": [entry(1, collective_seq_id=float("nan"))],
    "no records": ["x", 7],
}


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_a_dump_in_an_unknown_form_accuses_nobody_of_not_coming(tmp_path: Path, form: str) -> None:
    diagnosis = in_an_unknown_form(tmp_path, counters=False, entries=UNKNOWN_FORMS[form])
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (3,))
    assert diagnosis.confidence is Confidence.LIKELY
    assert diagnosis.summary.startswith("Rank 3 left a dump that cannot be read (")
    (odd,) = (side for side in diagnosis.findings[0].sides if side.op is None)
    assert odd.activity == "its dump cannot be read"
    assert "does not know the form of their entries" in diagnosis.findings[0].fix


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_counters_beside_entries_in_an_unknown_form_are_used(tmp_path: Path, form: str) -> None:
    diagnosis = in_an_unknown_form(tmp_path, counters=True, entries=UNKNOWN_FORMS[form])
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.STUCK_COLLECTIVE, ())
    assert diagnosis.confidence is Confidence.LIKELY  # what it issued as #2 is not known
    (warning,) = diagnosis.warnings
    assert warning.endswith("; only its counters are used")


RING = Path(__file__).resolve().parents[2] / "fixtures" / "d9-uneven-loader" / "dumps"


@pytest.mark.parametrize("hidden", ["cut", "journal too"])
def test_unreadable_ring_is_not_a_missing_ring(tmp_path: Path, hidden: str) -> None:
    shutil.copytree(RING, tmp_path, dirs_exist_ok=True)
    told = diagnose(load_trace([tmp_path]))
    (lost,) = told.culprits
    ring = tmp_path / f"rank_{lost}.ring"
    ring.write_bytes(ring.read_bytes()[:3000])
    if hidden == "journal too":
        for journal in tmp_path.glob("*.journal"):
            journal.unlink()
    diagnosis = diagnose(load_trace([tmp_path]))
    assert f"rank {lost}: its dump cannot be read (too short for a ring" in "\n".join(
        diagnosis.findings[0].evidence
    )
    assert "left no record" not in diagnosis.summary
    if diagnosis.verdict is Verdict.RANK_LOST:
        assert "cannot be read" in diagnosis.summary
        assert f"make the files of rank {lost} readable" in diagnosis.findings[0].fix


@pytest.mark.parametrize(
    ("name", "why", "its"),
    [
        ("rank_2.ring", "permission denied", 2),
        ("nccl_trace_rank_2", "permission denied", 2),
        ("rank_2.ring", "ring version 9; this HangScope reads 1", 2),
        ("core.2", "permission denied", None),
        ("plot_2.png", "binary data of an unknown kind", None),
    ],
)
def test_file_without_read_permission_is_attributed_to_its_rank(
    name: str, why: str, its: int | None
) -> None:
    trace = replace(Job(4).trace(), ranks={0: RankFacts(0)}, unread=(Unread(f"run/{name}", why),))
    assert set(unreadable(trace)) == ({its} if its is not None else set())


@pytest.mark.parametrize(
    ("damaged", "lists", "expected"),
    [(set(), True, "certain"), ({5}, True, "likely"), ({5}, False, "likely")],
)
def test_majority_of_readable_ranks_is_not_certain(
    tmp_path: Path, damaged: set[int], lists: bool, expected: str
) -> None:
    odd = {0, 1}
    for rank in range(6):
        size = [[7]] if rank in odd else [[4096]]
        last = pending(2, input_sizes=size, output_sizes=size)
        changes = {} if lists else {"pg_config": None}
        path = write(tmp_path, f"trace_rank_{rank}", dump([entry(1), last], world=6, **changes))
        if rank in damaged:
            path.write_bytes(b"")
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, set(diagnosis.culprits)) == (Verdict.SHAPE_MISMATCH, odd)
    assert diagnosis.confidence.value == expected


@pytest.mark.parametrize(
    ("said_by", "expected"),
    [
        ((), (Verdict.RANK_LOST, (2, 3))),
        ((2, 3), (Verdict.INCONCLUSIVE, ())),
        ((3,), (Verdict.RANK_LOST, (2,))),  # that one lives, says its log
    ],
)
def test_rank_reporting_a_failed_recorder_is_not_lost(
    said_by: tuple[int, ...], expected: tuple[Verdict, tuple[int, ...]]
) -> None:
    job = Job(8)
    job.steps(5)
    for rank in {*range(8)} - {2, 3}:
        job.op(rank, done=False)
    job.lose(2, 3)
    said = (
        "[hangscope] rank {}: not recording, the job goes on: No space left on device: /x; do y\n"
    )
    log = trace_of("".join(said.format(rank) for rank in said_by))
    found = diagnose(replace(job.trace(), claims=log.claims))
    assert (found.verdict, found.culprits) == expected
    if not found.culprits:
        assert (
            "what ranks 2, 3 did, of which nothing is recorded (No space left on device: /x)"
            in found.findings[0].unknowns
        )
