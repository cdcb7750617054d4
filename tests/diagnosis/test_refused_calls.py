"""Exceptions of torch's own comparison (``TORCH_DISTRIBUTED_DEBUG=DETAIL``) next to records."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame
from tests.diagnosis.builder import SECOND, START, Job
from tests.trace.logs import trace_of

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


def test_error_raised_by_all_names_the_rank_that_differs() -> None:
    found = diagnose(_job().trace())
    assert _blame(found) == ("shape_mismatch", (2,))
    first = found.findings[0]
    assert (first.seq, first.op) == (4, "all_reduce")
    assert first.sides[0].stack == LINE
    assert _blame(diagnose(_job(op="BROADCAST").trace())) == ("collective_mismatch", (2,))


def test_error_of_two_of_three_ranks_leaves_it_undecided() -> None:
    job = _job()
    job.lose(1)
    found = diagnose(job.trace())
    assert _blame(found) == ("shape_mismatch", (0, 2))
    assert found.confidence.value == "ambiguous"


def test_error_of_one_rank_alone_accuses_no_rank() -> None:
    job = _job()
    job.lose(0, 2)
    assert _blame(diagnose(job.trace())) == ("inconclusive", ())


SMALLER = {4: (0, 2), 5: (1, 2), 6: (2, 0), 7: (3, 2)}
"""Ranks 4 to 7 are places 0 to 3 of their group, and the messages give places."""


def _told(place: int, other: int) -> str:
    sides = ", but ".join(_print(p, 12 if p == 2 else 10, "ALLREDUCE") for p in (place, other))
    return f"Detected mismatch between collectives on ranks. {sides}"


def test_messages_of_a_smaller_group_use_group_ranks() -> None:
    """Its third member is rank 6; rank 2 is not involved."""
    job = Job(8)
    halves = [job.group(0, 1, 2, 3, desc="dp"), job.group(4, 5, 6, 7, desc="dp")]
    for _ in range(3):
        job.all()
        for half in halves:
            job.all(group=half)
    for rank, (place, other) in SMALLER.items():
        error = ExceptionFacts("RuntimeError", _told(place, other), LINE, at_ns=END + rank)
        job.rank(
            rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=END + SECOND)
        )
    found = diagnose(job.trace())
    assert _blame(found) == ("shape_mismatch", (6,))
    assert found.findings[0].group is not None
    assert found.findings[0].group.ranks == (4, 5, 6, 7)


def test_log_of_a_smaller_group_accuses_the_rank_that_raises_about_itself() -> None:
    lines = {r: f"[rank{r}]: RuntimeError: {_told(*places)}" for r, places in SMALLER.items()}
    found = diagnose(trace_of("world_size=8\n" + "\n".join(lines.values()) + "\n"))
    assert _blame(found) == ("shape_mismatch", (6,))
    alone = diagnose(trace_of(f"world_size=8\n{lines[4]}\n"))
    assert _blame(alone) == ("inconclusive", ())


def test_rank_equal_to_its_group_rank_does_not_identify_the_others() -> None:
    """Of ranks 0, 1, 5 and 7 the third is rank 5: that rank 0 is the first shows nothing about
    it."""
    told = {0: (0, 2), 1: (1, 2), 5: (2, 0), 7: (3, 2)}
    text = "".join(f"[rank{r}]: RuntimeError: {_told(*p)}\n" for r, p in told.items())
    assert _blame(diagnose(trace_of("world_size=8\n" + text))) == ("shape_mismatch", (5,))


def test_two_groups_diverging_at_one_time_are_reported_together() -> None:
    job = Job(8)
    halves = [job.group(0, 1, 2, 3, desc="dp"), job.group(4, 5, 6, 7, desc="dp")]
    for half in halves:
        job.all(group=half)
    for rank, (place, other) in SMALLER.items():
        error = ExceptionFacts("RuntimeError", _told(place, other), LINE, at_ns=END + rank)
        for member in (rank - 4, rank):
            end = ExitFacts("exception", 1, at_ns=END + SECOND)
            job.rank(member, alive=False, exception=error, exit=end)
    assert [f.culprits for f in diagnose(job.trace()).findings] == [(2, 6)]


def _not_passed(world: int = 4, *, issued: bool = False) -> Job:
    """The barrier before the operation has failed on all but rank 2, which is asleep."""
    job = Job(world)
    job.steps(3)
    for rank in range(world):
        if rank == 2:
            stop = ExitFacts("signal", signal=15, at_ns=END + 12 * SECOND)
            job.rank(rank, alive=False, exit=stop)
            continue
        if issued:
            job.seq[rank, 0] += 1  # Gloo counts it twice
            job.op(rank, "monitored_barrier", done=False, flags=Flag.RETIRED)
        text = "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 9000 ms"
        if rank:
            text = (
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
            )
        error = ExceptionFacts("RuntimeError", text, LINE, at_ns=END + 9 * SECOND)
        end = ExitFacts("exception", 1, at_ns=END + 10 * SECOND)
        job.rank(rank, alive=False, exception=error, exit=end)
    return job


def test_rank_absent_from_the_barrier_before_an_operation_is_missing() -> None:
    found = diagnose(_not_passed().trace(after_s=14))
    assert _blame(found) == ("missing_rank", (2,))
    first = found.findings[0]
    assert (first.seq, first.op, first.victims) == (4, "monitored_barrier", (0, 1, 3))
    assert first.sides[0].stack == LINE


def test_users_own_barrier_is_recorded_once() -> None:
    found = diagnose(_not_passed(issued=True).trace(after_s=14))
    assert _blame(found) == ("missing_rank", (2,))
    assert found.findings[0].seq == 4
