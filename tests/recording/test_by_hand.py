"""Groups constructed by hand: group ranks are not ranks of the job unless it fills them all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.load import load_trace
from tests.real_jobs import environment, run_each, worlds
from tests.recording.launcher import JOBS, recording
from tools.ports import free_port

pytestmark = pytest.mark.timed


def test_members_outside_the_job_are_not_confused_with_its_ranks(tmp_path: Path) -> None:
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path), HANGSCOPE_TIMEOUT="3", HANGSCOPE_ON_HANG="kill"
    )
    command = [sys.executable, str(JOBS / "by_hand_job.py"), str(free_port())]
    places = [env | place for place in worlds(2)]
    run_each(command, [*places, {**env, "HANGSCOPE": "0", "ENGINE": "1"}], timeout_s=90)
    trace = load_trace([tmp_path])
    by_label = {group.label: group for group in trace.groups}
    pair, weights = by_label["pair"], by_label["weights"]
    assert (pair.ranks, pair.outsiders) == ((0, 1), 0)
    assert (weights.ranks, weights.place, weights.outsiders) == ((0,), 0, 1)
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary == (
        "Rank 0 waits in all_reduce #1 in group weights for a process that is no known rank of "
        "this job"
    )


def test_recording_begun_by_hand_before_its_own_start(tmp_path: Path) -> None:
    """HANGSCOPE=1 without a launcher waits for ``init_process_group``, which by then is ours."""
    code = (
        "import torch.distributed as dist, hangscope\n"
        "assert hangscope.start()\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
        "dist.destroy_process_group()\n"
        "print('initialised')\n"
    )
    job = run_each([sys.executable, "-c", code], [recording(tmp_path)])
    assert job.output.strip().endswith("initialised"), job.output[-2000:]
