"""With timing on, the recorder notes which devices have started an operation and which have not."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Flag, State
from tests.diagnosis.builder import Job


def begin(job: Job) -> None:
    """The device has started the last operation."""
    row = job.rows[-1]
    row["started_ns"] = row["created_ns"] + 500
    row["state"] = max(row["state"], State.STARTED)


def timed(job: Job, count: int, *, without: int | None = None) -> None:
    """Finished collectives of all ranks with recorded starts, except on ``without``."""
    for _ in range(count):
        for rank in range(job.world):
            job.op(rank)
            if rank != without:
                begin(job)


def issued_by_all(job: Job, *, idle: tuple[int, ...], size: int = 16) -> None:
    """A collective that nobody finishes and that has not started on ``idle``."""
    for rank in range(job.world):
        job.op(rank, size=(size,), done=False)
        if rank not in idle:
            begin(job)


def judged(job: Job) -> tuple[Verdict, tuple[int, ...], Confidence]:
    found = diagnose(job.trace())
    return found.verdict, found.culprits, found.confidence


def test_device_that_has_not_begun_is_named() -> None:
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=(2,))
    assert judged(job) == (Verdict.STUCK_COLLECTIVE, (2,), Confidence.LIKELY)
    (finding,) = diagnose(job.trace()).findings
    assert finding.victims == (0, 1, 3)
    assert "device never began" in finding.summary
    assert "the device of rank 2" in finding.fix
    assert "train.py:88" in finding.fix


def test_rank_without_timing_hides_no_other() -> None:
    job = Job(4)
    timed(job, 5, without=3)
    issued_by_all(job, idle=(2, 3))
    assert judged(job) == (Verdict.STUCK_COLLECTIVE, (2,), Confidence.LIKELY)


def test_operation_begun_on_all_devices_accuses_no_rank() -> None:
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=())
    assert judged(job)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_lost_rank_does_not_keep_a_device_from_beginning() -> None:
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=(2,))
    job.lose(1)
    assert judged(job) == (Verdict.STUCK_COLLECTIVE, (2,), Confidence.LIKELY)


def test_lost_rank_is_named_if_all_other_devices_have_begun() -> None:
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=())
    job.lose(1)
    assert judged(job) == (Verdict.RANK_LOST, (1,), Confidence.LIKELY)


def test_device_is_not_named_while_a_rank_on_record_is_missing() -> None:
    job = Job(4)
    timed(job, 5)
    for rank in (0, 2, 3):
        job.op(rank, size=(16,), done=False)
        if rank != 2:
            begin(job)
    assert judged(job)[:2] == (Verdict.MISSING_RANK, (1,))


def test_majority_of_idle_devices_accuses_no_rank() -> None:
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=(1, 2, 3))
    assert judged(job)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_rank_without_timing_is_not_idle() -> None:
    job = Job(4)
    timed(job, 5, without=2)
    issued_by_all(job, idle=(2,))
    assert judged(job)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_older_operation_of_the_idle_rank_comes_first() -> None:
    job = Job(4)
    timed(job, 5)
    job.op(2, "send", peer=3, done=False)
    issued_by_all(job, idle=(2,))
    assert judged(job) != (Verdict.STUCK_COLLECTIVE, (2,), Confidence.LIKELY)


def test_batch_that_has_not_begun_blocks_its_partner() -> None:
    job = Job(4)
    timed(job, 5)
    for rank, peer in ((0, 1), (1, 0)):
        for op in ("send", "recv"):
            job.op(rank, op, peer=peer, done=False, flags=Flag.COALESCED_MEMBER)
        key = (rank, 0)
        job.p2p[key] = 1
        for row in job.rows[-2:]:
            row["p2p_seq"] = 1
        job.op(rank, "coalesced", size=(), done=False, flags=Flag.COALESCED_BATCH)
        job.rows[-1] |= {"collective_seq": 5, "p2p_seq": 1}
        job.seq[key] = 5
        if rank == 0:
            begin(job)
    assert judged(job) == (Verdict.STUCK_COLLECTIVE, (1,), Confidence.LIKELY)


def test_waiter_without_a_record_of_the_operation() -> None:
    """Its ring has lost the record; the counter says that it has issued the operation."""
    job = Job(4)
    timed(job, 5)
    issued_by_all(job, idle=(2,))
    job.rows = [row for row in job.rows if (row["rank"], row["collective_seq"]) != (0, 6)]
    job.rank(0, dropped=1)
    job.members = [{"rank": rank, "group": 0, "enqueued": 6, "completed": 5} for rank in range(4)]
    assert judged(job)[:2] == (Verdict.STUCK_COLLECTIVE, (2,))


def test_device_of_which_nothing_more_is_told_is_named_and_explains_what_comes_later() -> None:
    """It had finished all before, so that NCCL's proxies have said nothing since."""
    job = Job(4)
    pair = job.group(2, 3)
    timed(job, 5)
    for rank in range(4):
        silent = Flag.UNOBSERVED if rank == 2 else Flag(0)
        job.op(rank, size=(16,), done=False, flags=silent)
        if rank != 2:
            begin(job)
    job.op(2, group=pair, done=False, flags=Flag.UNOBSERVED)
    job.op(3, group=pair, done=False)
    begin(job)
    assert judged(job) == (Verdict.STUCK_COLLECTIVE, (2,), Confidence.LIKELY)
    assert len(diagnose(job.trace()).findings) == 1
