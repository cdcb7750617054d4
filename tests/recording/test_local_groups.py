"""A rank that creates local-synchronization groups in another order than the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from tests import real_jobs
from tests.real_jobs import environment
from tests.recording.launcher import JOBS

pytestmark = pytest.mark.timed


def test_order_of_local_groups_is_recorded(tmp_path: Path) -> None:
    rings, dumps = tmp_path / "rings", tmp_path / "dumps"
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(rings), HANGSCOPE_TIMEOUT="4", HANGSCOPE_ON_HANG="kill"
    )
    done = real_jobs.ranks(JOBS / "local_groups_job.py", 4, env, timeout_s=90)
    assert any("wait for each other in a cycle" in line for line in done.said)
    trace = load_trace([rings])
    flight_recorder.write(trace, dumps)
    for told in (trace, load_trace([dumps])):
        found = diagnose(told)
        assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (2,))
