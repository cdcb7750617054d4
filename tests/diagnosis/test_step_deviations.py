"""Cycles in a step that one rank does not execute like the step before."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict

from .builder import Job

FORWARD, BACKWARD = 10, 30
Half = tuple[int, str, int, int]
"""Rank, operation, partner and line."""


def step(world: int, micro_batches: int) -> list[Half]:
    """One step of a pipeline: all forward passes, then all backward passes."""
    halves = []
    for _ in range(micro_batches):
        for rank in range(world - 1):
            halves.append((rank, "send", rank + 1, FORWARD))
            halves.append((rank + 1, "recv", rank, FORWARD))
    for _ in range(micro_batches):
        for rank in range(world - 1, 0, -1):
            halves.append((rank, "send", rank - 1, BACKWARD))
            halves.append((rank - 1, "recv", rank, BACKWARD))
    return halves


def run(job: Job, halves: Iterable[Half], *, left_out: frozenset[int] = frozenset()) -> None:
    """Issue halves in order, but for those at the places ``left_out``.

    A rank stops at a receive whose send was not issued; all others complete.
    """
    stopped: set[int] = set()
    sent: dict[tuple[int, int], int] = {}
    received: dict[tuple[int, int], int] = {}
    for place, (rank, op, peer, line) in enumerate(halves):
        if place in left_out or rank in stopped:
            continue
        done = True
        if op == "send":
            sent[rank, peer] = sent.get((rank, peer), 0) + 1
        else:
            received[peer, rank] = received.get((peer, rank), 0) + 1
            done = received[peer, rank] <= sent.get((peer, rank), 0)
        if not done:
            stopped.add(rank)
        job.op(rank, op, peer=peer, line=line, done=done)


def judged(world: int, micro_batches: int, steps: int, skipped: Half, count: int = 1) -> Diagnosis:
    """Some whole steps, and one in which the last ``count`` halves like ``skipped`` are missing."""
    job = Job(world)
    for _ in range(steps):
        run(job, step(world, micro_batches))
        job.all(line=50)
    halves = step(world, micro_batches)
    places = [place for place, half in enumerate(halves) if half == skipped]
    run(job, halves, left_out=frozenset(places[-count:]))
    return diagnose(job.trace())


def test_two_steps_suffice_to_find_a_skipped_send() -> None:
    found = judged(4, 2, 1, (1, "send", 2, FORWARD))
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (1,))
    assert found.confidence is Confidence.LIKELY


def test_stage_with_fewer_micro_batches_is_named() -> None:
    """None of its transitions from one operation to the next is new: only their number is."""
    found = judged(3, 4, 3, (0, "send", 1, FORWARD), count=2)
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (0,))


def test_operation_new_to_all_accuses_no_rank() -> None:
    """A first rotation among all, receiving before sending: rank 0 alone reaches it by a path that
    it never took before, but all wait at a line that is new to them."""
    job = Job(4)
    for _ in range(3):
        run(job, step(4, 2))
        job.all(line=50)
    run(job, step(4, 2))
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, line=70, done=False)
    assert diagnose(job.trace()).culprits == (0, 1, 2, 3)


def test_without_an_earlier_step_both_ends_are_named() -> None:
    found = judged(4, 2, 0, (1, "send", 2, FORWARD))
    assert (found.culprits, found.confidence) == ((1, 2), Confidence.AMBIGUOUS)


def test_steps_of_two_lengths_are_both_usual() -> None:
    """A wrong count cannot be found if the number of micro-batches changes anyway."""
    job = Job(3)
    for count in (2, 4, 2, 4):
        run(job, step(3, count))
        job.all(line=50)
    halves = step(3, 4)
    places = [place for place, half in enumerate(halves) if half == (0, "send", 1, FORWARD)]
    run(job, halves, left_out=frozenset(places[-2:]))
    found = diagnose(job.trace())
    assert set(found.culprits) >= {0, 1}
    assert found.confidence is Confidence.AMBIGUOUS
