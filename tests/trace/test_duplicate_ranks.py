"""Two processes with the same rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.job_selection.duplicate_ranks import (
    DuplicateRank,
    duplicate_rank_claims,
    find_duplicate_ranks,
)
from hangscope.trace.job_selection.processes import RankProcess
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import load_trace
from tests.diagnosis.builder import Job

SECOND = 1_000_000_000


def _start(pid: int, first_s: float, last_s: float, host: str = "a") -> RankProcess:
    return RankProcess(1, (host, pid), int(first_s * SECOND), int(last_s * SECOND))


def test_processes_of_one_rank_that_overlap_in_time_are_reported() -> None:
    (pair,) = find_duplicate_ranks(
        [_start(22, 110, 150), _start(11, 100, 160), RankProcess(0, ("a", 9), 0, 0)]
    )
    assert pair == DuplicateRank(1, ("a", 11), ("a", 22))
    assert "two processes are rank 1" in pair.text
    assert "pid 11 on host a and pid 22 on host a" in pair.text


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(_start(22, 161, 190), id="a successor"),
        pytest.param(_start(22, 159, 190), id="a successor that began while the first one ended"),
        pytest.param(_start(11, 110, 150), id="the same process, which began to record again"),
        pytest.param(_start(22, 130, 190, host="b"), id="another host, whose clock may be off"),
    ],
)
def test_consecutive_processes_of_one_rank_are_no_mistake(second: RankProcess) -> None:
    assert find_duplicate_ranks([_start(11, 100, 160), second]) == []


@pytest.mark.parametrize(("second_s", "overlap"), [(130, True), (190, False)])
def test_overlap_does_not_depend_on_who_is_asked_first(second_s: int, overlap: bool) -> None:
    one, two = _start(11, 100, 160), _start(22, second_s, 200)
    assert one.overlaps(two) == two.overlaps(one) == overlap


def test_two_live_processes_of_one_rank_need_no_times() -> None:
    starts = [_start(11, 0, 0), _start(22, 0, 0, host="b")]
    living = [replace(one, alive=True) for one in starts]
    assert find_duplicate_ranks(starts) == []
    assert find_duplicate_ranks([living[0], starts[1]]) == []
    assert len(find_duplicate_ranks(living)) == 1


def test_two_worlds_have_one_rank_of_the_same_number_each() -> None:
    one, two = _start(11, 100, 160), _start(22, 110, 150)
    assert (
        find_duplicate_ranks(
            [replace(one, rendezvous="tcp://a:1"), replace(two, rendezvous="tcp://a:2")]
        )
        == []
    )
    assert len(find_duplicate_ranks([replace(one, rendezvous="tcp://a:1"), two])) == 1


_RANK = """
import os, sys, time
from pathlib import Path
from hangscope.recording.identity import ring_identity
from hangscope.ring.job_place import place_from_environment
from hangscope.recording.ring_location import open_ring
identity = ring_identity(place_from_environment(os.environ), "one-run", timeout_s=9.0,
                         heartbeat_interval_s=1.0)
ring = open_ring(Path(sys.argv[1]), identity, 64)
ring.beat()
ring.put_u4("ready", 1)
print("ready", flush=True)
time.sleep(60)
"""


def test_readers_keep_one_of_two_live_processes_with_a_warning(tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in (0, 1, 1):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
            process = subprocess.Popen(
                [sys.executable, "-c", _RANK, str(tmp_path)],
                env=environment,
                stdout=subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.01)
        pids = [p.pid for p in processes]
        for trace in (LiveRun(tmp_path).look(), load_trace([tmp_path])):
            assert trace.ranks[1].pid == pids[2]
            (note,) = [w for w in trace.warnings if "two processes are rank 1" in w]
            assert str(pids[1]) in note
            assert str(pids[2]) in note
            assert [c.accused for c in trace.claims] == [(1,)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_duplicate_rank_explains_an_uncompleted_collective() -> None:
    job = Job(3)
    job.steps(2)
    job.all(done=False)
    plain = diagnose(job.trace())
    assert (plain.verdict.value, plain.culprits) == ("stuck_collective", ())
    said = duplicate_rank_claims([DuplicateRank(1, ("a", 11), ("a", 22))])
    found = diagnose(replace(job.trace(), claims=said))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", (1,))
    assert found.confidence.value == "likely"
    assert "Two processes are rank 1" in found.summary
    assert "a RANK of its own" in found.findings[0].fix
