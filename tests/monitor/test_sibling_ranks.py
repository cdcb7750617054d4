"""Ranks that a script starts itself are found among the other processes it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hangscope.monitor.process_table import process_table
from hangscope.monitor.sibling_ranks import sibling_ranks
from hangscope.monitor.starting_ranks import StartingRanks
from tests.real_jobs import environment, run_each

_PARENT = """
import subprocess, sys, time
started = []
for words in {children}:
    command = [sys.executable, "-c", "import time; time.sleep(60)", *words.split()]
    started.append(subprocess.Popen(command).pid)
    time.sleep(0.03)  # the kernel dates starts by hundredths of a second
print(*started, flush=True)
time.sleep(60)
"""
RANKS = ("--rank 0", "--rank 1", "--rank 2")


@pytest.fixture
def parents() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def started_by_one_parent(parents: ExitStack, *children: str) -> list[int]:
    """The ids of processes that one parent has started with these arguments, in this order."""
    command = [sys.executable, "-c", _PARENT.format(children=list(children))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    parents.callback(parent.wait)
    parents.callback(os.killpg, parent.pid, signal.SIGKILL)
    assert parent.stdout is not None
    with parent.stdout as stdout:
        return [int(word) for word in stdout.readline().split()]


def test_missing_ranks_are_those_of_the_order_in_which_they_were_started(
    parents: ExitStack,
) -> None:
    first, second, third = started_by_one_parent(parents, *RANKS)
    table = process_table()
    assert sibling_ranks(table, {1: second}, 3) == {0: first, 2: third}
    assert sibling_ranks(table, {0: first, 2: third}, 3) == {1: second}
    assert not sibling_ranks(table, {0: first, 1: second, 2: third}, 3), "nobody is missing"


def test_helper_that_was_started_otherwise_is_no_rank(parents: ExitStack) -> None:
    _, second, third = started_by_one_parent(parents, "--serve", *RANKS[:2])
    assert sibling_ranks(process_table(), {0: second}, 2) == {1: third}


def test_nobody_is_taken_for_a_rank_if_that_is_not_clear(parents: ExitStack) -> None:
    first, second, third = started_by_one_parent(parents, *RANKS)
    (stranger,) = started_by_one_parent(parents, *RANKS[:1])
    table = process_table()
    assert not sibling_ranks(table, {0: first}, 2), "one of them is no rank"
    assert not sibling_ranks(table, {0: first}, 4), "ranks run elsewhere"
    assert not sibling_ranks(table, {0: second, 1: third}, 3), "numbered in another order"
    assert not sibling_ranks(table, {0: first, 1: stranger}, 3), "not of one parent"


def test_sibling_has_issued_nothing_until_the_first_meeting_is_over(parents: ExitStack) -> None:
    """Whether it has loaded torch says nothing: it records from the meeting on."""
    first, second = started_by_one_parent(parents, *RANKS[:2])
    found = StartingRanks()
    found.look({0: first}, 2)
    facts = found.facts(1)
    assert facts is not None
    assert (facts.pid, facts.initialized, facts.is_placed_by_order) == (second, False, True)
    assert found.had_not_joined(1)
    met = StartingRanks()
    met.look({0: first})
    assert not met.pids


_SPAWNED = """
import os, sys, time
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, store):
    if rank == 1:
        {does}
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def spawned(tmp_path: Path, does: str, **extra: str) -> str:
    """The log of a job whose second spawned process does something before it joins."""
    script = tmp_path / "job.py"
    script.write_text(_SPAWNED.format(does=does))
    variables = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path / "runs"), **extra)
    command = [sys.executable, str(script), str(tmp_path / "store")]
    return run_each(command, [variables], timeout_s=120, new=True).output


@pytest.mark.timed
def test_spawned_rank_that_hangs_before_the_first_meeting_is_named(tmp_path: Path) -> None:
    does = f"os.mkfifo({str(tmp_path / 'pipe')!r}); open({str(tmp_path / 'pipe')!r})"
    log = spawned(tmp_path, does, HANGSCOPE_TIMEOUT="3", HANGSCOPE_ON_HANG="kill")
    assert "[hangscope] Probably: Rank 1 never reached init_process_group" in log
    said = " ".join(log.split())
    assert "it is opening a named pipe" in said
    assert "follows from the order in which its parent started its processes" in said
    (journal,) = (tmp_path / "runs").glob("**/*.journal")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert any(e.get("by_order") for e in events if e.get("rank") == 1)


@pytest.mark.timed
@pytest.mark.slow
def test_spawned_rank_that_is_still_busy_is_awaited(tmp_path: Path) -> None:
    does = "end = time.monotonic() + 8\n        while time.monotonic() < end: pass"
    assert "[hangscope]" not in spawned(tmp_path, does, HANGSCOPE_TIMEOUT="2")


@pytest.mark.timed
@pytest.mark.slow
def test_spawned_rank_that_comes_late_is_taken_back(tmp_path: Path) -> None:
    """It comes when it has been reported, however long that takes on a busy machine."""
    journals = f"__import__('pathlib').Path({str(tmp_path)!r}).glob('runs/**/*.journal')"
    reported = f"any('\"verdict\"' in journal.read_text() for journal in {journals})"
    log = spawned(tmp_path, f"while not {reported}: time.sleep(0.5)", HANGSCOPE_TIMEOUT="3")
    assert "[hangscope] Probably: Rank 1 never reached init_process_group" in log
    assert "[hangscope] moving again" in log
    (journal,) = (tmp_path / "runs").glob("**/*.journal")
    events = [json.loads(line)["event"] for line in journal.read_text().splitlines()[1:]]
    assert "unseen" in events
