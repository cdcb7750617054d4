"""The rank of a process that has not declared one, or that a journal mentions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace import formats
from hangscope.trace.job_selection.processes import RankProcess
from hangscope.trace.job_selection.ring_ranks import assign_ranks, with_assigned_ranks
from hangscope.trace.live.rings import RingFolder
from hangscope.trace.model import ExitFacts, Fragment, Group, Phase, RankFacts, Source

SECOND = 1_000_000_000


def _one(
    rank: int, pid: int, *, declared: bool, world: int = 4, last_s: int = 60, parent: int = 0
) -> RankProcess:
    return RankProcess(
        rank, ("a", pid), pid * SECOND // 10, last_s * SECOND, parent, "", world, declared
    )


def test_different_ranks_are_unchanged() -> None:
    assert assign_ranks([_one(r, r + 1, declared=r > 1) for r in range(4)]) == [0, 1, 2, 3]


def test_remaining_process_is_the_remaining_rank() -> None:
    # Launched as 0 to 3, and counted from the other end: the first has not said so yet.
    rings = [_one(0, 1, declared=False)] + [_one(3 - i, i + 1, declared=True) for i in (1, 2, 3)]
    assert assign_ranks(rings) == [3, 2, 1, 0]


def test_more_free_numbers_than_processes_name_none() -> None:
    rings = [_one(0, 1, declared=False), _one(0, 2, declared=True)]
    assert assign_ranks(rings) == [None, 0]


def test_process_that_starts_ranks_is_no_rank() -> None:
    launchers = [_one(r, r + 1, declared=False, world=2) for r in (0, 1)]
    ranks = [_one(r, r + 10, declared=True, parent=r // 2 + 1) for r in range(3)]
    assert assign_ranks([*launchers, *ranks]) == [None, None, 0, 1, 2]


def test_two_processes_declaring_one_rank_keep_it() -> None:
    assert assign_ranks([_one(1, 1, declared=True), _one(1, 2, declared=True)]) == [1, 1]
    assert assign_ranks([_one(1, 1, declared=False), _one(1, 2, declared=False)]) == [1, 1]


def test_only_a_declared_rank_refutes_another_process() -> None:
    unsure = [_one(0, 1, declared=False, world=2), _one(0, 2, declared=False, world=2)]
    sure = _one(1, 3, declared=True, world=2)
    assert assign_ranks([*unsure, sure]) == [0, 0, 1]
    assert assign_ranks([unsure[0], sure, _one(1, 4, declared=True, world=2)]) == [0, 1, 1]


def test_earlier_job_of_the_same_name_takes_no_rank() -> None:
    before = [_one(r, r + 1, declared=True, world=2, last_s=1) for r in (0, 1)]
    again = [_one(r, r + 90, declared=r == 1, world=2) for r in (0, 1)]
    assert assign_ranks([*before, *again]) == [0, 1, 0, 1]


def test_journal_knows_processes_but_no_ranks() -> None:
    ring = _fragment(formats.RING, RankFacts(3, pid=11, host="a", run_id="x", declared=True))
    end = _fragment(formats.JOURNAL, RankFacts(0, pid=11, host="a", run_id="x"))
    elsewhere = replace(end, facts=replace(end.facts, host="b"))
    found = with_assigned_ranks([ring, end, elsewhere])
    assert [f.facts.rank for f in found] == [3, 3, 0]
    assert [f.source.rank for f in found] == [3, 3, 0]


def _fragment(kind: str, facts: RankFacts) -> Fragment:
    return Fragment(Source("file", kind, "1", facts.rank, 0), facts)


def test_next_attempt_is_assigned_anew(tmp_path: Path) -> None:
    # Both attempts say the same: a launcher that is no rank, and the rank that it has started.
    def start(attempt: int, pid: int) -> None:
        for own, parent in ((pid, 1), (pid + 1, pid)):
            identity = RingIdentity(
                "job", 0, 1, attempt=attempt, host="a", pid=own, parent_pid=parent
            )
            ring = RingWriter(tmp_path / f"rank_0.{own}.ring", identity, 16, group_count=8)
            ring.put_i8("created_ns", own * SECOND)
            ring.put_i8("heartbeat_ns", (own + 2) * SECOND)
            if own != pid:
                ring.put_world(0, 1)

    folder = RingFolder(tmp_path, None)
    start(0, 10)
    assert [ring.process.pid for ring in folder.refresh()] == [11]
    start(1, 20)
    assert [ring.process.pid for ring in folder.refresh()] == [21]
    assert folder.rank_of_process() == {
        ("a", 10): None,
        ("a", 11): 0,
        ("a", 20): None,
        ("a", 21): 0,
    }
    assert folder.declared == {("a", 21)}


def _two_worlds(*, over: int = 9, size: int = 2, apart_ns: int = 0) -> list[RankProcess]:
    """Four processes of one launch, in two jobs that meet at ports of their own."""
    found = []
    for place in range(4):
        world = place // 2
        created_ns = SECOND + place + world * apart_ns
        found.append(
            RankProcess(
                place % 2, ("a", place + 1), created_ns, created_ns + 60 * SECOND,
                0, f"tcp://a:{world}", size, declared=True, exited=world == over,
            )
        )  # fmt: skip
    return found


def test_helpers_that_form_a_world_are_not_followed() -> None:
    """A checkpoint is written by a process that each rank has started; they are the newest."""
    ranks, helpers = _two_worlds()[:2], _two_worlds()[2:]
    started = [replace(one, parent=pid) for pid, one in enumerate(helpers, 1)]
    assert assign_ranks([*ranks, *started]) == [0, 1, None, None]
    assert assign_ranks([*ranks, *started[:1]]) == [0, 1, None]
    launched = [replace(one, parent=99) for one in ranks]  # by a process that records nothing
    assert assign_ranks([*launched, *started]) == [0, 1, None, None]
    over = [replace(one, exited=True) for one in ranks]
    assert assign_ranks([*over, *started]) == [None, None, 0, 1]


def test_newest_unfinished_job_of_a_launch_is_followed() -> None:
    assert assign_ranks(_two_worlds()) == [None, None, 0, 1]
    assert assign_ranks(_two_worlds(over=1)) == [0, 1, None, None]
    late = RankProcess(3, ("a", 9), SECOND, 61 * SECOND, world_size=4)
    assert assign_ranks([*_two_worlds(), late]) == [None, None, 0, 1, None]
    assert assign_ranks([*_two_worlds()[:3], late]) == [None, None, 0, 1]  # it never came there
    assert assign_ranks([*_two_worlds()[1:], late]) == [1, None, None, 0]


def test_jobs_larger_than_the_launch_have_wrong_addresses() -> None:
    assert assign_ranks(_two_worlds(size=4)) == [0, 1, 0, 1]


def test_jobs_with_completed_operations_may_lack_a_ring() -> None:
    rings = [replace(one, initialized=True) for one in _two_worlds()[:3]]
    assert assign_ranks(rings) == [None, None, 0]
    assert assign_ranks([replace(one, initialized=False) for one in rings]) == [0, 1, 0]


def test_job_that_ended_before_the_next_began_takes_no_rank() -> None:
    assert assign_ranks(_two_worlds(apart_ns=61 * SECOND)) == [0, 1, 0, 1]


def test_second_init_without_some_ranks_is_no_other_job() -> None:
    """Three of four have called ``init_process_group`` anew, for three, at another port."""
    found = []
    for rank in range(4):
        at = f"tcp://a:{int(rank < 3)}"
        size = 3 if rank < 3 else 4
        found.append(
            RankProcess(
                rank, ("a", rank), SECOND + rank, 61 * SECOND, 0, at, size,
                declared=True, initialized=True, reinitialized=rank < 3,
            )
        )  # fmt: skip
    assert assign_ranks(found) == [0, 1, 2, 3]
    assert assign_ranks([replace(one, reinitialized=False) for one in found]) != [0, 1, 2, 3]


def _ring(rank: int, pid: int, meeting: str, world: int, **facts: object) -> Fragment:
    return _fragment(
        formats.RING,
        RankFacts(
            rank, pid=pid, host="a", run_id="x", declared=True, world_size=world,
            started_ns=SECOND + pid, heartbeat_ns=61 * SECOND, rendezvous=meeting, **facts,
        ),  # type: ignore[arg-type]
    )  # fmt: skip


def test_job_that_failed_is_followed_before_a_newer_one_that_ended_well() -> None:
    failed = ExitFacts("code", code=1, at_ns=61 * SECOND)
    well = ExitFacts("clean", code=0, at_ns=61 * SECOND)
    first = [_ring(rank, rank + 1, "tcp://a:1", 2, exit=failed) for rank in (0, 1)]
    second = [_ring(rank, rank + 3, "tcp://a:2", 2, exit=well) for rank in (0, 1)]
    assert [f.facts.pid for f in with_assigned_ranks([*first, *second])] == [1, 2]


@pytest.mark.parametrize("known_by", ["a larger group", "a call of init_process_group"])
def test_ranks_that_formed_a_smaller_world_are_no_other_job(known_by: str) -> None:
    larger = known_by == "a larger group"
    again: dict[str, object] = {"finalized": True}
    again["phases"] = () if larger else (Phase("init_process_group", SECOND),)
    left = [_ring(rank, rank + 1, "tcp://a:2", 3, initialized=True, **again) for rank in range(3)]
    if larger:
        left = [replace(ring, groups=(Group("0", "", (0, 1, 2, 3)),)) for ring in left]
    last = _ring(3, 4, "tcp://a:1", 4, initialized=True)
    assert [f.facts.pid for f in with_assigned_ranks([*left, last])] == [1, 2, 3, 4]
