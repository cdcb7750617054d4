"""Jobs with one run id: launchers that give a job no id of its own reuse it for the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hangscope.monitor.report_claims import claim_report
from hangscope.trace.job_selection.incarnations import in_newest_incarnation, in_same_incarnation
from hangscope.trace.job_selection.newest_attempt import keep_newest
from hangscope.trace.job_selection.processes import RankProcess
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.model import ExitFacts, Fragment, RankFacts, Source

MINUTE = 60 * 10**9


def start(rank: int, at: float, pid: int, seen: float | None = None) -> RankProcess:
    """A ring made ``at`` minutes, its process last seen at ``seen`` (a minute later)."""
    last = at + 1 if seen is None else seen
    return RankProcess(rank, ("node0", pid), int(at * MINUTE), int(last * MINUTE), 1)


def test_single_incarnation_is_complete() -> None:
    assert all(in_newest_incarnation([start(0, 1, 10), start(1, 1.1, 11), start(2, 3, 12)]))


def test_earlier_job_is_left_out_with_all_its_ranks() -> None:
    before = [start(rank, 1 + rank / 100, 10 + rank) for rank in range(4)]
    now = [start(rank, 9 + rank / 100, 20 + rank) for rank in range(2)]
    assert in_newest_incarnation([*before, *now]) == [False] * 4 + [True] * 2


def test_new_rank_is_kept() -> None:
    before = [start(0, 1, 10)]
    now = [start(1, 8.9, 21), start(0, 9, 20), start(2, 9.2, 22)]
    assert in_newest_incarnation([*before, *now]) == [False, True, True, True]


def test_restarted_process_is_no_other_job() -> None:
    assert all(in_newest_incarnation([start(0, 1, 10), start(0, 5, 10), start(1, 1, 11)]))


def test_ranks_that_outlive_a_restarted_one_are_kept() -> None:
    stuck = [start(0, 1, 10, seen=7), start(2, 1, 12, seen=7)]
    assert in_newest_incarnation([*stuck, start(1, 1, 11, seen=2), start(1, 5, 99)]) == [
        True,
        True,
        False,
        True,
    ]


def test_rank_that_ended_at_once_belongs_to_the_start_that_is_closer() -> None:
    before = [start(0, 1, 10), start(1, 1.2, 11, seen=1.3)]
    now = [start(2, 8.9, 22, seen=8.95), start(0, 9, 20)]
    assert in_newest_incarnation([*before, *now]) == [False, False, True, True]


def test_ring_of_another_attempt_takes_no_rank_that_the_newest_has() -> None:
    """Its node counts attempts on its own, and its process was alive when this one began."""
    own = [start(rank, 5, 20 + rank) for rank in (0, 1)]
    others = [replace(start(rank, 1, 0, seen=9), key=("node1", 30 + rank)) for rank in (1, 2)]
    assert in_same_incarnation(own, others) == [False, True]


def ring(rank: int, at: int, pid: int) -> Fragment:
    facts = RankFacts(
        rank=rank, host="node0", pid=pid, run_id="run-29500", attempt=0,
        started_ns=at * MINUTE, heartbeat_ns=(at + 1) * MINUTE, alive=False,
    )  # fmt: skip
    return Fragment(Source(f"runs/rank_{rank}.{pid}.ring", "hangscope-ring", rank=rank), facts)


def journal(rank: int, pid: int) -> Fragment:
    facts = RankFacts(
        rank=rank, host="node0", pid=pid, run_id="run-29500", attempt=0, alive=False,
        exit=ExitFacts("code", code=1),
    )  # fmt: skip
    return Fragment(Source("runs/monitor.journal", "hangscope-journal", rank=rank), facts)


def test_rings_and_journals_of_the_earlier_job_are_left_out() -> None:
    before = [ring(rank, 1, 10 + rank) for rank in range(3)]
    now = [ring(rank, 9, 20 + rank) for rank in range(2)]
    seen = [journal(0, 10), journal(1, 21)]
    kept, notes = keep_newest([*before, *now, *seen])
    assert [f.facts.pid for f in kept] == [20, 21, 21]
    assert notes == ["runs: also holds an earlier job of the same name, 3 ranks; ignored"]


def test_rings_without_a_start_time_are_kept() -> None:
    fragments = [replace(f, facts=replace(f.facts, started_ns=0)) for f in (ring(0, 1, 1),) * 2]
    assert keep_newest(fragments) == (fragments, [])


def test_same_cause_is_reported_again_in_the_next_job(tmp_path: Path) -> None:
    key, cause = RunKey("run-29500", 0), ("missing_rank", (1,), "0", 7)
    assert claim_report(tmp_path, key, cause, 1)
    assert not claim_report(tmp_path, key, cause, 1)
    assert claim_report(tmp_path, key, cause, 2)
