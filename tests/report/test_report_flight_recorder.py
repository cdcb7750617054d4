"""Dumps that torch's own analyzer loads and diagnoses like native ones."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hangscope.diagnosis.records.blocking_calls import returned
from hangscope.replay.verify import load_recorded
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, Group, Signature, Source, State
from tests import view_samples as samples
from tests.diagnosis.builder import Job

FIXTURES = Path(__file__).parents[2] / "fixtures"


class _Builtins(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"the dump asks for {module}.{name}")


def dump(job: samples.Job, rank: int) -> dict[str, Any]:
    loaded = _Builtins(io.BytesIO(flight_recorder.dump_bytes(job.trace, rank))).load()
    assert isinstance(loaded, dict)
    return loaded


def test_entries_have_the_fields_of_version_2_10() -> None:
    loaded = dump(samples.hang(), 0)
    assert loaded["version"] == "2.10"
    assert loaded["pg_config"]["0"] == {"name": "0", "desc": "dp", "ranks": "[0, 1, 2, 3]"}
    assert loaded["pg_status"]["0"] == {
        "last_enqueued_collective": 103,
        "last_started_collective": 103,
        "last_completed_collective": 102,
    }
    last = loaded["entries"][-1]
    assert last == {
        "record_id": 137,
        "pg_id": 0,
        "process_group": ("0", "dp"),
        "collective_seq_id": 103,
        "p2p_seq_id": 0,
        "op_id": 103,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": samples.NOW_NS - 12 * samples.SECOND,
        "input_sizes": [[4096]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4096]],
        "output_dtypes": ["Float"],
        "state": "started",
        "time_discovered_started_ns": samples.NOW_NS - 12 * samples.SECOND + 1000,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 10_000,
        "is_p2p": False,
        "thread_id": "1",
        "thread_name": "",
        "frames": [
            {"name": f.name, "filename": f.filename, "line": f.line} for f in samples.BACKWARD
        ],
        "reduce_op": "SUM",  # ours; other readers look for their own fields only
    }
    assert loaded["hangscope"]["rank"] == 0
    assert loaded["hangscope"]["host"] == "node0"


def test_counters_without_a_source_come_from_the_rows() -> None:
    """An operation that is only issued is not among the completed ones."""
    trace = samples.hang().trace
    unnamed = [replace(group, desc="") for group in trace.groups]
    bare = replace(trace, members=trace.members[:0], groups=unnamed)
    loaded = pickle.loads(flight_recorder.dump_bytes(bare, 0))
    assert loaded["pg_status"]["0"] == {
        "last_enqueued_collective": 103,
        "last_started_collective": flight_recorder.NONE,
        "last_completed_collective": 102,
    }
    assert loaded["pg_config"]["0"]["desc"] == "undefined", "torch's word for it"


def test_point_to_point_names_carry_ranks_within_the_group() -> None:
    job = samples.hang(4, steps=1)
    records = np.zeros(2, job.trace.records.dtype)
    for i, peer in enumerate((3, -1)):
        records[i]["rank"], records[i]["peer"], records[i]["signature"] = 1, peer, i
        records[i]["flags"], records[i]["stack"] = int(Flag.P2P), -1
    trace = replace(
        job.trace,
        records=records,
        groups=(Group("7", "pp", (1, 3), backend="nccl"),),
        signatures=(Signature("send", backend="nccl"), Signature("recv", backend="nccl")),
        members=job.trace.members[:0],
    )
    entries = flight_recorder.to_dump(trace, 1)["entries"]
    assert [e["profiling_name"] for e in entries] == ["nccl:send 0->1", "nccl:recv 0<-?"]
    assert all(e["is_p2p"] for e in entries)


def test_name_used_twice_stays_two_groups() -> None:
    job = samples.hang(2, culprit=1, steps=1)
    groups = (replace(job.trace.groups[0], name="0", epoch=1), Group("0", "dp", (0, 1), epoch=0))
    config = flight_recorder.to_dump(replace(job.trace, groups=groups), 0)["pg_config"]
    assert sorted(config) == ["0", "0@epoch0.1"]


def test_inferred_rows_are_not_exported() -> None:
    job = samples.hang()
    records = job.trace.records.copy()
    records["flags"][records["collective_seq"] == 103] |= int(Flag.SYNTHETIC)
    loaded = flight_recorder.to_dump(replace(job.trace, records=records), 0)
    assert max(e["collective_seq_id"] for e in loaded["entries"]) == 102
    assert loaded["pg_status"]["0"]["last_enqueued_collective"] == 103


def torchfrtrace(directory: Path) -> str:
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout + run.stderr


@pytest.mark.long
def test_torchfrtrace_names_the_missing_rank(tmp_path: Path) -> None:
    files = flight_recorder.write(samples.hang().trace, tmp_path)
    assert [f.name for f in files] == [f"comm_lib_trace_rank_{r}" for r in range(4)]
    said = torchfrtrace(tmp_path)
    assert "not all ranks joining collective, sequence number: 103" in said.lower()
    assert "missing ranks: {2}" in said


@pytest.mark.long
def test_torchfrtrace_finds_nothing_in_a_finished_job(tmp_path: Path) -> None:
    job = samples.hang(steps=3)
    done = job.trace.records[job.trace.records["completed_ns"] > 0]
    flight_recorder.write(replace(job.trace, records=done), tmp_path)
    said = torchfrtrace(tmp_path)
    assert "missing ranks" not in said
    assert "mismatch" not in said.lower()


def test_returned_calls_are_completed_in_the_dump() -> None:
    job = Job(2)
    for _ in range(3):
        job.all(done=False)
    job.op(0, flags=Flag.ASYNC, done=False)
    rings = [Source(f"rank_{rank}.ring", "hangscope-ring", rank=rank) for rank in (0, 1)]
    trace = job.trace(sources=tuple(rings))
    states = [
        [e["state"] for e in flight_recorder.to_dump(trace, rank)["entries"]] for rank in (0, 1)
    ]
    assert states == [["completed"] * 3 + ["scheduled"], ["completed"] * 2 + ["scheduled"]]
    assert not (trace.records["state"] == State.COMPLETED).any()


def test_export_passes_over_the_records_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    monkeypatch.setattr(
        flight_recorder, "returned", lambda trace: passes.append(1) or returned(trace)
    )
    trace = samples.hang().trace
    files = flight_recorder.write(trace, tmp_path)
    assert len(files) == 4
    assert len(passes) == 1
    for rank, file in enumerate(files):
        assert _Builtins(io.BytesIO(file.read_bytes())).load() == flight_recorder.to_dump(
            trace, rank
        )


def test_list_with_a_tensor_for_each_member_is_one_tensor_as_in_native_dumps() -> None:
    ring = load_recorded(FIXTURES / "loader-asleep" / "dumps")
    native = load_trace([FIXTURES / "native-loader-asleep" / "dumps"])
    gathered = next(s for s in native.signatures if s.op == "all_gather")
    entries = flight_recorder.to_dump(ring, 0)["entries"]
    entry = next(e for e in entries if "all_gather" in e["profiling_name"])
    assert entry["output_sizes"] == [list(size) for size in gathered.output_sizes or ()]
    assert entry["output_dtypes"] == list(gathered.output_dtypes or ())
