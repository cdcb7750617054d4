"""Dumps that were copied without their dates: nothing shows how long anybody had waited."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

MINUTES_NS = 60 * 10**9
DAYS_NS = 86400 * 10**9


def judged(folder: Path, later_ns: int) -> Diagnosis:
    """Rank 1 is missing at #2; the files are dated so long after the beginning of the wait."""
    for rank in range(4):
        entries = [entry(1)] if rank == 1 else [entry(1), pending(2)]
        path = write(folder, f"trace_rank_{rank}", dump(entries, world=4))
        moment = BASE_NS + 2 * 10**9 + later_ns
        os.utime(path, ns=(moment, moment))
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("later_ns", [90 * DAYS_NS, -30 * DAYS_NS])
def test_an_unknown_wait_is_not_shown_as_none(tmp_path: Path, later_ns: int) -> None:
    diagnosis = judged(tmp_path, later_ns)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (1,))
    (finding,) = diagnosis.findings
    assert [side.waiting_s for side in finding.sides] == [None, None]
    assert {report.waiting_s for report in diagnosis.ranks} == {None}
    assert " for " not in finding.evidence[0]


def test_a_known_wait_is_shown(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, 11 * MINUTES_NS)
    (finding,) = diagnosis.findings
    assert finding.sides[0].waiting_s == 660
    assert "for 11 min" in finding.evidence[0]


def test_a_wait_that_only_records_date_is_not_called_short(tmp_path: Path) -> None:
    for rank in range(4):
        entries = [entry(1)] if rank == 1 else [entry(1), pending(2), pending(3)]
        path = write(tmp_path, f"trace_rank_{rank}", dump(entries, world=4))
        os.utime(path, ns=(BASE_NS + 90 * DAYS_NS,) * 2)
    (finding,) = diagnose(load_trace([tmp_path])).findings
    unknowns = " ".join(finding.unknowns)
    assert "no credible date says how long anybody had waited" in unknowns
    assert "nobody had waited" not in unknowns
