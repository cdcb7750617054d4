"""Backends that a package registers and that are written in Python, with Works of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hangscope.diagnosis.engine import diagnose
from hangscope.recording import api
from hangscope.recording.session import Session
from hangscope.ring.layout import SlotFlag
from hangscope.trace.load import load_trace
from hangscope.trace.model import State
from hangscope.trace.rings.read import read_ring
from tests.real_jobs import environment
from tests.recording.launcher import ranks, recording


@pytest.mark.timed
@pytest.mark.parametrize("compiled", ["0", "1"])
def test_operations_and_their_ends_are_recorded(tmp_path: Path, compiled: str) -> None:
    job = ranks("python_backend_job", 2, recording(tmp_path, HANGSCOPE_COMPILED=compiled))
    assert job.returncode == 0, job.output
    assert job.said == []
    trace = load_trace([tmp_path])
    assert {group.backend for group in trace.groups} == {"storely"}
    labels = [group.label for group in trace.groups]
    assert sorted(labels) == ["default", "metrics"]
    for rank in (0, 1):
        rows = trace.records[trace.records["rank"] == rank]
        told = [
            (labels[row["group"]], trace.signatures[row["signature"]].op, row["collective_seq"])
            for row in rows
        ]
        assert told == [
            ("default", "all_reduce", 1), ("metrics", "broadcast", 1), ("default", "barrier", 2),
            ("default", "all_reduce", 3), ("default", "barrier", 4),
        ]  # fmt: skip
        assert [row["root"] for row in rows] == [-1, 1, -1, -1, -1]
        waited = [bool(row["state"] == State.COMPLETED) for row in rows]
        assert waited == [True, True, True, False, True]
        assert rows[3]["flags"] & SlotFlag.UNOBSERVED, "nobody has waited for it"
        assert {trace.signatures[row["signature"]].reduce_op for row in rows} == {"SUM", None}


@pytest.mark.timed
def test_rank_that_left_an_operation_out_is_named(tmp_path: Path) -> None:
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path), HANGSCOPE_TIMEOUT="3", HANGSCOPE_ON_HANG="kill"
    )
    job = ranks("python_backend_job", 2, env, arguments=("hang",))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,)), job.output
    assert found.summary == "Rank 1 never joined all_reduce #2 in group metrics (ranks 0, 1)"
    assert found.summary in job.output


class Done(dist.Work):
    """A Work whose wait is torch's in the end, and fails for some."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    def wait(self, timeout: Any = None) -> bool:
        if self.error is not None:
            raise self.error
        return True


class Alone(dist.ProcessGroup):
    """A process group whose barrier is an all-reduce, and which refuses to broadcast."""

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Done:
        return Done(ValueError("lost") if tensors[0].numel() > 1 else None)

    def barrier(self, opts: Any = None) -> Done:
        return self.allreduce([torch.ones(1)])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Done:
        raise TypeError("refused")


def test_one_record_for_a_call_and_the_methods_as_they_were_afterwards(
    recording_gloo: Session,
) -> None:
    before = {name: vars(Alone)[name] for name in ("allreduce", "barrier", "broadcast")}
    waits = Done.wait
    group = Alone(0, 1)
    recording_gloo.recorder.groups.register(group)
    group.barrier().wait()
    with pytest.raises(TypeError, match="refused"):
        group.broadcast([torch.ones(1)])
    with pytest.raises(ValueError, match="lost"):
        group.allreduce([torch.ones(2)]).wait()
    group.allreduce([torch.ones(1)])
    ring = read_ring(recording_gloo.ring.path)
    told = [(ring.signatures[row["signature"]].op, int(row["state"])) for row in ring.records]
    assert told == [("barrier", 2), ("broadcast", 0), ("all_reduce", 0), ("all_reduce", 0)]
    assert not recording_gloo.failed
    api.stop()
    assert {name: vars(Alone)[name] for name in before} == before
    assert Done.wait is waits
