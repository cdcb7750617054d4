"""torch's own dumps are written beside the rings, and complete them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hangscope.recording.native_dumps import (
    DYNAMIC,
    OLD_VARIABLE,
    STEM,
    VARIABLE,
    keep_native_dumps,
)
from hangscope.ring.layout import FIXED_START, GROUP, SLOT
from hangscope.trace.load import load_trace
from hangscope.trace.model import NONE, Flag, State
from tests.real_jobs import JobResult, environment, ranks

pytestmark = pytest.mark.xdist_group("native dumps")

SECOND = 10**9

JOB = """
import os, sys
import torch, torch.distributed as dist
import hangscope
from tests.job_report import Report

report = Report()
dist.init_process_group("gloo")
half = dist.new_group([0])
for _ in range(3):
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0:
        dist.all_gather_into_tensor(torch.zeros(4), torch.ones(4), group=half)
report.values["dumps"] = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
report.save()
hangscope.dump(sys.argv[1] + str(dist.get_rank()))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.13.0+cpu", VARIABLE), ("2.8.0", VARIABLE), ("2.7.1", OLD_VARIABLE), ("nightly", VARIABLE)],
)
def test_dump_variable_is_the_one_this_torch_reads(
    version: str, expected: str, tmp_path: Path
) -> None:
    environment: dict[str, str] = {}
    assert keep_native_dumps(tmp_path, environment, version) == expected
    assert environment == {expected: str(tmp_path / STEM)}


@pytest.mark.parametrize("name", [VARIABLE, OLD_VARIABLE, DYNAMIC])
def test_users_dump_path_is_kept(name: str, tmp_path: Path) -> None:
    environment = {name: "/scratch/fr_"}
    assert keep_native_dumps(tmp_path, environment, "2.13.0") is None
    assert environment == {name: "/scratch/fr_"}


def test_relative_directory_becomes_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    environment: dict[str, str] = {}
    keep_native_dumps(Path("runs"), environment, "2.13.0")
    assert environment[VARIABLE] == str(tmp_path / "runs" / STEM)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobResult]:
    """The run directory of a real job whose ranks wrote dumps into it, and what they reported."""
    folder = tmp_path_factory.mktemp("native")
    script, runs = folder / "job.py", folder / "runs"
    script.write_text(JOB)
    found = ranks(
        script,
        2,
        environment(HANGSCOPE="1", HANGSCOPE_DIR=str(runs)),
        arguments=[str(runs / STEM)],
    )
    assert found.returncode == 0, found.output
    return runs, found


def test_dumps_are_directed_into_the_run_directory(job: tuple[Path, JobResult]) -> None:
    runs, found = job
    assert found.values == {rank: {"dumps": str(runs / STEM)} for rank in range(2)}


def _as_nccl_leaves_them(runs: Path, folder: Path) -> None:
    """The job's rings without completions, and its dumps, which have them.

    As on a GPU, which Python does not query: rank 1's last all-reduce has only started.
    """
    folder.mkdir()
    for path in runs.glob("rank_*.ring"):
        data = bytearray(path.read_bytes())
        _, _, _, _, count, _, groups, groups_at, slots_at, *_ = FIXED_START.unpack_from(data)
        slots = np.frombuffer(data, SLOT, count, slots_at)
        used = slots["record_id"] > 0
        slots["state"][used], slots["completed_ns"][used] = State.SCHEDULED, 0
        slots["flags"][used] = slots["flags"][used] & ~np.uint32(Flag.RETIRED) | Flag.UNOBSERVED
        np.frombuffer(data, GROUP, groups, groups_at)["completed"] = NONE
        (folder / path.name).write_bytes(data)
    for path in runs.glob(f"{STEM}*"):
        document: dict[str, Any] = pickle.loads(path.read_bytes())  # our own, written just now
        del document["hangscope"]  # not written by torch's own recorder
        last = max(e["record_id"] for e in document["entries"])
        for entry in document["entries"]:
            entry["time_discovered_started_ns"] = entry["time_created_ns"] + 5
            finished = path.name == f"{STEM}0" or entry["record_id"] != last
            entry["state"] = "completed" if finished else "started"
            entry["time_discovered_completed_ns"] = (
                entry["time_created_ns"] + 9 if finished else None
            )
        (folder / path.name).write_bytes(pickle.dumps(document))


def test_native_entries_complete_the_ring(job: tuple[Path, JobResult], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _as_nccl_leaves_them(job[0], folder)
    records = load_trace([folder]).records
    alone = load_trace(sorted(folder.glob("*.ring"))).records
    assert len(alone) > 0
    assert (alone["flags"] & Flag.UNOBSERVED).all()
    assert records[["rank", "group", "collective_seq", "stack"]].tolist() == (
        alone[["rank", "group", "collective_seq", "stack"]].tolist()
    )
    assert not (records["flags"] & Flag.UNOBSERVED).any()
    last = np.flatnonzero(records["rank"] == 1)[-1]
    finished = np.ones(len(records), bool)
    finished[last] = False
    assert (records["state"][finished] == State.COMPLETED).all()
    assert records["state"][last] == State.STARTED
    assert (records["started_ns"] == records["created_ns"] + 5).all()
    assert (records["completed_ns"][finished] == records["created_ns"][finished] + 9).all()
    assert records["completed_ns"][last] == 0


def test_dump_older_than_the_ring_belongs_to_an_earlier_attempt(
    job: tuple[Path, JobResult], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    _as_nccl_leaves_them(job[0], folder)
    old = folder / f"{STEM}1"
    document: dict[str, Any] = pickle.loads(old.read_bytes())
    for entry in document["entries"]:
        for name in ("time_created_ns", "time_discovered_started_ns"):
            entry[name] -= 300 * SECOND
        entry["collective_seq_id"] += 40  # it had progressed further
    old.write_bytes(pickle.dumps(document))
    os.utime(old, ns=(old.stat().st_mtime_ns - 300 * SECOND,) * 2)
    trace = load_trace([folder])
    of_rank = trace.records[trace.records["rank"] == 1]
    assert of_rank["collective_seq"].max() <= 8
    assert (of_rank["flags"] & Flag.UNOBSERVED).all()
    assert any(
        f"{STEM}1: written before rank 1 of this run began" in line for line in trace.warnings
    ), trace.warnings
