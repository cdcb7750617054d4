"""What is new to a rank is no mistake if its counterpart in a sibling group did it as well."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, Source

from .builder import SECOND, START, Job


class Mesh:
    """Two tensor groups of two ranks, of two replicas each: five steps, after which a norm is due.

    Nobody has ever computed the norm, over a model's ranks, before. ``norm_op`` is its operation.
    """

    def __init__(self, norm_op: str = "all_reduce") -> None:
        self.job, self.norm_op = Job(4), norm_op
        pairs = ((0, 1), (2, 3))
        self.tensor = [self.job.group(*pair, desc="TENSOR") for pair in pairs]
        self.data = [self.job.group(r, r + 2, desc="DATA") for r in (0, 1)]
        self.model = [self.job.group(*pair, desc="MODEL") for pair in pairs]
        for _ in range(5):
            for group in self.tensor:
                self.job.all(group=group, line=10)
            for group in self.data:
                self.job.all(group=group, line=20)

    def norm(self, rank: int, *, done: bool) -> None:
        group, root = rank // 2, rank // 2 * 2 + 1 if self.norm_op == "reduce" else -1
        op, model = self.norm_op, self.model[group]
        self.job.op(rank, op, group=model, size=(1,), root=root, line=30, done=done)

    def forward(self, rank: int, *, done: bool) -> None:
        self.job.op(rank, group=self.tensor[rank // 2], line=10, done=done)

    def gradients(self, rank: int, *, size: int = 16, line: int = 20) -> None:
        self.job.op(rank, group=self.data[rank % 2], size=(size,), line=line, done=False)

    def without(self, lost: int) -> Diagnosis:
        self.job.lose(lost)
        return diagnose(self.job.trace())


def norm_left_out(norm_op: str = "all_reduce") -> Mesh:
    """Rank 1 leaves its first norm out: rank 0 is alone there, and rank 2 then waits for it."""
    mesh = Mesh(norm_op)
    mesh.norm(0, done=False)
    mesh.forward(1, done=False)
    for rank in (2, 3):
        mesh.norm(rank, done=True)
        mesh.forward(rank, done=True)
        mesh.gradients(rank)
    return mesh


def blame(found: Diagnosis) -> tuple[Verdict, tuple[int, ...], Confidence]:
    return found.verdict, found.culprits, found.confidence


def test_new_operation_in_a_cycle_is_no_deviation_if_the_counterpart_did_it_too() -> None:
    """A rank that reduces to another may complete that alone, so it does not show the order of that
    other rank."""
    found = norm_left_out("reduce").without(3)
    assert blame(found) == (Verdict.DEADLOCK_CYCLE, (0, 1), Confidence.AMBIGUOUS)


def test_rank_waiting_for_a_lost_rank_after_a_new_operation_that_its_counterpart_did_too() -> None:
    mesh = Mesh()
    for rank in range(4):
        mesh.norm(rank, done=True)
    for rank in (0, 1):
        mesh.forward(rank, done=True)
        mesh.gradients(rank)
    mesh.forward(3, done=False)
    assert blame(mesh.without(2)) == (Verdict.RANK_LOST, (2,), Confidence.LIKELY)


def seen_to_end(job: Job, lost: int) -> Diagnosis:
    """Everybody is ended from outside; of ``lost`` nothing is left but what the monitor saw."""
    at_ns = START + int((job.now + 60) * SECOND)
    for rank in range(job.world):
        end = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=True)
        job.rank(rank, alive=False, exit=end)
    rings = [Source(f"{r}.ring", formats.RING, rank=r) for r in range(job.world) if r != lost]
    trace = job.trace(sources=(*rings, Source("monitor.journal", formats.JOURNAL)))
    return diagnose(replace(trace, records=trace.records[trace.records["rank"] != lost]))


def test_rank_known_only_from_the_journal_may_wait_with_the_suspect() -> None:
    """Ranks 0 and 2 begin their first checkpoint, and rank 1 trains on."""
    job = Job(3)
    side = job.group(0, 1, 2, desc="checkpoint")
    for _ in range(10):
        job.all(line=10)
    job.op(0, "all_gather", group=side, line=30, done=False)
    job.op(1, line=10, done=False)
    found = seen_to_end(job, 2)
    assert blame(found) == (Verdict.DEADLOCK_CYCLE, (0, 1), Confidence.AMBIGUOUS)


def test_rank_known_only_from_the_journal_may_make_two_sides_equal() -> None:
    job = Job(16)
    job.steps(3)
    for rank in range(16):
        job.op(rank, size=(7 if rank < 8 else 64,), done=False)
    everybody = tuple(r for r in range(16) if r != 2)
    assert blame(seen_to_end(job, 2)) == (
        Verdict.SHAPE_MISMATCH,
        everybody,
        Confidence.AMBIGUOUS,
    )


@pytest.mark.parametrize("with_lines", [True, False])
def test_operation_new_to_a_whole_cycle_is_the_code_of_all(with_lines: bool) -> None:
    """Four stages begin to exchange round a ring, each receiving first. By kind alone, the receive
    of the last three looks like that of every step, and that of the first stage does not."""
    job = Job(8)
    pipes = [job.group(*ranks, desc="PIPE") for ranks in ((0, 2, 4, 6), (1, 3, 5, 7))]
    for step in range(6):
        for pipe in pipes if step < 5 else pipes[1:]:
            ranks = job.groups[pipe].ranks
            for sender, receiver in pairwise(ranks):
                job.op(sender, "send", group=pipe, peer=receiver, line=10, size=(4, 8))
                job.op(receiver, "recv", group=pipe, peer=sender, line=11, size=(4, 8))
    for rank, before in ((0, 6), (2, 0), (4, 2), (6, 4)):
        job.op(rank, "recv", group=pipes[0], peer=before, line=30, dtype="Long", done=False)
    if not with_lines:
        for row in job.rows:
            row["stack"] = -1
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (0, 2, 4, 6))


def test_line_is_compared_independently_of_its_number_in_a_ranks_records() -> None:
    """Two pipelines of two stages; rank 2 is lost, and its neighbours of both kinds wait."""
    job = Job(4)
    pipes = [job.group(0, 2, desc="PIPE"), job.group(1, 3, desc="PIPE")]
    tensor = [job.group(0, 1, desc="TENSOR"), job.group(2, 3, desc="TENSOR")]
    for step in range(8):
        for first, pipe in enumerate(pipes):
            job.op(first, group=tensor[0], line=10)
            job.op(first, "send", group=pipe, peer=first + 2, line=20)
            job.op(first + 2, "recv", group=pipe, peer=first, line=30)
            if step < 7:
                job.op(first + 2, group=tensor[1], line=10)
    job.op(3, group=tensor[1], line=10, done=False)
    for rank in (0, 1):
        job.op(rank, line=40, done=False)
    job.lose(2)
    trace = job.trace()
    records = trace.records.copy()
    odd = (records["rank"] % 2 == 1) & (records["stack"] >= 0)
    records["stack"][odd] += len(trace.stacks)
    found = diagnose(replace(trace, records=records, stacks=(*trace.stacks, *trace.stacks)))
    assert blame(found) == (Verdict.RANK_LOST, (2,), Confidence.LIKELY)


def test_exchange_sizes_are_no_evidence_about_another_group() -> None:
    """Other experts get other numbers of tokens; the next operation is the same for all."""
    job = Job(8)
    pairs = [job.group(2 * i, 2 * i + 1, desc="ep") for i in range(4)]
    for step in range(4):
        for group in pairs:
            job.all("all_gather", group=group, size=(2,))
            job.all("all_to_all", group=group, size=(10 * group + step,))
    for group in pairs[1:]:
        job.all("all_gather", group=group, size=(2,))
    job.op(0, "all_to_all", group=pairs[0], size=(9,), done=False)
    job.op(1, "all_gather", group=pairs[0], size=(2,), done=False)
    assert blame(diagnose(job.trace())) == (
        Verdict.COLLECTIVE_MISMATCH,
        (0,),
        Confidence.LIKELY,
    )


def test_stage_with_another_program_is_no_measure_beside_a_lost_rank() -> None:
    """Two stages, two replicas, two tensor ranks. The second stage also averages its loss: in the
    second step it has issued more in its data groups than the first stage had by the norm. Rank 3
    left nothing, and rank 1, which waits for it, did the same as rank 0 in its stage."""
    job = Job(8)
    tensor = [job.group(r, r + 1, desc="TENSOR") for r in (0, 2, 4, 6)]
    data = [job.group(r, r + 2, desc="DATA") for r in (0, 1, 4, 5)]
    model = [job.group(*ranks, desc="MODEL") for ranks in ((0, 1, 4, 5), (2, 3, 6, 7))]
    for _ in range(3):
        for group in (*tensor, *data, *model):
            job.all(group=group)
        for group in data[2:]:
            job.all(group=group, size=(1,))
    for rank in (0, 1, 2, 4, 5, 6, 7):
        job.op(rank, group=tensor[rank // 2], done=rank != 2)
    for group in data[2:]:
        job.all(group=group)
    for rank in (0, 1):
        job.op(rank, group=data[rank], done=False)
    job.lose(3)
    assert blame(diagnose(job.trace())) == (Verdict.RANK_LOST, (3,), Confidence.LIKELY)


@pytest.mark.parametrize(
    ("siblings", "culprits"),
    [
        (("all_reduce", "all_reduce"), (0,)),
        (("all_gather", "all_reduce"), (1,)),
        (("all_reduce", "all_gather"), (1,)),
    ],
)
def test_rank_that_differs_from_half_of_its_counterparts_has_not_deviated(
    siblings: tuple[str, str], culprits: tuple[int, ...]
) -> None:
    """Rank 0 waits for the lost rank 1 in an all-gather; the question is what ranks 2 and 4 issue
    there."""
    job = Job(6)
    pairs = [job.group(rank, rank + 1, desc="tensor") for rank in (0, 2, 4)]
    for _ in range(6):
        for pair in pairs:
            job.all(group=pair)
            job.all("all_gather", group=pair)
        job.all(size=(8,))
    job.op(0, "all_gather", group=pairs[0], done=False)
    for pair, op in zip(pairs[1:], siblings, strict=True):
        job.all(op, group=pair)
    for rank in range(2, 6):
        job.op(rank, size=(8,), done=False)
    job.lose(1)
    assert diagnose(job.trace()).culprits == culprits
