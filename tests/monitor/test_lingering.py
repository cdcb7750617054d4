"""Programs that have ended while their processes live on: the launcher would wait for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_jobs import environment, ranks

pytestmark = pytest.mark.timed

_JOB = """
import atexit, subprocess, sys, threading, time

def flush():
    threading.Event().wait()

if sys.argv[1] == "flush":
    atexit.register(flush)

import torch, torch.distributed as dist

def feed():
    threading.Event().wait()

def close():
    threading.Event().wait()

def compute():
    end = time.monotonic() + 6
    while time.monotonic() < end:
        sum(range(100_000))

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
rank = dist.get_rank()
if sys.argv[1] == "at work":
    if rank == 0:
        threading.Thread(target=compute).start()
elif sys.argv[1] == "one goes on":
    dist.destroy_process_group()
    if rank == 0:
        subprocess.run(["sleep", "40"], stdout=-3, stderr=-3)
    sys.exit()
elif sys.argv[1] == "flush":
    pass
elif rank == 0:
    threading.Thread(target=feed, name="feeder").start()
else:
    atexit.register(close)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(_JOB)
    return path


def _environment(directory: Path) -> dict[str, str]:
    return environment(
        HANGSCOPE="1",
        HANGSCOPE_TIMEOUT="2",
        HANGSCOPE_ON_HANG="kill",
        HANGSCOPE_DIR=str(directory / "runs"),
    )


def test_reason_for_a_lingering_process_is_reported(script: Path, tmp_path: Path) -> None:
    """A non-daemon thread on one rank, an exit function on the other."""
    result = ranks(script, 2, _environment(tmp_path), arguments=["stay"], timeout_s=90)
    first = result.said[0]
    assert first.startswith("[hangscope] The programs of ranks 0, 1 were over ")
    assert "their processes have not ended: it waits for thread feeder (job.py:13 in feed)" in first
    assert "rank 1: a function that runs at exit is at job.py:16 in close" in result.output
    assert "HANGSCOPE_ON_HANG=kill: ending the job" in result.output


def test_exit_function_from_before_torch_was_imported_is_found(
    script: Path, tmp_path: Path
) -> None:
    """Such functions run last, as that of ``logging`` does: HangScope's own has run by then."""
    result = ranks(script, 2, _environment(tmp_path), arguments=["flush"], timeout_s=90)
    first = result.said[0]
    assert first.startswith("[hangscope] The programs of ranks 0, 1 were over ")
    assert "a function that runs at exit is at job.py:5 in flush" in first


def test_only_remaining_stalled_rank_is_reported(script: Path, tmp_path: Path) -> None:
    """All others have ended, and it waits for an idle program."""
    result = ranks(script, 2, _environment(tmp_path), arguments=["one goes on"], timeout_s=90)
    first = result.said[0]
    assert first.startswith("[hangscope] Rank 0 is all that is left of the job, and has not moved")
    assert "job.py:32 in <module>: the program that it started has not ended (sleep 40" in first
    assert "HANGSCOPE_ON_HANG=kill: ending the job" in result.output


def test_busy_thread_at_exit_is_not_reported(script: Path, tmp_path: Path) -> None:
    """Three times as long as a collective may wait."""
    result = ranks(script, 2, _environment(tmp_path), arguments=["at work"], timeout_s=90)
    assert result.returncode == 0, result.output
    assert not result.said
