"""A rank that reaches the same operation after a different total did one too many or too few."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.operation_totals import outliers_by_total
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, judged
from tests.diagnosis.test_sibling_groups import context_of
from tools.simulator.dialects import DIALECTS
from tools.simulator.faults import draw
from tools.simulator.native_dumps import write

PIPELINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
FEW, MANY = 2, 4


def unfinished_only(job: Job) -> Trace:
    """Dumps that list nothing but what has not finished, and how much was issued in each group."""
    for (rank, group), issued in job.seq.items():
        job.members.append(
            {
                "rank": rank,
                "group": group,
                "enqueued": issued,
                "started": -1,
                "completed": issued - sum(not r["completed_ns"] for r in rows(job, rank, group)),
                "p2p_enqueued": -1,
            }
        )
    job.rows = [row for row in job.rows if not row["completed_ns"]]
    for rank in range(job.world):
        job.rank(rank, only_active=True)
    return job.trace()


def rows(job: Job, rank: int, group: int) -> list[dict[str, object]]:
    return [row for row in job.rows if row["rank"] == rank and row["group"] == group]


def left_out(*who: int, second: str = "all_reduce") -> Job:
    """Two calls that differ in nothing but their number, and one after them that all come to.

    ``who`` leave the first out. If the ``second`` is a gather they have finished that one.
    """
    job = Job(6)
    inner = job.group(*range(6), desc="tp")
    for _ in range(3):
        job.all(group=inner)
        job.all(second, group=inner)
        job.all("broadcast")
    for rank in range(6):
        if rank not in who:
            job.op(rank, group=inner, done=False)
        job.op(rank, second, group=inner, done=rank in who and second == "gather")
    job.all("broadcast", done=False)
    return job


def test_rank_with_one_collective_less_is_named() -> None:
    trace = unfinished_only(left_out(4))
    assert judged(trace) == (Verdict.COLLECTIVE_MISMATCH, (4,), Confidence.LIKELY)
    finding = diagnose(trace).findings[0]
    assert "a different number of collectives in tp" in finding.summary
    assert 4 not in finding.victims


def test_one_sided_operations_are_not_counted_in_lists_of_unfinished_entries() -> None:
    """Ranks that have issued more may have done so since, and have completed it."""
    trace = unfinished_only(left_out(4, second="gather"))
    assert judged(trace)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_equal_collective_counts_accuse_no_rank() -> None:
    trace = unfinished_only(left_out())
    assert judged(trace)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_two_ranks_with_equal_counts_are_not_odd() -> None:
    """What both have skipped the other four may have issued once too often."""
    trace = unfinished_only(left_out(3, 4))
    assert judged(trace)[:2] == (Verdict.STUCK_COLLECTIVE, ())


def test_counterparts_in_other_groups_decide_between_two() -> None:
    """Without them either of the two may have issued one more."""
    for siblings, culprits in ((3, (1,)), (0, (0, 1))):
        job = Job(2 + 2 * siblings)
        pairs = [job.group(2 * i, 2 * i + 1, desc="ep") for i in range(siblings + 1)]
        for size in (3, 5, 7, 9, 11):
            for group in pairs:
                job.all("all_to_all", group=group, size=(size + group,))
            job.all()
        job.op(1, group=pairs[0], size=(2,), done=False)
        for group in pairs:
            for rank in job.groups[group].ranks:
                job.op(rank, "all_to_all", group=group, size=(4,), done=group != pairs[0])
        job.all(done=False)
        assert judged(job.trace())[1] == culprits


@pytest.mark.parametrize(("number", "seed"), [(806, 921123), (34, 31)])
def test_members_of_which_some_are_not_counted_may_all_have_exchanged_more(
    number: int, seed: int, tmp_path: Path
) -> None:
    """All four members receive once more; counters compare two of them with their counterparts."""
    case = draw(number, seed, "recv_circle")
    write(case, DIALECTS["pickle 2.9, only active"], tmp_path)
    found = diagnose(load_trace([tmp_path]))
    assert found.confidence is Confidence.AMBIGUOUS
    assert set(found.culprits) >= case.truth.culprits


def odd_ones(many: set[int], gone_on: set[int]) -> tuple[int, ...]:
    """Who is odd among ranks 0, 1 and 2, which wait for each other's sends after an all-reduce.

    Before it, the ranks ``many`` exchanged more than the others. ``gone_on``: ranks of the other
    pipelines that are in the next all-reduce.
    """
    job = Job(9)
    groups = [job.group(*ranks, desc="PIPELINE") for ranks in PIPELINES]
    for group, ranks in zip(groups, PIPELINES, strict=True):
        for place, rank in enumerate(ranks):
            for _ in range(MANY if rank in many else FEW):
                job.op(rank, "send", group=group, peer=ranks[place - 1])
    job.steps(1)
    for place, rank in enumerate(PIPELINES[0]):
        job.op(rank, "recv", group=groups[0], peer=PIPELINES[0][place - 1], done=False)
    for rank in sorted(gone_on):
        job.op(rank, done=False)
    return outliers_by_total(context_of(job), PIPELINES[0], groups)


def test_rank_that_exchanged_more_than_its_counterparts_is_odd_if_another_did_as_usual() -> None:
    assert odd_ones({0}, set()) == (0,)


def test_without_another_that_did_as_usual_the_counterparts_may_be_another_stage() -> None:
    """Of the first pipeline only rank 0 can be compared: places need not mean stages."""
    assert odd_ones({0, 4, 7}, {4, 5, 7, 8}) == ()
