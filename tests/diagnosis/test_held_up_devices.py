"""What nobody finishes on devices whose ranks also wait for somebody who has not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
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
