"""What can be known of a rank depends on what is left of it, not on what is left beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.observability import (
    merely_named,
    of_text,
    partly_recorded,
    recorded_ranks,
    recorders,
    snapshots,
    unrecorded,
)
from hangscope.trace import formats
from hangscope.trace.model import Claim, ExitFacts, RankFacts, Source, Trace

from .builder import Job

RING, DUMP, TOLD, NAMED, WATCHED = range(5)


@pytest.fixture
def trace() -> Trace:
    """One rank of each kind: with a ring, with a dump, whose watchdog speaks in the log, with
    ordinary output there, and known from a journal."""
    job = Job(5)
    job.op(RING)
    job.op(DUMP)
    sources = (
        Source("rank_0.ring", formats.RING, "1", RING),
        Source("dump_1", formats.PICKLE, "2.10", DUMP),
        Source("job.log", formats.LOG),
        Source("monitor.journal", formats.JOURNAL, "1", WATCHED),
    )
    made = job.trace()
    ranks = {rank: RankFacts(rank) for rank in made.ranks}
    ranks[WATCHED] = RankFacts(WATCHED, alive=False, exit=ExitFacts("clean", code=0))
    claims = (Claim("timeout", reporter=TOLD, source=2, at_ns=1),)
    return replace(made, sources=sources, ranks=ranks, claims=claims)


def test_each_rank_is_known_by_what_it_left(trace: Trace) -> None:
    assert recorders(trace) == recorded_ranks(trace) == {RING, DUMP}
    assert snapshots(trace) == {DUMP}
    assert of_text(trace) == {TOLD, NAMED}
    assert merely_named(trace) == {NAMED}
    assert unrecorded(trace) == {NAMED, WATCHED}


def test_abort_after_others_gave_up_does_not_show_the_wait_whatever_others_left(
    trace: Trace,
) -> None:
    ranks = dict(trace.ranks)
    for rank in (DUMP, NAMED):
        ranks[rank] = RankFacts(rank, exit=ExitFacts("signal", signal=6, at_ns=2))
    assert partly_recorded(replace(trace, ranks=ranks)) == {NAMED}
