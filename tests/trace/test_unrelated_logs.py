"""Logs of another job that lie beside this job's records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace import formats
from hangscope.trace.job_selection.unrelated_logs import drop_unrelated_logs
from hangscope.trace.load import load_trace
from hangscope.trace.model import Fragment, RankFacts, Source

from .logs import timeout

DUMPS = Path(__file__).parents[2] / "fixtures" / "loader-asleep" / "dumps"
RAISED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/job/train.py", line 88, in step\n'
    "[rank1]: ValueError: corrupt shard 17\n"
)
KILLED = (
    "E0816 12:10:05.123456 47 torch/distributed/elastic/multiprocessing/api.py:833] failed "
    "(exitcode: -9) local_rank: 1 (pid: {pid}) of binary: /usr/bin/python\n"
)


def judged(tmp_path: Path, log: str) -> Diagnosis:
    folder = tmp_path / "run"
    shutil.copytree(DUMPS, folder)
    (folder / "job.log").write_text(log)
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("world_size=16\n" + RAISED, "speaks of 16 ranks, the records of 4"),
        ("[rank9]: step 7\n" + RAISED, "speaks of 10 ranks, the records of 4"),
        (RAISED + "".join(timeout(rank, 78) for rank in (0, 2, 3)), "days from the records"),
    ],
)
def test_log_that_contradicts_the_records_is_left_out(tmp_path: Path, log: str, why: str) -> None:
    found = judged(tmp_path, log)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "certain"
    (warning,) = (line for line in found.warnings if "job.log" in line)
    assert why in warning


def test_other_process_ids_belong_to_another_job(tmp_path: Path) -> None:
    undated = KILLED.removeprefix("E0816 12:10:05.123456 47 ")
    table = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 711)\n"
    found = judged(tmp_path, undated.format(pid=711) + table)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert any("its rank 1 is process 711" in line for line in found.warnings)


def test_log_that_contradicts_nothing_is_believed(tmp_path: Path) -> None:
    found = judged(tmp_path, "world_size=4\n" + RAISED)
    assert not any("ignored" in line for line in found.warnings)
    assert "corrupt shard 17" in repr(found)


def test_stacks_of_a_rank_beyond_the_logs_world_are_anothers(tmp_path: Path) -> None:
    waits = "".join(timeout(rank, 78) for rank in (0, 1, 3))
    (tmp_path / "job.log").write_text("world_size=4\n" + waits)
    frames = 'Thread 4719 (idle): "MainThread"\n    load (data.py:51)\n    <module> (train.py:9)\n'
    spied = "Process 4719: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\n" + frames
    (tmp_path / "stack_rank_9.txt").write_text(spied)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))
    assert any("stack_rank_9.txt" in line and "ignored" in line for line in found.warnings)
    (tmp_path / "stack_rank_2.txt").write_text(spied)
    assert "data.py:51" in repr(diagnose(load_trace([tmp_path])))


@pytest.mark.parametrize(
    ("kind", "declared", "kept"),
    [(formats.RING, True, False), (formats.RING, None, True), (formats.PICKLE, None, False)],
)
def test_world_size_that_a_launcher_told_contradicts_no_log(
    kind: str, declared: bool | None, kept: bool
) -> None:
    """The process never reached rendezvous; a dump is written behind it."""
    record = Fragment(Source("a", kind), RankFacts(0, world_size=4, declared=declared))
    log = Fragment(Source("b", formats.LOG), RankFacts(0, world_size=16))
    assert (log in drop_unrelated_logs([record, log])[0]) == kept
