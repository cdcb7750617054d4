"""Ranks are the processes that join the job, not those that started them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.ring.reader import RingReader
from hangscope.trace.load import load_trace
from tests import real_jobs
from tests.real_jobs import environment
from tests.recording.launcher import JOBS

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(
    ("how", "world"), [("fork", 2), pytest.param("spawn", 4, marks=pytest.mark.slow)]
)
def test_children_of_a_launched_process_are_the_ranks(tmp_path: Path, how: str, world: int) -> None:
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path), HANGSCOPE_TIMEOUT="8", HOW=how,
        HANGSCOPE_ON_HANG="kill", TORCHELASTIC_RUN_ID="forked",
    )  # fmt: skip
    done = real_jobs.ranks(JOBS / "forked_job.py", 2, env, timeout_s=90)
    assert sum("Rank 1 never joined all_reduce #2" in line for line in done.said) == 1
    assert not any("two processes" in line for line in done.said)
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == list(range(world))
    headers = [RingReader(path).header() for path in tmp_path.glob("rank_*.ring")]
    assert [header.main_thread for header in headers] == [header.pid for header in headers]
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
