"""Device sends and receives with unobserved completion: one missing half holds everybody up."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, Flag, Source, Trace
from tests.diagnosis.builder import START, Job

UNSEEN = Flag.UNOBSERVED | Flag.ASYNC


def pipeline(*, sends: int = 2, receives: int = 2) -> Job:
    """Two of four stages pass micro-batches on; then all ranks reduce and wait for the device."""
    job = Job(4, live=True)
    job.all(done=False, flags=UNSEEN)
    for _ in range(sends):
        job.op(0, "send", peer=1, done=False, flags=UNSEEN, line=20)
    for _ in range(receives):
        job.op(1, "recv", peer=0, done=False, flags=UNSEEN, line=30)
    job.all(done=False, flags=UNSEEN)
    return job


def on_nccl(job: Job) -> Trace:
    """The job as rings of NCCL ranks show it."""
    trace = job.trace()
    return replace(
        trace,
        signatures=tuple(replace(s, backend="nccl") for s in trace.signatures),
        sources=tuple(Source(f"rank_{r}.ring", formats.RING, rank=r) for r in trace.ranks),
    )


def judge(job: Job) -> Diagnosis:
    return diagnose(on_nccl(job))


def test_receive_without_its_send_names_the_sender() -> None:
    diagnosis = judge(pipeline(sends=1))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.P2P_UNMATCHED, (0,))
    assert diagnosis.confidence is Confidence.LIKELY
    assert "Rank 0 never issued its send for recv 1←0" in diagnosis.summary


def test_send_without_its_receive_names_the_receiver() -> None:
    diagnosis = judge(pipeline(receives=1))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.P2P_UNMATCHED, (1,))


def test_complete_pairs_accuse_no_rank_and_stay_unfinished() -> None:
    diagnosis = judge(pipeline())
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.QUIESCENT, ())
    assert "Every rank issued the same last collective" in diagnosis.summary


def test_rank_with_progress_waits_for_none_of_its_p2p_operations() -> None:
    """Rank 1 has sent something that no rank receives, and has issued a collective just now."""
    trace = on_nccl(pipeline(sends=1))
    records = trace.records.copy()
    newest = records[records["rank"] == 1]["created_ns"].max()
    records["created_ns"][records["created_ns"] == newest] = trace.observed_ns - 10**9
    assert not diagnose(replace(trace, records=records)).culprits


def test_rank_behind_an_unpaired_operation_is_not_missing() -> None:
    """Rank 1 waits for the device, which is blocked by its receive: it has not reached the
    all-reduce."""
    job = Job(4, live=True)
    job.all(done=False, flags=UNSEEN)
    job.op(1, "recv", peer=0, done=False, flags=Flag.UNOBSERVED | Flag.BLOCKING, line=30)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    diagnosis = judge(job)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.P2P_UNMATCHED, (0,))
    assert diagnosis.confidence is Confidence.LIKELY


def test_ring_without_its_first_records_is_not_counted() -> None:
    job = pipeline(sends=1)
    job.rank(0, oldest_record_id=40)
    assert judge(job).verdict is Verdict.QUIESCENT


def test_any_source_receives_are_not_counted() -> None:
    job = pipeline(sends=1)
    job.op(3, "recv", peer=-1, done=False, flags=UNSEEN)
    assert judge(job).verdict is Verdict.QUIESCENT


def test_operations_after_the_watchdogs_aborted_do_not_count() -> None:
    """They abort the communicators before the process: rank 0 returns and sends after all."""
    job = Job(4)
    job.all(done=False, flags=UNSEEN)
    job.op(1, "recv", peer=0, done=False, flags=Flag.UNOBSERVED | Flag.BLOCKING, line=30)
    for rank in (0, 2, 3):
        job.op(rank, done=False, flags=UNSEEN)
    job.op(0, "send", peer=1, done=False, flags=UNSEEN, line=20, at=30.1)
    for rank in range(4):
        ended = ExitFacts(kind="signal", signal=6, at_ns=START + 30_200_000_000)
        job.rank(rank, exit=ended, host="node0")
    trace = on_nccl(job)
    trace.records["timeout_ms"] = 30_000
    diagnosis = diagnose(trace)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.P2P_UNMATCHED, (0,))


def test_batch_is_blocked_by_its_unpaired_operation() -> None:
    """A ring of four in which rank 1 makes a hop fewer: ranks 0 and 2 are blocked on their devices,
    and not missing from what ranks 1 and 3 reached."""
    job = Job(4, live=True)
    job.all(done=False, flags=UNSEEN)
    member, batch = UNSEEN | Flag.COALESCED_MEMBER, UNSEEN | Flag.P2P | Flag.COALESCED_BATCH
    for rank in range(4):
        for hop in range(2 if rank == 1 else 3):
            job.op(rank, "send", peer=(rank + 1) % 4, done=False, flags=member, line=20)
            job.op(rank, "recv", peer=(rank - 1) % 4, done=False, flags=member, line=21)
            job.op(rank, "coalesced", done=False, flags=batch, line=22)
            job.seq[rank, 0] = 1  # what stands for a batch of halves is no collective
            for row in job.rows[-3:]:
                row["collective_seq"], row["p2p_seq"] = 1, hop + 1
    for rank in (1, 3):
        job.op(rank, line=30, done=False, flags=UNSEEN)
    diagnosis = judge(job)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.P2P_UNMATCHED, (1,))
    assert diagnosis.confidence is not Confidence.CERTAIN


def test_rank_possibly_blocked_in_its_last_p2p_operation_is_not_certain() -> None:
    """Rank 1 waits for rank 0, and reaches its send to rank 2 only afterwards."""
    job = Job(4, live=True)
    job.all(done=False, flags=UNSEEN)
    job.op(1, "recv", peer=0, done=False, flags=UNSEEN, line=20)
    job.op(1, "send", peer=2, done=False, flags=UNSEEN, line=21)
    job.op(2, "recv", peer=1, done=False, flags=UNSEEN, line=22)
    for rank in (0, 3):
        job.op(rank, line=30, done=False, flags=UNSEEN)
    assert judge(job).confidence is not Confidence.CERTAIN
