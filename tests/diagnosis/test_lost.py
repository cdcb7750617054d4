"""A victim's dump is missing: which of the other ranks explains the waiting nevertheless?"""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import ExitFacts, Frame, Phase, ThreadStack

from .builder import SECOND, START, Job

Blame = tuple[Verdict, tuple[int, ...], Confidence]


def mesh(steps: int = 4) -> tuple[Job, list[int], list[int]]:
    """Four tensor pairs, four ranks to each of two data groups; steps of both."""
    job = Job(8)
    tensor = [job.group(r, r + 1, desc="tensor") for r in range(0, 8, 2)]
    data = [job.group(*range(i, 8, 2), desc="data") for i in (0, 1)]
    for _ in range(steps):
        for group in tensor:
            job.all(group=group, line=10)
            job.all("broadcast", group=group, line=15, root=job.groups[group].ranks[0])
        for group in data:
            job.all(group=group, line=20)
    return job, tensor, data


def blame(diagnosis: Diagnosis) -> Blame:
    return diagnosis.verdict, diagnosis.culprits, diagnosis.confidence


def everybody_but(job: Job, tensor: list[int], data: list[int], *pair: int) -> None:
    """The next step of all but one pair; its data groups wait."""
    for group in tensor:
        if job.groups[group].ranks != pair:
            job.all(group=group, line=10)
            job.all("broadcast", group=group, line=15, root=job.groups[group].ranks[0])
    for group in data:
        for rank in job.groups[group].ranks:
            if rank not in pair:
                job.op(rank, group=group, line=20, done=False)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"op": "reduce", "root": 3}, (Verdict.COLLECTIVE_MISMATCH, (3,), Confidence.LIKELY)),
        ({"dtype": "Half"}, (Verdict.COLLECTIVE_MISMATCH, (3,), Confidence.LIKELY)),
        ({}, (Verdict.RANK_LOST, (2,), Confidence.LIKELY)),
    ],
)
def test_operation_not_issued_there_by_siblings_is_named(
    other: dict[str, object], expected: Blame
) -> None:
    job, tensor, data = mesh()
    everybody_but(job, tensor, data, 2, 3)
    job.op(3, group=tensor[1], line=11, done=False, **other)  # type: ignore[arg-type]
    job.lose(2)
    assert blame(diagnose(job.trace())) == expected


def test_rank_that_skipped_a_collective_and_waits_for_the_lost_one_in_the_next() -> None:
    """Rank 3 skips the data group; its counterparts never reached another tensor step first."""
    job, tensor, data = mesh()
    for group in tensor:
        job.all(group=group, line=10)
        job.all("broadcast", group=group, line=15, root=job.groups[group].ranks[0])
    job.all(group=data[0], line=20)
    for rank in (1, 5, 7):
        job.op(rank, group=data[1], line=20, done=False)
    for rank in (0, 4, 6, 3):
        job.op(rank, group=tensor[rank // 2], line=10, done=False)
    job.lose(2)
    found = diagnose(job.trace())
    assert found.culprits == (3,)
    assert found.confidence is Confidence.LIKELY


def test_cycle_without_the_lost_rank_is_reported() -> None:
    """Rank 1 waits for rank 2, and rank 2 with all others for rank 1: rank 0 is irrelevant."""
    job = Job(4)
    ring = job.group(0, 1, 2, desc="ring")
    for _ in range(4):
        job.all(group=ring)
        job.all(line=20)
    for rank in (2, 3):
        job.op(rank, line=20, done=False)
    job.op(1, "recv", group=ring, peer=2, done=False)
    job.op(1, "recv", group=ring, peer=0, done=False)
    job.lose(0)
    found = diagnose(job.trace())
    assert 0 not in found.culprits
    assert found.verdict in (Verdict.DEADLOCK_CYCLE, Verdict.P2P_UNMATCHED)
    assert all(f.verdict is not Verdict.RANK_LOST for f in found.findings)


def test_recorded_fault_is_reported_and_the_lost_rank_is_no_second_cause() -> None:
    job, tensor, data = mesh()
    for group in (tensor[1], tensor[2]):
        job.all(group=group, line=10)
    job.op(6, group=tensor[3], line=10, done=False)
    job.op(7, "all_gather", group=tensor[3], line=11, done=False)
    for rank in (3, 5):
        job.op(rank, group=data[1], line=20, done=False)
    for rank in (2, 4):
        job.op(rank, group=data[0], line=20, done=False)
    job.op(1, group=tensor[0], line=10, done=False)  # waits for the lost one before all others
    job.lose(0)
    found = diagnose(job.trace())
    assert [f.verdict for f in found.findings] == [Verdict.COLLECTIVE_MISMATCH]
    assert found.culprits == (7,)
    assert {1, 0} <= set(found.findings[0].victims)


def test_rank_waited_for_earlier_is_not_blocked_by_a_later_operation() -> None:
    job, tensor, _ = mesh()
    for group in (tensor[0], tensor[3]):
        job.all(group=group, line=10)
    job.op(3, group=tensor[1], line=10, done=False)  # waits for rank 2
    job.op(4, group=tensor[2], line=10, at=1_000.0, done=False)
    job.op(5, "all_gather", group=tensor[2], line=11, at=1_000.0, done=False)
    job.lose(2)
    found = diagnose(job.trace())
    assert [f.culprits for f in found.findings] == [(2,), (5,)]


def moving(lost: tuple[int, ...], *, behind: tuple[int, ...] = ()) -> Diagnosis:
    """Dumps from a second after the last step: all but ``behind`` wait in the next one."""
    job, tensor, _ = mesh()
    for group in tensor:
        for rank in job.groups[group].ranks:
            if rank not in behind:
                job.op(rank, group=group, line=10, done=False)
    for rank in range(8):
        job.rank(rank, observed_ns=START + int((job.now + 1) * SECOND))
    job.lose(*lost)
    return diagnose(job.trace(after_s=1))


def test_moving_job_is_healthy_although_a_dump_is_missing() -> None:
    found = moving((3,), behind=(0, 5, 6))
    assert blame(found) == (Verdict.HEALTHY, (), Confidence.LIKELY)
    assert any("rank 3 left no record" in note for note in found.notes)


def test_half_a_job_is_never_healthy() -> None:
    assert moving((1, 3, 4, 7), behind=(0, 5, 6)).verdict is Verdict.INCONCLUSIVE


def test_rank_with_the_lost_rank_as_partner_is_no_second_cause() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, done=False)
        job.rank(rank, observed_ns=START + int((job.now + 1) * SECOND))
    job.lose(2)
    assert blame(diagnose(job.trace(after_s=1))) == (
        Verdict.RANK_LOST,
        (2,),
        Confidence.LIKELY,
    )


IN_CODE = (Frame("load", "/job/data.py", 6), Frame("main", "/job/train.py", 3))
IN_RECV = (Frame("recv", "/site-packages/torch/distributed/distributed_c10d.py", 2500),)
KILLED = ExitFacts("signal", signal=15, at_ns=START + 200 * SECOND)


def pipeline(stack: tuple[Frame, ...]) -> Job:
    """Stages 0 to 2; 2 waits for 1, of which nothing is left, and 0 is at ``stack``."""
    job = Job(3)
    job.steps(5)
    job.op(2, "recv", peer=1, done=False)
    for rank in range(3):
        job.rank(rank, alive=False, exit=KILLED)
    job.rank(0, threads=(ThreadStack("MainThread", True, stack, START + 100 * SECOND),))
    job.lose(1)
    return job


def test_rank_in_its_own_code_is_named_beside_the_lost_rank() -> None:
    found = diagnose(pipeline(IN_CODE).trace(after_s=200))
    assert blame(found) == (Verdict.MISSING_RANK, (0, 1), Confidence.AMBIGUOUS)
    assert "Rank 0 stood at data.py:6 in load" in found.summary


def test_rank_in_communication_is_not_named_beside_the_lost_rank() -> None:
    found = diagnose(pipeline(IN_RECV).trace(after_s=200))
    assert blame(found) == (Verdict.RANK_LOST, (1,), Confidence.LIKELY)


def test_rank_with_new_operations_is_not_named_beside_the_lost_rank() -> None:
    job = pipeline(IN_CODE)
    job.now += 40.0
    job.op(0, "send", peer=2, line=9)
    assert diagnose(job.trace(after_s=20)).culprits != (0, 1)


def ring(partner: int, *, usual: tuple[int, ...] = (3,)) -> Diagnosis:
    """Rank 2 has sent to ``usual`` from one line, and then to ``partner``, which left nothing."""
    job = Job(4)
    job.steps(2)
    for step in range(6):
        to = usual[step % len(usual)]
        job.op(2, "send", peer=to, line=9)
        job.op(to, "recv", peer=2, line=10)
    job.op(2, "send", peer=partner, line=9, done=False)
    job.op(3, "recv", peer=2, line=10, done=False)
    job.lose(partner)
    return diagnose(job.trace())


def test_line_with_varying_partners_proves_nothing() -> None:
    assert ring(0, usual=(1, 3)).verdict is Verdict.RANK_LOST


def sizes(*, usual: tuple[int, ...], now: int) -> Diagnosis:
    """Rank 1 sends to rank 2, which left nothing, as always but for the size."""
    job = Job(4)
    job.steps(2)
    for size in usual:
        job.op(1, "send", peer=2, size=(size,), line=9)
        job.op(2, "recv", peer=1, size=(size,), line=10)
        job.all()
    job.op(1, "send", peer=2, size=(now,), line=9, done=False)
    for rank in (0, 3):
        job.op(rank, done=False)
    job.lose(2)
    return diagnose(job.trace())


@pytest.mark.parametrize("usual", [(64, 128, 64, 96), (64, 64)])
def test_varying_sizes_prove_nothing(usual: tuple[int, ...]) -> None:
    assert sizes(usual=usual, now=512).verdict is Verdict.RANK_LOST


def three_groups(*, lost: int) -> Diagnosis:
    """Three ranks share three groups of two; rank 0 comes to the last of its two first."""
    job = Job(3)
    a, b, c = job.group(0, 1), job.group(1, 2), job.group(0, 2)
    for _ in range(4):
        for group, line in ((a, 10), (b, 11), (c, 12)):
            job.all(group=group, line=line)
    job.op(0, group=c, line=12, done=False)
    job.op(1, group=a, line=10, done=False)
    job.op(2, group=b, line=11, done=False)
    job.lose(lost)
    return diagnose(job.trace())


@pytest.mark.parametrize("lost", [1, 2])
def test_rank_arriving_by_a_new_path_is_named_beside_the_lost_rank(lost: int) -> None:
    found = three_groups(lost=lost)
    assert blame(found) == (Verdict.COLLECTIVE_MISMATCH, (0, lost), Confidence.AMBIGUOUS)
    assert "Rank 0 issued all_reduce" in found.summary


def test_lost_rank_is_accused_alone_if_all_arrived_as_always() -> None:
    assert blame(three_groups(lost=0)) == (Verdict.RANK_LOST, (0,), Confidence.LIKELY)


def crossed(swapped: tuple[int, ...], *, lost: int) -> Diagnosis:
    """Four ranks in a mesh of two by two; some come to their two groups in the other order."""
    job = Job(4)
    rows = [job.group(0, 1, desc="shard"), job.group(2, 3, desc="shard")]
    columns = [job.group(0, 2, desc="replicate"), job.group(1, 3, desc="replicate")]
    for _ in range(4):
        for group in rows:
            job.all("reduce_scatter", group=group, line=10)
        for group in columns:
            job.all(group=group, line=11)
    for rank in range(4):
        if rank in swapped:
            job.op(rank, group=columns[rank % 2], line=20, done=False)
        else:
            job.op(rank, "reduce_scatter", group=rows[rank // 2], line=10, done=False)
    job.lose(lost)
    return diagnose(job.trace())


@pytest.mark.parametrize("lost", range(4))
def test_no_counterpart_that_did_as_ever_is_named(lost: int) -> None:
    assert set(crossed((0, 3), lost=lost).culprits) <= {0, 3}


def test_rank_that_exited_after_fewer_operations_precedes_the_lost_rank() -> None:
    job, tensor, data = mesh()
    for group in tensor:
        job.all(group=group, line=10)
        for rank in job.groups[group].ranks:
            if rank != 2:
                waits = rank == 3
                job.op(rank, "broadcast", group=group, line=15, root=rank & ~1, done=not waits)
    job.all(group=data[0], line=20)
    for rank in (1, 5, 7):
        job.op(rank, group=data[1], line=20, done=False)
    for rank in (0, 2, 4, 6):
        at_ns = START + int((job.now + 0.1) * SECOND)
        job.rank(rank, alive=False, finalized=True, exit=ExitFacts("clean", 0, at_ns=at_ns))
    job.lose(3)
    assert blame(diagnose(job.trace())) == (Verdict.RANK_EXITED, (2,), Confidence.LIKELY)


def test_stage_with_more_operations_in_every_step_has_not_deviated() -> None:
    """Its last stage also reduces the loss, so its counts move away from all others."""
    job = Job(8)
    pairs = [job.group(r, r + 1, desc="DATA") for r in range(0, 8, 2)]
    for _ in range(6):
        for pair in pairs:
            job.all(group=pair, line=10)
        job.all(line=20, size=(1,))
        for pair in pairs[2:]:
            job.all(group=pair, line=30, size=(1,))
    for rank in range(7):
        job.op(rank, group=pairs[rank // 2], line=10, done=rank < 6)
        if rank < 6:
            job.op(rank, line=20, size=(1,), done=False)
    job.lose(7)
    assert blame(diagnose(job.trace())) == (Verdict.RANK_LOST, (7,), Confidence.LIKELY)


@pytest.mark.parametrize("live", [True, False])
def test_rank_that_has_not_come_to_the_first_meeting_may_run(live: bool) -> None:
    job = Job(3, live=live)
    for rank in (0, 1):
        job.rank(rank, phases=(Phase("init_process_group", START, ""),), declared=True)
    job.lose(2)
    found = diagnose(job.trace()).findings[0]
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (2,))
    assert ("py-spy dump" in found.fix) is live
