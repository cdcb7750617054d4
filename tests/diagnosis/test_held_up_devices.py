"""What nobody finishes on devices whose ranks also wait for somebody who has not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.model import Flag, Source, State
from tests.diagnosis.builder import Job


def _rows_of_a_mesh(*, backend: str = "nccl", elsewhere: bool = True) -> Diagnosis:
    """Two rows, and all ranks in the default group; rank 3 has not come to its row's all-reduce.

    The other row has, and neither of its devices finishes it. ``elsewhere``: else it has come.
    """
    job = Job(4)
    rows = [job.group(0, 1, desc="row"), job.group(2, 3, desc="row")]
    for _ in range(3):
        for rank in range(4):
            job.op(rank, group=rows[rank // 2])
        job.all()
    for rank in (0, 1):
        job.op(rank, group=rows[0], done=False)
    for rank in (2, 3) if not elsewhere else (2,):
        job.op(rank, group=rows[1], done=not elsewhere)
    for rank in (0, 1, 2) if elsewhere else range(4):
        job.op(rank, done=False)
    job.signatures = [replace(s, backend=backend) for s in job.signatures]
    job.groups = [replace(group, backend=backend) for group in job.groups]
    return diagnose(job.trace())


def test_operation_beside_a_rank_that_did_not_come_is_no_finding_of_its_own() -> None:
    found = _rows_of_a_mesh()
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert len(found.findings) == 1
    assert set(found.findings[0].victims) == {0, 1, 2}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_whoever_is_named_comes_first(backend: str) -> None:
    assert _rows_of_a_mesh(backend=backend).culprits == (3,)


def test_nobody_is_named_where_only_a_device_stands() -> None:
    found = _rows_of_a_mesh(elsewhere=False)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, ())


def _on_devices(job: Job) -> Diagnosis:
    job.signatures = [replace(s, backend="nccl") for s in job.signatures]
    job.groups = [replace(group, backend="nccl") for group in job.groups]
    for row in job.rows:
        row["started_ns"] = row["created_ns"] + 500 if row["state"] else 0
    rings = tuple(Source(f"rank_{r}.ring", formats.RING, "3", r) for r in range(job.world))
    return diagnose(job.trace(sources=rings))


def test_receive_that_a_device_is_in_holds_up_what_follows() -> None:
    """Rank 2 leaves out a send of its step; nobody is seen to wait for a receive."""
    job = Job(4)
    for step in range(4):
        for rank in (1, 2, 3):
            for _ in range(1 if step == 3 and rank < 3 else 2):
                job.op(rank, "send", peer=rank - 1, flags=Flag.ASYNC)
                job.op(rank - 1, "recv", peer=rank, flags=Flag.ASYNC)
        if step < 3:
            job.all()
    for rank in (3, 2, 1, 0):
        if rank == 1:
            job.op(1, "recv", peer=2, done=False, flags=Flag.ASYNC)
            job.rows[-1]["state"] = State.STARTED
        if rank == 0:
            job.op(0, "recv", peer=1, done=False, flags=Flag.ASYNC)
            job.rows[-1]["state"] = State.STARTED
            job.op(1, "send", peer=0, done=False, flags=Flag.ASYNC)
        job.op(rank, done=False)
        if rank > 1:
            job.rows[-1]["state"] = State.STARTED
    found = _on_devices(job)
    assert found.verdict is Verdict.P2P_UNMATCHED
    assert 2 in found.culprits
    assert 0 not in found.culprits


def test_what_a_peer_has_finished_does_not_excuse_a_rank_that_has_not_come() -> None:
    """Rank 1 replays once more, and what it sends for that is taken for its part of the gather."""
    job = Job(4)
    replayed = job.group(0, 1, 2, 3, desc="default, replayed by CUDA graphs")
    for _ in range(4):
        job.all()
        job.all(group=replayed)
        job.all(group=replayed)
    job.op(1, group=replayed, done=False)
    job.op(0, "all_gather")
    for rank in (2, 3):
        job.op(rank, "all_gather", done=False)
    job.op(0, group=replayed, done=False)
    for row in job.rows[-5:]:
        row["state"] = max(row["state"], State.STARTED)
    assert _on_devices(job).culprits == (1,)
