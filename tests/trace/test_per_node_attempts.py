"""Each node of an elastic job counts attempts by itself, but there is only one incarnation."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.job_selection.incarnations import in_same_incarnation
from hangscope.trace.job_selection.processes import RankProcess
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def _ring(
    directory: Path, rank: int, attempt: int, *, agent: int, pid: int, began_s: int, last_s: int
) -> None:
    identity = RingIdentity(
        run_id="job", rank=rank, world_size=4, attempt=attempt, host=f"node{agent}", pid=pid,
        parent_pid=agent, local_world_size=2,
    )  # fmt: skip
    ring = RingWriter(directory / f"rank_{rank}.{pid}.ring", identity, 64, group_count=8)
    ring.put_world(rank, 4)
    ring.put_i8("created_ns", START + began_s * SECOND)
    ring.put_i8("heartbeat_ns", START + last_s * SECOND)


@pytest.fixture
def elastic(tmp_path: Path) -> Path:
    """Rank 1 of node 1 failed: its agent counts a second attempt, that of node 2 does not."""
    for rank in range(4):
        agent = 1 + rank // 2
        _ring(tmp_path, rank, 0, agent=agent, pid=10 + rank, began_s=0, last_s=60)
        again = {1: 1, 2: 0}[agent]
        _ring(tmp_path, rank, again, agent=agent, pid=20 + rank, began_s=70 + rank, last_s=99)
    return tmp_path


def _pids(trace: Trace) -> dict[int, int | None]:
    return {rank: facts.pid for rank, facts in trace.ranks.items()}


def test_ranks_of_all_nodes_are_of_one_attempt(elastic: Path) -> None:
    newest = {rank: 20 + rank for rank in range(4)}
    assert _pids(load_trace([elastic])) == newest
    assert _pids(LiveRun(elastic).look()) == newest


@pytest.mark.parametrize("attempt", [0, 1])
def test_every_nodes_monitor_sees_all_ranks(elastic: Path, attempt: int) -> None:
    trace = LiveRun(elastic, RunKey("job", attempt)).look()
    assert _pids(trace) == {rank: 20 + rank for rank in range(4)}


def test_job_continuing_with_fewer_ranks_has_no_others(tmp_path: Path) -> None:
    for rank in range(4):
        _ring(tmp_path, rank, 0, agent=1 + rank // 2, pid=10 + rank, began_s=0, last_s=60)
    for rank in range(2):
        _ring(tmp_path, rank, 1, agent=1, pid=20 + rank, began_s=70, last_s=99)
    assert _pids(load_trace([tmp_path])) == {0: 20, 1: 21}
    assert _pids(LiveRun(tmp_path).look()) == {0: 20, 1: 21}


def test_leftover_of_one_launcher_is_no_rank_of_its_next_attempt() -> None:
    own = [RankProcess(0, ("a", 20), 70, 99, 1)]
    stuck = RankProcess(1, ("a", 11), 0, 99, 1)
    other = RankProcess(1, ("b", 11), 60, 99, 2)
    assert in_same_incarnation(own, [stuck, other]) == [False, True]
    assert in_same_incarnation([], [other]) == [False]
