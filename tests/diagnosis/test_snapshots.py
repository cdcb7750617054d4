"""Dumps of a moving job: a rank that is behind at that moment is not missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

SECOND = 10**9
STEP_S = 10
STEPS = 8


def step(seq: int, rank: int, *, late_s: float, **changes: Any) -> dict[str, Any]:
    """An all_reduce every ten seconds; rank 3 comes ``late_s`` after the others."""
    at = BASE_NS + seq * STEP_S * SECOND
    mine = at + int(late_s * SECOND) if rank == 3 else at
    end = {"time_discovered_completed_ns": at + int((late_s + 0.1) * SECOND), **changes}
    return entry(seq, time_created_ns=mine, **end)


def dumped(
    folder: Path, after_s: float, *, late_s: float = 9.0, timeout_ms: int = 600_000, active: bool
) -> Diagnosis:
    """Ranks 0 to 2 have waited for rank 3 for ``after_s`` when they are dumped."""
    began = BASE_NS + (STEPS + 1) * STEP_S * SECOND
    for rank in range(4):
        entries = [step(s, rank, late_s=late_s) for s in range(1, STEPS + 1)]
        if active:
            entries = []
        if rank != 3:
            entries.append(
                pending(STEPS + 1, time_created_ns=began, timeout_ms=timeout_ms, record_id=STEPS)
            )
        status = {
            "0": {
                "last_enqueued_collective": STEPS + (rank != 3),
                "last_started_collective": -1,
                "last_completed_collective": STEPS,
            }
        }
        made = dump(entries, world=4, pg_status=status)
        path = write(folder, f"trace_{rank}", made)
        seconds = began / SECOND + after_s
        os.utime(path, (seconds, seconds))
    return diagnose(load_trace([folder]))


def test_slow_rank_of_a_moving_job_is_not_missing(tmp_path: Path) -> None:
    found = dumped(tmp_path, 12, late_s=5, active=False)
    assert (found.verdict.value, found.culprits) == ("healthy", ())
    assert any("still moving" in note for note in found.notes)


def test_slow_rank_dumped_just_after_its_step_is_not_missing(tmp_path: Path) -> None:
    """The others have waited for longer than any pause between two operations."""
    for rank in range(4):
        own = [step(s, rank, late_s=0) for s in range(1, 3)]
        rest = []
        if rank == 3:  # it goes on in a group of its own
            group = {"pg_id": 1, "process_group": ("1", "own")}
            at = BASE_NS + 4 * STEP_S * SECOND
            rest = [
                entry(
                    s,
                    **group,
                    record_id=1 + s,
                    time_created_ns=at + s * 2 * SECOND,
                    time_discovered_completed_ns=at + s * 2 * SECOND + SECOND,
                )
                for s in range(1, 12)
            ]
        else:
            rest = [pending(3, time_created_ns=BASE_NS + 3 * STEP_S * SECOND)]
        path = write(tmp_path, f"trace_{rank}", dump(own + rest, world=4, pg_status={}))
        seconds = BASE_NS / SECOND + 4 * STEP_S + 24
        os.utime(path, (seconds, seconds))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("healthy", ())


@pytest.mark.parametrize(("after_s", "timeout_ms"), [(130, 600_000), (9.5, 10_000)])
def test_rank_that_made_others_wait_long_is_missing(
    tmp_path: Path, after_s: float, timeout_ms: int
) -> None:
    found = dumped(tmp_path, after_s, late_s=1, timeout_ms=timeout_ms, active=False)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


def test_lists_of_unfinished_entries_with_a_short_wait_accuse_no_rank(tmp_path: Path) -> None:
    found = dumped(tmp_path, 30, active=True)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("may have been moving" in note for note in found.notes)


def test_lists_of_unfinished_entries_with_a_long_wait_show_the_rank(tmp_path: Path) -> None:
    found = dumped(tmp_path, 130, active=True)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


@pytest.mark.parametrize(
    ("quiet_s", "verdict", "confidence"),
    [
        (1, "healthy", "certain"),
        (3, "missing_rank", "likely"),  # three hundred times what a step has taken
        (40, "missing_rank", "likely"),  # nobody knows what the rank does: it may be saving
        (90, "missing_rank", "certain"),
        (3 * 86400, "missing_rank", "likely"),  # the files were copied: nobody waits for days
    ],
)
def test_steps_of_milliseconds_that_stop_for_seconds(
    quiet_s: float, verdict: str, confidence: str, tmp_path: Path
) -> None:
    """Four dumps, written so long after rank 2 did not reach an operation."""
    steps, pause_ns = 30, SECOND // 100
    for rank in range(4):
        entries = []
        for seq in range(1, steps):
            at = BASE_NS + seq * pause_ns
            end = {"time_discovered_completed_ns": at + pause_ns // 2}
            entries.append(entry(seq, time_created_ns=at, **end))
        if rank != 2:
            entries.append(pending(steps, time_created_ns=BASE_NS + steps * pause_ns))
        path = write(tmp_path, f"nccl_trace_rank_{rank}", dump(entries, world=4))
        moment = BASE_NS + steps * pause_ns + int(quiet_s * SECOND)
        os.utime(path, ns=(moment, moment))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.confidence.value) == (verdict, confidence)
    assert found.culprits == (() if verdict == "healthy" else (2,))


@pytest.mark.parametrize("ahead_s", [0.5, 50])
def test_host_with_a_clock_ahead_of_the_file_server_wrote_just_then(
    tmp_path: Path, ahead_s: float
) -> None:
    """Its dumps are older than their records; those of the other host are not."""
    for rank in range(4):
        ahead = int(ahead_s * SECOND) if rank < 3 else 0
        own = [entry(s, time_created_ns=BASE_NS + s * SECOND + ahead) for s in range(1, 9)]
        for row in own:
            row["time_discovered_completed_ns"] = row["time_created_ns"] + SECOND // 10
        if rank != 3:
            own.append(pending(9, time_created_ns=BASE_NS + 9 * SECOND + ahead))
        path = write(tmp_path, f"trace_{rank}", dump(own, world=4))
        os.utime(path, (BASE_NS / SECOND + 9.3, BASE_NS / SECOND + 9.3))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("healthy", ())


def test_start_time_is_no_date_of_the_file(tmp_path: Path) -> None:
    """Files dated long before their records: nothing shows when they were written."""
    for rank in range(4):
        rows = [entry(1), entry(2)]
        if rank != 2:
            seen_ns = BASE_NS + 3 * SECOND + SECOND // 3
            rows.append(pending(3, state="started", time_discovered_started_ns=seen_ns))
        path = write(tmp_path, f"nccl_trace_rank_{rank}", dump(rows, world=4))
        os.utime(path, ns=(10**18, 10**18))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_one_much_earlier_dump_does_not_show_a_moving_job(tmp_path: Path) -> None:
    """Rank 2 was dumped just after it had reached what all wait in, the others 90 s later."""
    dumped(tmp_path, 90, late_s=0, active=False)
    began = (BASE_NS + (STEPS + 1) * STEP_S * SECOND) / SECOND
    os.utime(tmp_path / "trace_2", (began + 1, began + 1))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


def test_one_dump_of_a_moving_job_shows_nothing_about_later_ones(tmp_path: Path) -> None:
    """Rank 3 was dumped in a step; the others 40 s later, when they had waited for 35."""
    for rank in range(4):
        entries = [step(s, rank, late_s=0) for s in range(1, STEPS + (rank != 3))]
        if rank != 3:
            began = BASE_NS + STEPS * STEP_S * SECOND + 5 * SECOND
            entries.append(pending(STEPS + 1, time_created_ns=began, record_id=STEPS))
        path = write(tmp_path, f"trace_{rank}", dump(entries, world=4))
        seconds = BASE_NS / SECOND + STEPS * STEP_S + (0 if rank == 3 else 40)
        os.utime(path, (seconds, seconds))
    assert diagnose(load_trace([tmp_path])).verdict.value != "healthy"
