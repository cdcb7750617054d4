"""Partial evidence: one ring of several, half of the dumps, or what others say about a lost
rank."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    Source,
    ThreadStack,
)
from tests.diagnosis.builder import SECOND, START, Job, judged, stack_of
from tests.trace.logs import timeout, trace_of

END = START + 60 * SECOND
OPENING = (Frame("save", "/home/me/train.py", 13), Frame("<module>", "/home/me/train.py", 18))


def _blame(found: Diagnosis) -> tuple[str, tuple[int, ...]]:
    return found.verdict.value, found.culprits


def _ended_unseen(job: Job, *ranks: int) -> None:
    for rank in ranks:
        job.rank(
            rank, alive=False, exit=ExitFacts("unknown", at_ns=END), heartbeat_ns=END, pid=rank + 1
        )


def test_single_ring_does_not_show_a_crash() -> None:
    job = Job(3)
    job.steps(12)
    _ended_unseen(job, 0)
    job.rank(0, threads=(ThreadStack("MainThread", True, OPENING, END),))
    job.lose(1, 2)
    found = diagnose(job.trace(after_s=90))
    assert _blame(found) == ("inconclusive", ())
    assert "Only rank 0 left anything" in found.summary
    assert any("train.py:13 in save" in line for line in found.findings[0].evidence)


def test_single_ring_with_observed_exit_has_crashed() -> None:
    job = Job(3)
    job.steps(12)
    job.rank(0, alive=False, exit=ExitFacts("signal", signal=11, at_ns=END))
    job.lose(1, 2)
    found = diagnose(job.trace(after_s=90))
    assert _blame(found) == ("rank_crashed", (0,))


def test_half_of_the_dumps_missing_accuses_no_rank_waited_for() -> None:
    job = Job(4)
    pair = job.group(0, 1, desc="tp")
    job.group(2, 3, desc="tp")
    job.steps(5)
    for _ in range(3):
        job.all(group=pair)
    job.op(0, group=pair, done=False)
    job.lose(1, 3)
    found = diagnose(job.trace())
    assert _blame(found) == ("inconclusive", ())
    assert any("2 of 4 ranks left no record" in line for line in found.findings[0].unknowns)


CHECKPOINT = (
    "CheckpointException ranks:dict_keys([1])\n"
    "Traceback (most recent call last): (RANK 1)\n"
    '  File "/home/me/writer.py", line 9, in write_data\n'
    "OSError: [Errno 28] No space left on device"
)


def test_other_ranks_show_which_lost_rank_failed() -> None:
    job = Job(3)
    job.steps(5)
    for rank in (0, 2):
        error = ExceptionFacts("CheckpointException", CHECKPOINT, OPENING, at_ns=END)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=END))
    job.lose(1)
    found = diagnose(job.trace())
    assert _blame(found) == ("rank_crashed", (1,))
    assert found.confidence is Confidence.LIKELY
    assert "OSError: [Errno 28]" in found.summary
    assert "writer.py:9" in found.findings[0].fix


def test_log_repeats_one_ranks_traceback_for_all_ranks() -> None:
    def said(rank: int) -> str:
        lines = [
            "Traceback (most recent call last):",
            '  File "/home/me/train.py", line 16, in <module>',
            "    dcp.save(state)",
            "torch.distributed.checkpoint.api.CheckpointException: " + CHECKPOINT,
        ]
        return "".join(f"[rank{rank}]: {line}\n" for line in "\n".join(lines).splitlines())

    for order in ((0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2)):
        found = diagnose(trace_of("".join(said(rank) for rank in order)))
        assert _blame(found) == ("rank_crashed", (1,)), order
        assert "OSError" in found.summary, order


def test_export_shows_what_its_ring_could_not_observe() -> None:
    """Its counter stops before an operation with unobservable completion; the record shows more."""
    job = Job(3)
    job.steps(8)
    for rank in (0, 1, 2):
        job.op(rank, "reduce_scatter", done=False, flags=Flag.UNOBSERVED)
    for rank in (0, 1):
        job.op(rank, "reduce_scatter", done=False, flags=Flag.UNOBSERVED)
    for rank in range(3):
        last = 10 if rank < 2 else 9
        job.members.append({"rank": rank, "group": 0, "enqueued": last, "completed": last - 1})
        job.rank(rank, heartbeat_ns=START)
    job.rank(2, alive=False, exit=ExitFacts("signal", signal=9, at_ns=START + SECOND // 2))
    sources = tuple(Source(f"{r}", "flight-recorder-pickle", rank=r) for r in range(3))
    found = diagnose(job.trace(after_s=1, sources=sources))
    assert _blame(found) == ("rank_crashed", (2,))
    assert found.findings[0].op == "reduce_scatter"
    assert found.findings[0].seq == 10


def test_rank_silent_in_a_truncated_log_may_have_spoken_later() -> None:
    def gives_up(rank: int) -> str:
        head = f"[rank{rank}]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp"
        return (
            f"{timeout(rank, 5)}{head}:774] Stack trace of the failed collective: \n"
            "#0 all_reduce from /app/train.py:12\n#1 <module> from /app/train.py:40\n\n"
            f"{head}:2714] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] First PG on this rank to "
            "signal dumping.\n"
        )

    text = "world_size=4\n[rank3]: UserWarning: x\n" + "".join(map(gives_up, range(3)))
    assert _blame(diagnose(trace_of(text))) == ("missing_rank", (3,))
    cut = text[: text.rindex("#1 <module>")]
    assert _blame(diagnose(trace_of(cut))) == ("inconclusive", ())


def test_accused_rank_that_records_a_part_of_its_operations_is_at_most_likely_missing() -> None:
    job = Job(4)
    job.steps(4)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    job.rank(1, unobservable=("a CUDA graph",))
    assert judged(job.trace()) == (Verdict.MISSING_RANK, (1,), Confidence.LIKELY)


def test_only_the_rank_with_a_cut_dump_may_wait_in_a_send_that_is_not_on_record() -> None:
    """Its counters show how many collectives it issued, not its sends and receives."""
    job = Job(6)
    job.op(3, "send", peer=4)
    job.op(4, "recv", peer=3)
    job.steps(5)
    for rank in (0, 3, 4, 5):
        job.op(rank, done=False)
    job.rows = [row for row in job.rows if row["rank"] != 2]
    job.members.append({"rank": 2, "group": 0, "enqueued": 5, "completed": 5})
    job.rank(2, newest_lost=True)
    found = diagnose(job.trace())
    assert _blame(found) == ("missing_rank", (1,))
    assert any("what rank 2 issued last" in unknown for unknown in found.findings[0].unknowns)


@pytest.mark.parametrize(
    ("world", "waiting", "verdict"), [(3, 2, Verdict.MISSING_RANK), (8, 2, Verdict.INCONCLUSIVE)]
)
def test_many_ranks_whose_dumps_list_nothing_are_not_accused_by_a_few(
    world: int, waiting: int, verdict: Verdict
) -> None:
    job = Job(world)
    for rank in range(waiting):
        job.op(rank, done=False)
    for rank in range(world):
        job.rank(rank, only_active=True, oldest_record_id=9)
    found = diagnose(job.trace())
    assert found.verdict is verdict
    assert found.confidence is not Confidence.CERTAIN


def test_cut_dump_of_a_rank_that_arrived_leaves_the_answer_certain() -> None:
    job = Job(4)
    job.steps(5)
    for rank in (0, 3):
        job.op(rank, done=False)
    job.rows = [row for row in job.rows if row["rank"] != 2]
    job.members.append({"rank": 2, "group": 0, "enqueued": 6, "completed": 5})
    job.rank(2, newest_lost=True)
    job.rank(1, threads=stack_of("load_batch"))
    assert judged(job.trace()) == (Verdict.MISSING_RANK, (1,), Confidence.CERTAIN)


@pytest.mark.parametrize("recorded", [True, False], ids=["whole", "unfinished only"])
def test_cycle_through_a_collective_that_others_may_have_finished_is_not_certain(
    recorded: bool,
) -> None:
    """If they have, the device of the last rank is stuck in it, and the others wait for it."""
    job = Job(4)
    pair = job.group(2, 3, desc="pair")
    job.op(3, done=False)
    job.op(2, group=pair, done=False)
    job.op(1, "recv", peer=3, done=False)
    job.op(0, "recv", peer=1, done=False)
    for rank in range(4) if not recorded else ():
        job.rank(rank, only_active=True, oldest_record_id=9)
    verdict, culprits, confidence = judged(job.trace())
    assert (verdict, culprits) == (Verdict.DEADLOCK_CYCLE, (3,))
    assert (confidence is Confidence.CERTAIN) is recorded
