"""Ranks that have a process but do not record yet are found, watched and told apart from lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hangscope.monitor import starting_ranks
from hangscope.monitor.starting_ranks import StartingRanks
from tests.real_jobs import environment, ranks

pytestmark = pytest.mark.timed

SLEEPS = "import time; time.sleep(60)"
WORKS = "while True: pass"
WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def launched(processes: ExitStack, rank: int, code: str = SLEEPS, **variables: str) -> int:
    """Start a process as a launcher would; returns its id."""
    place = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_PORT": f"{os.getpid()}", **variables}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env={**environment(), **place}, start_new_session=True)
    processes.callback(process.wait)
    processes.callback(os.killpg, process.pid, signal.SIGKILL)
    return process.pid


def looked(recorded: dict[int, int], times: int = 1) -> StartingRanks:
    """After so many looks."""
    found = StartingRanks()
    for number in range(times):
        if number:
            time.sleep(starting_ranks.LOOK_S)
        found.look(recorded)
    return found


def test_rank_without_a_ring_is_found(processes: ExitStack) -> None:
    recorded = launched(processes, 0)
    starting = launched(processes, 2)
    launched(processes, 0)  # a helper of the recorded rank has inherited its variables
    launched(processes, 1, MASTER_PORT="1")  # of another job
    launched(processes, 1, WORLD_SIZE="8")
    launched(processes, 1, TORCHELASTIC_RESTART_COUNT="1")
    launched(processes, 1, GROUP_RANK="1")  # of another node, which happens to be this machine
    found = looked({0: recorded})
    assert found.pids == {2: starting}
    facts = found.facts(2)
    assert facts is not None
    assert (facts.rank, facts.pid, facts.alive, facts.initialized) == (2, starting, True, False)
    assert found.had_not_joined(2)


def test_rank_that_has_loaded_torch_may_take_part_unrecorded(
    processes: ExitStack, tmp_path: Path
) -> None:
    recorded = launched(processes, 0)
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"x")
    maps = f"import mmap; f = open({str(library)!r}); m = mmap.mmap(f.fileno(), 0, access=1)"
    launched(processes, 1, f"{maps}; {SLEEPS}")
    launched(processes, 2, WRAPPER.format(f"{maps}; {SLEEPS}"))
    time.sleep(1.0)  # until they have started
    found = looked({0: recorded})
    for rank in (1, 2):
        assert found.facts(rank) is None
        assert not found.had_not_joined(rank)
    unmet = StartingRanks()
    unmet.look({0: recorded}, 4)
    facts = unmet.facts(1)
    assert facts is not None  # before the first meeting, nobody takes part
    assert facts.alive
    assert unmet.had_not_joined(1)


def test_first_of_several_processes_of_a_rank_is_the_rank(processes: ExitStack) -> None:
    recorded = launched(processes, 0)
    outer = launched(processes, 1, WRAPPER.format(SLEEPS))
    assert looked({0: recorded}).pids == {1: outer}


def test_importing_is_busy_and_sleeping_is_not(processes: ExitStack) -> None:
    recorded = launched(processes, 0, WORKS)
    launched(processes, 1)
    time.sleep(1.0)  # until it has started
    assert not looked({0: recorded}, times=2).are_busy
    launched(processes, 2, WORKS)
    assert looked({0: recorded}, times=2).are_busy


def test_rank_that_has_ended_has_no_facts(processes: ExitStack) -> None:
    recorded, starting = launched(processes, 0), launched(processes, 1)
    found = looked({0: recorded})
    os.kill(starting, signal.SIGKILL)
    os.waitid(os.P_PID, starting, os.WEXITED | os.WNOWAIT)
    assert found.facts(1) is None


_JOB = """
import os, signal, time
if os.environ["RANK"] == "{rank}":
    {does}
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def log_of(tmp_path: Path, rank: int, does: str, **extra: str) -> str:
    """The job's log if a rank does something else before it imports torch."""
    script = tmp_path / "job.py"
    script.write_text(_JOB.format(rank=rank, does=does))
    variables = environment(
        **{"HANGSCOPE_TIMEOUT": "2", **extra},
        HANGSCOPE="1",
        HANGSCOPE_ON_HANG="kill",
        HANGSCOPE_DIR=str(tmp_path / "runs"),
    )
    return ranks(script, 2, variables, new=True).output


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rank_that_hangs_before_it_imports_torch_is_named(tmp_path: Path, rank: int) -> None:
    """Also if it is local rank 0, which would have started the monitor."""
    log = log_of(tmp_path, rank, "time.sleep(300)")
    assert f"[hangscope] Rank {rank} never reached init_process_group" in log
    assert "py-spy dump shows it even before torch is imported" in " ".join(log.split())


def test_rank_that_is_killed_before_it_imports_torch_has_crashed(tmp_path: Path) -> None:
    """The journal tells it from a rank whose ring was lost, which may have waited itself."""
    until = f"while not list(__import__('pathlib').Path({str(tmp_path)!r}).glob('*/*.ring'))"
    does = f"{until}: time.sleep(0.1)\n    time.sleep(6); os.kill(os.getpid(), 9)"
    log = log_of(tmp_path, 1, does, HANGSCOPE_TIMEOUT="60")
    assert "[hangscope] Rank 1 crashed: killed by SIGKILL" in log


def test_rank_that_imports_slowly_is_awaited(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, "end = time.monotonic() + 5\n    while time.monotonic() < end: pass")
    assert "[hangscope]" not in log
