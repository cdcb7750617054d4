"""Exceptions of torch's own comparison (``TORCH_DISTRIBUTED_DEBUG=DETAIL``) beside records."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame
from tests.diagnosis.builder import SECOND, START, Job

LINE = (Frame("step", "/home/me/train.py", 6),)
END = START + SECOND


def _print(rank: int, shape: int, op: str) -> str:
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType={op}, "
        f"TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float "
        "(default), device=cpu, layout=Strided (default)))"
    )


def _job(*, op: str = "ALLREDUCE", shape: int = 12) -> Job:
    """Rank 2 differs from ranks 0 and 1, and all raise one after the other."""
    job = Job(3)
    job.steps(3)
    for rank, other in ((0, 2), (1, 2), (2, 0)):
        sides = ", but ".join(
            _print(r, shape if r == 2 else 10, op if r == 2 else "ALLREDUCE") for r in (rank, other)
        )
        text = f"Detected mismatch between collectives on ranks. {sides}"
        error = ExceptionFacts("RuntimeError", text, LINE, at_ns=END + rank * 1_000_000)
        job.rank(
            rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=END + SECOND)
        )
    return job


def _blame(found: Diagnosis) -> tuple[str, tuple[int, ...]]:
    return found.verdict.value, found.culprits


def test_what_all_raise_names_the_one_that_differs() -> None:
    found = diagnose(_job().trace())
    assert _blame(found) == ("shape_mismatch", (2,))
    first = found.findings[0]
    assert (first.seq, first.op) == (4, "all_reduce")
    assert first.sides[0].stack == LINE
    assert _blame(diagnose(_job(op="BROADCAST").trace())) == ("collective_mismatch", (2,))


def test_two_of_the_three_leave_it_open_which_of_them_is_right() -> None:
    job = _job()
    job.lose(1)
    found = diagnose(job.trace())
    assert _blame(found) == ("shape_mismatch", (0, 2))
    assert found.confidence.value == "ambiguous"


def test_one_of_them_alone_accuses_nobody() -> None:
    job = _job()
    job.lose(0, 2)
    assert _blame(diagnose(job.trace())) == ("inconclusive", ())
