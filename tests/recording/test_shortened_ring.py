"""A ring that somebody shortens or overwrites while the job runs does not harm the job."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hangscope.recording.compiled.build import build  # noqa: E402
from tests.real_jobs import run  # noqa: E402
from tests.recording.launcher import recording  # noqa: E402
from tests.recording.test_compiled import with_compiled  # noqa: E402

# As in test_compiled: the compiler may take long.
pytestmark = [pytest.mark.xdist_group("compiled"), pytest.mark.timeout(900)]

JOB = """
import os, signal, sys, time, faulthandler
import torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import HashStore
{before}
dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
value = torch.ones(4)
def steps(count):
    for _ in range(count):
        dist.all_reduce(value)
steps(50)
time.sleep(1.2)
path = os.environ["HANGSCOPE_DIR"] + "/rank_0.ring"
os.truncate(path, {left})
{after}
steps(200)
print("RESULT", value.tolist(), flush=True)
"""
PLACE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
SAID = "recording stopped, the job goes on: RingLostError: somebody has shortened the ring's file"


@pytest.fixture(scope="module")
def compiled_hot_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("compiled")).parent


def job(before: str = "", after: str = "", left: int = 0) -> list[str]:
    return [sys.executable, "-c", JOB.format(before=before, after=after, left=left)]


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4096, 600_000])
def test_with_the_compiled_part_nothing_happens_to_the_job(
    compiled_hot_path: Path, tmp_path: Path, left: int
) -> None:
    """Stores follow at once; without the handler the first of them ends the process."""
    env = with_compiled(tmp_path, compiled_hot_path, **PLACE)
    done = run(job(after="steps(200); time.sleep(1.5)", left=left), env, timeout_s=120)
    assert done.returncode == 0, done.output
    assert "RESULT [1.0, 1.0, 1.0, 1.0]" in done.output
    assert done.output.count(SAID) == 1


def test_without_it_the_watcher_is_in_time_for_what_comes_later(tmp_path: Path) -> None:
    env = recording(tmp_path, **PLACE)
    done = run(job(after="time.sleep(1.5)"), env, timeout_s=120)
    assert done.returncode == 0, done.output
    assert "RESULT" in done.output
    assert done.output.count(SAID) == 1


OWN_FAULT = """
import mmap, tempfile
file = tempfile.TemporaryFile(); file.truncate(4096)
own = mmap.mmap(file.fileno(), 4096); file.truncate(0)
own[0] = 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "later"),
    [("", ""), ("faulthandler.enable()", ""), ("", "faulthandler.enable(); time.sleep(1.2)")],
    ids=["no handler", "installed before", "installed later"],
)
def test_any_other_fault_ends_the_job_as_it_would_have(
    compiled_hot_path: Path, tmp_path: Path, before: str, later: str
) -> None:
    env = with_compiled(tmp_path, compiled_hot_path, **PLACE)
    done = run(job(before, later + OWN_FAULT, left=6_000_000 * 2), env, timeout_s=120)
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.output) == bool(before or later)


@pytest.mark.slow
def test_a_signal_that_was_sent_reaches_the_jobs_handler(
    compiled_hot_path: Path, tmp_path: Path
) -> None:
    env = with_compiled(tmp_path, compiled_hot_path, **PLACE)
    handler = "signal.signal(signal.SIGBUS, lambda *_: print('HEARD', flush=True)); time.sleep(1.2)"
    after = f"{handler}; os.kill(os.getpid(), signal.SIGBUS)"
    done = run(job(after=after, left=6_000_000 * 2), env, timeout_s=120)
    assert done.returncode == 0, done.output
    assert done.output.count("HEARD") == 1
