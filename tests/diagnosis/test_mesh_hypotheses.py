"""Dumps with locally numbered groups: what all plausible meshes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.groups.mesh_hypotheses import by_mesh_hypotheses
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import Group, Source, Trace, Unread
from tests.diagnosis.builder import Job

WORLD = 8


def own_numbers() -> Job:
    """Number 1 of every rank is its shard group, four ranks in a row; number 2 its replicas."""
    job = Job(WORLD)
    job.groups = [Group(name) for name in "012"]
    return job


def step(job: Job, *, without: int = -1, done: bool = True) -> None:
    """Three reductions in the shard groups, one among replicas, one of everybody.

    ``without`` leaves the second of them out; hosts run ahead of devices.
    """
    for rank in range(WORLD):
        near = done or rank // 4 != without // 4
        far = done
        for number in range(3):
            if rank != without or number != 1:
                job.op(rank, group=1, size=(64 + number,), line=10, done=near or number == 0)
        job.op(rank, group=2, size=(256,), line=20, done=far)
        job.op(rank, group=0, size=(1,), line=30, done=far)


def judged(job: Job, *lost: int) -> Diagnosis:
    job.lose(*lost)
    sources = tuple(
        Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in sorted(job.facts)
    )
    return diagnose(job.trace(sources=sources))


def test_rank_that_skipped_a_collective_of_an_unlisted_group_is_named() -> None:
    job = own_numbers()
    for _ in range(3):
        step(job)
    step(job, without=6, done=False)
    found = judged(job)
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (6,))
    assert found.confidence is Confidence.LIKELY
    assert any("not listed" in text for text in found.findings[0].unknowns)
    assert {s.version for s in found.sources} == {"none"}


def test_meshes_that_need_more_mistakes_do_not_count() -> None:
    """Groups of two would also be consistent; then two mistakes were made, or networks failed by
    pairs. In groups of four the sibling group shows which half is right."""
    job = own_numbers()
    for _ in range(3):
        step(job)
    for rank in range(WORLD):
        odd = rank in (6, 7)
        job.op(rank, group=1, size=(7 if odd else 64,), done=rank < 4)
        job.op(rank, group=0, size=(1,), line=30, done=False)
    found = judged(job)
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (6, 7))
    assert found.confidence is Confidence.LIKELY


def test_devices_of_a_pair_are_not_stuck_if_the_network_of_a_smaller_group_may_be() -> None:
    """Groups of two along number 1: taken for one group of all, two devices seem to be stuck."""
    job = own_numbers()
    for last in (False, False, False, True):
        for rank in range(WORLD):
            job.op(rank, group=1, size=(64,), line=10, done=not last or rank > 1)
            job.op(rank, group=2, size=(256,), line=20, done=not last)
            job.op(rank, group=0, size=(1,), line=30, done=not last)
    assert judged(job).culprits == ()


@pytest.mark.parametrize("version", ["2.4", "none"])
def test_only_dumps_without_names_are_assigned_to_meshes(version: str) -> None:
    job = own_numbers()
    step(job)
    sources = tuple(Source(f"{r}", "flight-recorder-pickle", version, r, 9) for r in range(WORLD))
    judges: list[int] = []

    def judge(trace: object) -> Diagnosis:
        judges.append(1)
        return Diagnosis(Verdict.HEALTHY, (), Confidence.CERTAIN, "")

    assert by_mesh_hypotheses(job.trace(sources=sources), judge) is None
    assert bool(judges) == (version == "none")


def test_number_unknown_to_some_ranks_is_undecided() -> None:
    """Ends of a pipeline are in one group more than the rest: their numbers mean other groups."""
    job = own_numbers()
    step(job)
    for rank in (0, 7):
        job.op(rank, group=len(job.groups) - 1 if rank else 1, size=(5,))
    job.groups.append(Group("3"))
    job.op(0, group=3, size=(5,), done=False)
    sources = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(WORLD))
    assert by_mesh_hypotheses(job.trace(sources=sources), diagnose) is None


Ops = list[tuple[str, dict[str, object]]]
PAIRS, COLUMNS, ALL = ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)


def reductions(count: int) -> Ops:
    """So many, each of another size."""
    return [("all_reduce", {"size": (64 + i,)}) for i in range(count)]


def ways(
    *ops: Ops,
    late: bool = False,
    untold: bool = False,
    unread: tuple[Unread, ...] = (),
    pair: str = "nccl:send 0->1",
) -> set[tuple[tuple[int, ...], ...]]:
    """How four ranks, that issue this in their number 1 each, may share it out in groups.

    ``late``: the records of one of them do not go back to the start. ``untold``: the last one left
    no records, and nothing states how many ranks there are.
    """
    job = Job(4)
    job.groups = [Group("0"), Group("1")]
    for rank, own in enumerate(ops):
        for op, how in own:
            job.op(rank, op, group=1, **how)  # type: ignore[arg-type]
    job.all(size=(1,))
    job.facts[1] = replace(job.facts[1], oldest_record_id=2 if late else 1)
    if untold:
        job.lose(3)
    judged = set()

    def judge(trace: Trace) -> Diagnosis:
        judged.add(tuple(sorted(g.ranks for g in trace.groups if g.desc == "number 1")))
        return Diagnosis(Verdict.HEALTHY, (), Confidence.CERTAIN, "")

    sources = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(4))
    made = job.trace(sources=sources[: len(job.facts)], unread=unread)
    made = replace(made, world_size=None if untold else 4)
    halves = {"send": pair, "recv": "nccl:recv 1<-0"}
    named = tuple(replace(s, raw=halves.get(s.op, s.raw)) for s in made.signatures)
    assert by_mesh_hypotheses(replace(made, signatures=named), judge) is None
    return judged


def test_all_regular_meshes_fit_ranks_with_equal_records() -> None:
    assert ways(*[reductions(2)] * 4) == {PAIRS, COLUMNS, ALL}


def test_rank_that_completed_more_shares_no_group_with_one_that_issued_less() -> None:
    more, less = reductions(3), reductions(2)
    assert ways(more, more, less, less) == {PAIRS}
    assert ways(more, less, more, less) == {COLUMNS}


def test_operation_that_a_root_may_complete_alone_shows_nothing_about_others() -> None:
    more: Ops = [*reductions(2), ("broadcast", {"root": 0})]
    assert ways(more, more, reductions(2), reductions(2)) == {PAIRS, COLUMNS, ALL}


def test_rank_that_completed_another_operation_shares_no_group() -> None:
    one, other = reductions(1), [("all_reduce", {"size": (7,)})]
    assert ways(one, one, other, other) == {PAIRS}


def test_group_ranks_in_p2p_names_are_places_in_the_block() -> None:
    send: Ops = [("send", {"peer": -1})]
    recv: Ops = [("recv", {"peer": -1})]
    assert ways(send, recv, send, recv) == {PAIRS}
    assert ways(send, send, recv, recv) == {COLUMNS}


def test_last_rank_without_records_counts_if_a_file_or_a_pair_shows_that_it_exists() -> None:
    cut = (Unread("nccl_trace_rank_3", "truncated pickle"),)
    assert ways(*[reductions(2)] * 4, untold=True) == {((0, 1, 2),)}
    assert ways(*[reductions(2)] * 4, untold=True, unread=cut) == {PAIRS, COLUMNS, ALL}
    to_last: Ops = [*reductions(2), ("send", {"peer": -1})]
    ops = (to_last, *[reductions(2)] * 3)
    assert ways(*ops, untold=True, pair="nccl:send 0->3") == {PAIRS, COLUMNS, ALL}


def test_records_without_their_beginning_fit_no_mesh() -> None:
    assert ways(*[reductions(2)] * 4, late=True) == set()


def test_rank_that_never_used_the_number_leaves_it_undecided() -> None:
    assert ways(reductions(2), reductions(2), reductions(2), []) == set()


def test_gather_sizes_show_the_size_of_a_group() -> None:
    gather: Ops = [("_all_gather_base", {"size": (16,), "out": (32,)})]
    assert ways(*[gather] * 4) == {PAIRS, COLUMNS}
