"""Dumps written after a watchdog aborted its communicators: aborted operations did not finish."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.load import load_trace
from hangscope.trace.model import State
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

SECOND = 10**9


def _write(folder: Path, rank: int, entries: list[dict[str, Any]], at_s: float) -> None:
    path = write(folder, f"nccl_trace_rank_{rank}", dump(entries, world=3))
    moment = BASE_NS + int(at_s * SECOND)
    os.utime(path, ns=(moment, moment))


def _let_go(seq: int, at_s: float, **changes: Any) -> dict[str, Any]:
    return entry(seq, time_discovered_completed_ns=BASE_NS + int(at_s * SECOND), **changes)


def test_rank_aborted_in_a_collective_has_not_completed_it(tmp_path: Path) -> None:
    """Rank 2 is absent; rank 0 timed out, aborted its communicators, and then wrote its dump."""
    _write(tmp_path, 0, [entry(1), entry(2), _let_go(3, 603.1), _let_go(4, 603.2)], 604)
    _write(tmp_path, 1, [entry(1), entry(2), pending(3), pending(4)], 603)
    _write(tmp_path, 2, [entry(1), entry(2)], 603)
    trace = load_trace([tmp_path])
    mine = trace.records[trace.records["rank"] == 0]
    assert (mine["state"] == State.COMPLETED).tolist() == [True, True, False, False]
    assert any("2 operations ended together when rank 0 gave up" in w for w in trace.warnings)
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_without_timeouts_the_time_of_the_dump_decides(tmp_path: Path) -> None:
    """Rank 1 was signalled to dump by another rank's watchdog, long before its own timeout."""
    held: dict[str, Any] = {"timeout_ms": None}
    _write(tmp_path, 0, [entry(1, **held), _let_go(2, 300.0, **held)], 301)
    _write(tmp_path, 1, [entry(1, **held), pending(2, **held)], 300)
    _write(tmp_path, 2, [entry(1, **held)], 300)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


@pytest.mark.parametrize(
    ("entries", "at_s"),
    [
        pytest.param(  # after a long checkpoint of another rank the job goes on
            [entry(1), _let_go(2, 400.0), entry(3, time_created_ns=BASE_NS + 401 * SECOND)],
            402,
            id="issued since",
        ),
        pytest.param([entry(1), _let_go(2, 400.0)], 1000, id="within its time, long before"),
        pytest.param([entry(1), _let_go(2, 20.0)], 21, id="a pause"),
        pytest.param(
            [_let_go(n, 600.0 + n, time_created_ns=None) for n in (1, 2)], 604, id="never dated"
        ),
    ],
)
def test_late_completion_is_a_completion(
    tmp_path: Path, entries: list[dict[str, Any]], at_s: float
) -> None:
    _write(tmp_path, 0, entries, at_s)
    trace = load_trace([tmp_path])
    assert int(trace.records["state"][1]) == int(State.COMPLETED)
    assert not trace.warnings


def test_short_timeout_is_a_silence(tmp_path: Path) -> None:
    held: dict[str, Any] = {"timeout_ms": 30000}
    _write(tmp_path, 0, [entry(1, **held), _let_go(2, 32.5, **held)], 33)
    _write(tmp_path, 1, [entry(1, **held), pending(2, **held)], 33)
    _write(tmp_path, 2, [entry(1, **held)], 33)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_rank_that_timed_out_retires_nothing_more(tmp_path: Path) -> None:
    """A timeout of half a minute that is not in the dump: no completion was recorded when it
    expired."""
    held: dict[str, Any] = {"timeout_ms": None}
    late = {**held, "retired": False}
    for rank in (0, 1):
        rows = [entry(1, **held), _let_go(2, 31.0, **late), _let_go(3, 31.0, **late)]
        _write(tmp_path, rank, rows, 31.1)
    _write(tmp_path, 2, [entry(1, **held)], 31)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_job_whose_ranks_aborted_is_not_moving(tmp_path: Path) -> None:
    """If nothing shows that they timed out, nothing shows that they went on, either."""
    held: dict[str, Any] = {"timeout_ms": None}
    for rank in range(3):
        _write(tmp_path, rank, [entry(1, **held), entry(2, **held), _let_go(3, 40.0, **held)], 41)
    found = diagnose(load_trace([tmp_path]))
    assert found.verdict is Verdict.QUIESCENT


def test_entry_unretired_after_a_long_silence_was_aborted(tmp_path: Path) -> None:
    """The dumps are dated by another clock, and no timeout is recorded."""
    held: dict[str, Any] = {"timeout_ms": None}
    late = {**held, "retired": False}
    for rank in (0, 1):
        _write(tmp_path, rank, [entry(1, **held), _let_go(2, 603.0, **late)], 670)
    _write(tmp_path, 2, [entry(1, **held)], 670)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))
