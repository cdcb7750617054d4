"""Explanations of a cycle are tried; the cheapest one wins if the evidence is clear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hangscope.diagnosis.faults.contest import contest
from hangscope.diagnosis.faults.expect import conduct_of, unlike_past
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, context_of, judged


def rings(*, skipping: tuple[int, ...], world: int = 8, size: int = 4, steps: int = 5) -> Trace:
    """In each step the members of a ring send to the next one and receive from the one before.

    In the last step the ``skipping`` ranks leave their send out: the next one waits for it, and
    whoever has both halves waits where all meet.
    """
    job = Job(world)
    groups = [job.group(*range(i, i + size), desc="CONTEXT") for i in range(0, world, size)]
    for step in range(steps):
        last = step == steps - 1
        stuck = set()
        for group in groups:
            ranks = job.groups[group].ranks
            for at, rank in enumerate(ranks):
                after, before = ranks[(at + 1) % size], ranks[at - 1]
                if not (last and rank in skipping):
                    job.op(rank, "send", group=group, peer=after, line=20)
                served = not (last and before in skipping)
                job.op(rank, "recv", group=group, peer=before, line=21, done=served)
                stuck |= set() if served else {rank}
        for rank in range(world):
            if rank not in stuck:
                job.op(rank, size=(1,), line=30, done=not last)
    return job.trace()


def test_rank_that_alone_left_something_out_departs() -> None:
    context = context_of(rings(skipping=(1,)))
    weights = {r: conduct_of(context, r, (1, 2), range(8)).worst()[0] for r in range(8)}
    assert weights.pop(1) == 1
    assert set(weights.values()) == {0}


def test_what_differs_from_rank_to_rank_in_every_step_is_no_departure_in_the_first_one() -> None:
    """Before it comes what a job does only once, so it never came in this way before."""
    job = Job(4)
    stages = [job.group(0, 1, desc="TENSOR"), job.group(2, 3, desc="TENSOR")]
    job.all("broadcast", size=(1000,))
    for _ in range(4):
        for times, stage in zip((4, 3), stages, strict=True):
            for _ in range(times):
                job.all(group=stage)
        job.all(size=(1,))
    context = context_of(job.trace())
    assert {conduct_of(context, r, (0, 1), range(4)).departures for r in range(4)} == {()}


def test_accused_ranks_are_no_measure_of_others() -> None:
    """Two ranks that differ from each other only: either may have departed."""
    context = context_of(rings(skipping=(1,), world=4))
    conduct = conduct_of(context, 1, (1, 2), (1, 3))
    assert conduct.worst(())[0] == 1  # one vote, and its own past
    assert conduct.worst((3,))[0] == 0.5  # only its past


@pytest.mark.parametrize("skipping", [(1, 5), (0, 4), (2, 6)])
def test_row_that_made_one_mistake_is_named(skipping: tuple[int, ...]) -> None:
    found = judged(rings(skipping=skipping))
    assert found == (Verdict.P2P_UNMATCHED, skipping, Confidence.LIKELY)


def test_beside_a_member_that_left_nothing_the_past_of_all_others_decides() -> None:
    trace = rings(skipping=(1, 5))
    ranks = {rank: facts for rank, facts in trace.ranks.items() if rank != 3}
    records = trace.records[trace.records["rank"] != 3]
    for given in (trace, replace(trace, records=records, ranks=ranks)):
        context = context_of(given)
        waiting = {r for place in context.waits.places for r in place.waiters}
        assert contest(context, waiting, context.waits.places).accused == {1, 5}


def test_rank_whose_past_is_gone_may_still_be_compared() -> None:
    trace = rings(skipping=(1, 5))
    kept = np.ones(len(trace.records), bool)
    for rank in trace.ranks:
        kept[np.flatnonzero(trace.records["rank"] == rank)[: 3 + rank % 2]] = False
    ranks = {r: replace(facts, oldest_record_id=5) for r, facts in trace.ranks.items()}
    context = context_of(replace(trace, records=trace.records[kept], ranks=ranks))
    assert conduct_of(context, 1, (1, 2), range(8)).worst()[0] == 1
    assert conduct_of(context, 2, (1, 2), range(8)).worst()[0] == 0


@pytest.mark.parametrize(
    ("stream", "unusual"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], False),
        ([1, 2, 3, 1, 2, 3, 1, 3], True),  # 3 never followed 1
        ([1, 2, 3, 1, 2, 3, 1, 2, 4], None),  # something new may have begun for all
        ([1, 2, 9, 2, 1, 2], None),  # too little came before
        ([1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 3], True),  # after a 3, two rounds came
        ([1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 1, 2, 1], True),  # after 2 1 2 came 3
    ],
)
def test_past_of_a_rank(stream: list[int], unusual: bool | None) -> None:
    assert unlike_past(np.array(stream), len(stream) - 1) is unusual
