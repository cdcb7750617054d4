"""``hangscope run -- CMD``: the command's own status, and the verdict once, in its log."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.load import load_trace
from tests.real_jobs import ROOT, environment
from tests.waiting import until

pytestmark = pytest.mark.timed

TIMEOUT_S = "30"
"""Neither a crash nor a healthy end needs the timeout. A short one would really be exceeded if a
loaded machine starts the ranks some seconds apart and the first of them wait for the last."""


_JOB = """
import os, signal, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    if step == 2 and dist.get_rank() == 1:
        if sys.argv[1] == "killed":
            time.sleep(4)  # how it ends is only seen if the monitor has found it before
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "asleep":
            time.sleep(3600)
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def run(
    directory: Path, *words: str, options: Sequence[str] = ("--timeout", TIMEOUT_S)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "hangscope", "run", *options, "--dir", str(directory),
            "--", *words,
        ],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def run_job(
    tmp_path: Path, fault: str, options: Sequence[str] = ("--timeout", TIMEOUT_S)
) -> subprocess.CompletedProcess[str]:
    """A job of two ranks under torchrun."""
    script = tmp_path / "job.py"
    script.write_text(_JOB)
    return run(
        tmp_path / "run", sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node=2", str(script), fault, options=options,
    )  # fmt: skip


def test_exit_status_is_the_commands(tmp_path: Path) -> None:
    assert run(tmp_path / "a", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    killed = "import os; os.kill(os.getpid(), 9)"
    assert run(tmp_path / "b", sys.executable, "-c", killed).returncode == 128 + 9


def test_run_without_records_keeps_latest(tmp_path: Path) -> None:
    def run_here(*words: str) -> int:
        command = [sys.executable, "-m", "hangscope", "run", "--", *words]
        told = {k: v for k, v in environment().items() if k != "HANGSCOPE_DIR"}
        done = subprocess.run(
            command, cwd=tmp_path, env=told, capture_output=True, timeout=120, check=False
        )
        return done.returncode

    runs = tmp_path / "hangscope-runs"
    assert run_here("true") == 0
    assert not runs.exists()
    (runs / "former").mkdir(parents=True)
    (runs / "latest").symlink_to("former")
    assert run_here("no-such-command") == 2
    assert (runs / "latest").resolve() == (runs / "former").resolve()
    assert run_here("sh", "-c", "touch $HANGSCOPE_DIR/kept") == 0
    assert (runs / "latest" / "kept").exists()


@pytest.mark.slow
def test_crash_is_reported_once(tmp_path: Path) -> None:
    result = run_job(tmp_path, "killed")
    assert result.returncode == 1
    assert result.stderr.count("[hangscope] Rank 1 crashed: killed by SIGKILL") == 1
    assert result.stderr.count("[hangscope] more:") == 1


@pytest.mark.slow
def test_healthy_job_gets_no_report(tmp_path: Path) -> None:
    result = run_job(tmp_path, "none")
    assert result.returncode == 0
    assert "[hangscope]" not in result.stderr
    assert len(list((tmp_path / "run").glob("rank_*.ring"))) == 2


def test_hung_job_is_killed_on_request(tmp_path: Path) -> None:
    result = run_job(tmp_path, "asleep", options=("--timeout", "5", "--on-hang", "kill"))
    assert result.returncode != 0
    verdict = result.stderr.index("never joined all_reduce")
    assert verdict < result.stderr.index("[hangscope] HANGSCOPE_ON_HANG=kill: ending the job")
    assert result.stderr.count("[hangscope] more:") == 1, "that they were ended is no new cause"
    after = diagnose(load_trace([tmp_path / "run"]))
    assert (after.verdict.value, after.culprits) == ("missing_rank", (1,)), "nor is it afterwards"
    (journal,) = (tmp_path / "run").glob("*.journal")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    exits = [event for event in events if event.get("event") == "exit"]
    assert len(exits) == 2
    assert all(event["by_launcher"] for event in exits)


_RANKS = """
import os, sys, time
from pathlib import Path
from tests.ring_processes import ring_process
folder = Path(os.environ["HANGSCOPE_DIR"])
with ring_process(folder, 0), ring_process(folder, 1, "broadcast"):
    (folder / "pid").write_text(str(os.getpid()))
    while not (folder / "end").exists():
        time.sleep(0.1)
"""


def test_a_monitor_that_dies_is_started_again(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-m", "hangscope", "run", "--timeout", "4", "--dir", str(folder)]
    command += ["--", sys.executable, "-c", _RANKS]
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=environment(), cwd=ROOT, stderr=out) as process,
    ):
        try:
            until(lambda: (folder / "pid").exists(), seen=log.read_text)
            process.kill()
            process.wait(60)
            until(lambda: "it is started again" in log.read_text(), seen=log.read_text)
            until(lambda: "more: hangscope analyze" in log.read_text(), seen=log.read_text)
        finally:
            (folder / "end").touch()
    until(lambda: not _running_beside(folder), seen=log.read_text)
    said = log.read_text()
    assert "broadcast" in said
    assert said.count("started again") == 1
    assert said.count("more: hangscope analyze") == 1


def _running_beside(folder: Path) -> list[int]:
    """The processes that `hangscope run` has left for this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
