"""Dumps of a moving job, written at different moments, in files that lost their dates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, listed, pending, write

GROUPS = {"0": ("default_pg", range(4)), "1": ("pair1", [0, 1]), "2": ("pair2", [2, 3])}


def _write(folder: Path, rank: int, done: int, issued: int, **changes: Any) -> None:
    """All-reduces of four ranks, of which the first ``done`` have finished."""
    rows = [entry(n) if n <= done else pending(n) for n in range(1, issued + 1)]
    write(folder, f"trace_{rank}", dump(rows, 4, **changes))


def _judged(folder: Path) -> Diagnosis:
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("issued", [2, 3])
def test_rank_dumped_first_is_neither_missing_nor_stuck(tmp_path: Path, issued: int) -> None:
    """The others have completed number 8, so rank 0 must have issued it after its dump was
    written."""
    _write(tmp_path, 0, 2, issued)
    for rank in (1, 2, 3):
        _write(tmp_path, rank, 8, 9)
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert any("rank 0 went on after being dumped" in u for u in found.findings[0].unknowns)


def test_absent_rank_of_the_current_wait_is_missing(tmp_path: Path) -> None:
    _write(tmp_path, 0, 8, 8)
    for rank in (1, 2, 3):
        _write(tmp_path, rank, 8, 9)
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (0,))


def test_job_with_dates_was_moving(tmp_path: Path) -> None:
    """Eight seconds after its last step: longer than this job ever paused."""
    _write(tmp_path, 0, 2, 3)
    for rank in (1, 2, 3):
        _write(tmp_path, rank, 8, 9)
    for rank in range(4):
        moment = BASE_NS + (11 + 8) * 10**9
        os.utime(tmp_path / f"trace_{rank}", ns=(moment, moment))
    assert _judged(tmp_path).verdict is Verdict.HEALTHY


def test_hang_of_other_ranks_is_reported_beside_an_early_dump(tmp_path: Path) -> None:
    """Rank 0 was dumped early; ranks 2 and 3 are unrelated to it in their own group."""
    config = listed(GROUPS)
    for rank in range(4):
        name = "1" if rank < 2 else "2"
        own = {"process_group": (name, f"pair{name}"), "pg_id": 1, "pg_config": None}
        reach = {0: 3, 1: 8, 2: 9, 3: 8}[rank]
        rows = [entry(1)]
        rows += [entry(n, record_id=n, **own) for n in range(1, min(reach, 8) + 1)]
        rows += [pending(9, record_id=9, **own)] if rank == 2 else []
        write(tmp_path, f"trace_{rank}", dump(rows, 4, pg_config=config, pg_status=None))
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))


def test_late_counter_is_no_wait(tmp_path: Path) -> None:
    """Rank 0 has issued ahead, and its counter stood at 2 when all others had completed number
    8."""
    status = {
        "0": {
            "last_enqueued_collective": 9,
            "last_started_collective": -1,
            "last_completed_collective": 2,
        }
    }
    write(tmp_path, "trace_0", dump([], 4, pg_status=status))
    for rank in (1, 2, 3):
        _write(tmp_path, rank, 8, 9)
    found = _judged(tmp_path)
    assert found.findings[0].seq != 3


@pytest.mark.parametrize(("early", "expected"), [({1}, (3,)), ({1, 3}, (1, 3))])
def test_rank_dumped_before_the_wait_began_is_not_observed_missing(
    tmp_path: Path, early: set[int], expected: tuple[int, ...]
) -> None:
    for rank in range(6):
        rows = [entry(n) for n in range(1, 9)]
        if rank not in (1, 3):
            rows.append(pending(9, time_created_ns=BASE_NS + 30 * 10**9))
        write(tmp_path, f"trace_{rank}", dump(rows, 6))
        moment = BASE_NS + (12 if rank in early else 700) * 10**9
        os.utime(tmp_path / f"trace_{rank}", ns=(moment, moment))
    found = _judged(tmp_path)
    assert found.culprits == expected
    assert found.confidence is not Confidence.CERTAIN


def test_one_early_dump_leaves_the_others_usable(tmp_path: Path) -> None:
    """Rank 1 proceeded after its dump; rank 3, dumped at the end, never reached the collective."""
    _write(tmp_path, 1, 2, 3)
    for rank in (0, 2, 4, 5):
        _write(tmp_path, rank, 8, 9)
    _write(tmp_path, 3, 8, 8)
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert found.confidence is Confidence.LIKELY


def test_full_dump_without_completions_of_its_group_is_too_early(tmp_path: Path) -> None:
    """Rank 0 had used only its pair when it was dumped; the default group has been used since."""
    config = listed(GROUPS)
    for rank in range(4):
        name = "1" if rank < 2 else "2"
        own = {"process_group": (name, f"pair{name}"), "pg_id": 1}
        rows = [entry(1, record_id=0, **own)]
        rows += [entry(n, record_id=n) for n in (1, 2)] if rank else []
        rows += [pending(3, record_id=3)] if rank else []
        write(tmp_path, f"trace_{rank}", dump(rows, 4, pg_config=config, pg_status=None))
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())


def test_log_beside_dumps_makes_an_early_dump_no_newer(tmp_path: Path) -> None:
    _write(tmp_path, 0, 2, 3)
    for rank in (1, 2, 3):
        _write(tmp_path, rank, 8, 9)
    said = (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600011 "
        "milliseconds before timing out."
    )
    (tmp_path / "job.log").write_text(
        f"[rank1]:[E618 10:00:00.123456789 ProcessGroupNCCL.cpp:683] {said}\n"
    )
    assert 0 not in _judged(tmp_path).culprits


def test_rank_dumped_as_the_wait_began_is_not_named_beside_later_dumps(tmp_path: Path) -> None:
    """Half a second into a wait of ten minutes, no rank is missing yet."""
    for rank in range(6):
        rows = [entry(n) for n in range(1, 9)]
        if rank not in (1, 3):
            rows.append(pending(9))
        write(tmp_path, f"trace_{rank}", dump(rows, 6))
        moment = BASE_NS + (9_500 if rank == 1 else 700_000) * 10**6
        os.utime(tmp_path / f"trace_{rank}", ns=(moment, moment))
    assert _judged(tmp_path).culprits == (3,)


def test_unfinished_entry_of_an_earlier_process_blocks_no_rank(tmp_path: Path) -> None:
    """Only unfinished entries are listed. Rank 3's file is from the previous process, which hung at
    #5; the current one left nothing, and others wait for rank 1 as well."""
    for rank in (0, 2, 3, 4, 5):
        number, began_s, written_s = (5, -900, -280) if rank == 3 else (9, 0, 700)
        rows = [pending(number, record_id=40, time_created_ns=BASE_NS + began_s * 10**9)]
        status = {"last_started_collective": -1, "last_completed_collective": number - 1}
        counted = {"0": {"last_enqueued_collective": number, **status}}
        write(tmp_path, f"trace_{rank}", dump(rows, 6, pg_status=counted))
        moment = BASE_NS + written_s * 10**9
        os.utime(tmp_path / f"trace_{rank}", ns=(moment, moment))
    status = {"last_started_collective": -1, "last_completed_collective": 8}
    counted = {"0": {"last_enqueued_collective": 8, **status}}
    write(tmp_path, "trace_1", dump([], 6, pg_status=counted))
    assert 3 not in _judged(tmp_path).culprits


def test_member_dumped_as_it_entered_may_have_ended_there_since(tmp_path: Path) -> None:
    """A rank that wrote its dump because it ended looks like one that stands there still."""
    for rank in range(4):
        rows = [entry(n) for n in range(1, 9)] + [pending(9)]
        write(tmp_path, f"trace_{rank}", dump(rows, 4))
        moment = BASE_NS + (10 if rank == 1 else 700) * 10**9
        os.utime(tmp_path / f"trace_{rank}", ns=(moment, moment))
    found = _judged(tmp_path)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, ())
    assert found.confidence is Confidence.LIKELY
    early = "rank 1 had been dumped before the others waited for long, and may have ended since"
    assert early in found.findings[0].unknowns
