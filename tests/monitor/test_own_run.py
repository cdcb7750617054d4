"""A monitor follows the run that it was started for; what else lies there changes no verdict."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.monitor.journal import Journal
from hangscope.monitor.processes import ProcessEnd
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.process_identity import boot_id, machine_id, pid_namespace
from hangscope.ring.run_secret import LAUNCH_VARIABLE, VARIABLE, RunSecret
from hangscope.ring.stack_requests import stacks_file
from hangscope.trace.external_reports.journal import line_of
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.live.own_run import OwnRun
from tests.live_rings import RingRank
from tests.real_jobs import ROOT, environment
from tests.ring_processes import bystander, claimed_ring, ring_process
from tests.waiting import until

_KEY = RunKey("live", 0)
_OTHER = 65534


@pytest.fixture(params=["", "secret"])
def secret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    return str(request.param)


def _own(secret: str, *, shared: bool = False) -> OwnRun:
    return OwnRun(RunSecret(secret, shared))


def _plant(folder: Path, name: str, pid: int, *, run_id: str = "live", rank: int = 1) -> None:
    """A ring that claims to be a newer one of a rank, in which it issues something else."""
    (folder / "made").mkdir()
    ring = claimed_ring(folder / "made", rank, pid, run_id=run_id)
    ring.issue(ring.join("0", "default_pg", range(2)), "barrier")
    ring.ring.put_i8("created_ns", time.time_ns() + 10**9)
    (folder / "made" / f"rank_{rank}.ring").rename(folder / name)
    (folder / "made").rmdir()


def _verdict(folder: Path, secret: str, key: RunKey | None = _KEY) -> str:
    out = io.StringIO()
    config = MonitorConfig(folder, key, 2, timeout_s=2.0, own=_own(secret))
    deadline_s = time.monotonic() + 60
    Monitor(
        config,
        out=out,
        keep_going=lambda: "more:" not in out.getvalue() and time.monotonic() < deadline_s,
    ).follow()
    return out.getvalue()


@pytest.mark.parametrize("run_id", ["live", "newer"])
def test_planted_ring_changes_no_verdict(tmp_path: Path, secret: str, run_id: str) -> None:
    """It names a living process that has nothing to do with the job."""
    environ = {LAUNCH_VARIABLE: secret}
    with (
        ring_process(tmp_path, 0, **environ),
        ring_process(tmp_path, 1, "broadcast", **environ),
        bystander() as other,
    ):
        _plant(tmp_path, "rank_1.newer.ring", other.pid, run_id=run_id)
        said = _verdict(tmp_path, secret, _KEY if run_id == "live" else None)
    assert "broadcast" in said
    assert "barrier" not in said


@pytest.mark.parametrize("machine", ["this", "another"])
@pytest.mark.parametrize("copied", [False, True])
def test_planted_journal_changes_no_verdict(
    tmp_path: Path, secret: str, machine: str, copied: bool
) -> None:
    """It says that a rank was killed; also with the sealed head of another journal."""
    name = "monitor_node0.live.0.1.journal"
    here = machine_id(boot_id(), pid_namespace()) if machine == "this" else "0badcafe"
    head = {"hangscope": "journal/1", "run_id": "live", "attempt": 0, "host": "x", "machine": here}
    sealing = RunSecret(secret if copied else "a guess")
    environ = {LAUNCH_VARIABLE: secret}
    with (
        ring_process(tmp_path, 0, **environ),
        ring_process(tmp_path, 1, **environ) as victim,
    ):
        killed = {"event": "exit", "rank": 1, "pid": victim.pid, "at_ns": 1, "signal": 9}
        lines = line_of(head, "another.journal" if copied else name, sealing)
        (tmp_path / name).write_bytes(lines + line_of(killed, name, RunSecret("a guess")))
        found = LiveRun(tmp_path, _KEY, own=_own(secret)).look()
        believed = LiveRun(tmp_path, _KEY).look()
    assert found.ranks[1].exit is None
    assert diagnose(found).verdict is not Verdict.RANK_CRASHED
    assert diagnose(believed).verdict is Verdict.RANK_CRASHED, "it would be believed without a seal"


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_journals_and_stacks_through_links_are_not_read(tmp_path: Path, kind: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    own = _own("secret")
    head = {"hangscope": "journal/1", "run_id": "live", "attempt": 0}
    elsewhere.write_bytes(line_of(head, "x.journal", RunSecret("secret")))
    (os.symlink if kind == "link" else os.link)(elsewhere, run / "x.journal")
    with pytest.raises(OSError):
        own.journal(run, "x.journal")
    ring = RingRank(run, 0, 2)
    stacks = tmp_path / "stacks"
    stacks.write_text('Thread 0x1 (most recent call first):\n  File "secret.py", line 1 in f\n')
    beside = Path(stacks_file(str(ring.ring.path)))
    (os.symlink if kind == "link" else os.link)(stacks, beside)
    assert "secret.py" not in str(LiveRun(run).look().ranks[0].threads)
    beside.unlink()
    beside.write_bytes(stacks.read_bytes())
    assert "secret.py" in str(LiveRun(run).look().ranks[0].threads), "its own file is read"


def test_the_journal_of_a_monitor_that_died_counts_for_the_next_one(tmp_path: Path) -> None:
    own = _own("")
    journal = Journal(tmp_path, _KEY, own.of_journals)
    journal.exit(
        ProcessEnd(1, 7, 1, signal=9), oom=False, by_launcher=False, untold=None, told=[],
        recorded=True, by_order=False,
    )  # fmt: skip
    with ring_process(tmp_path, 0):
        assert LiveRun(tmp_path, _KEY, own=own).look().ranks[1].exit is not None
        assert 1 not in LiveRun(tmp_path, _KEY, own=_own("")).look().ranks


def test_copy_of_a_ring_changes_no_verdict(tmp_path: Path, secret: str) -> None:
    environ = {LAUNCH_VARIABLE: secret}
    with (
        ring_process(tmp_path, 0, **environ) as first,
        ring_process(tmp_path, 1, "broadcast", **environ),
    ):
        (tmp_path / "x.ring").write_bytes((tmp_path / "rank_0.ring").read_bytes())
        run = LiveRun(tmp_path, _KEY, own=_own(secret))
        run.look()
        assert sorted(ring.reader.path.name for ring in run.refresh()) == [
            "rank_0.ring",
            "rank_1.ring",
        ]
        assert run.look().ranks[0].pid == first.pid
        run.close()


def test_ring_of_a_program_that_replaced_the_rank_is_followed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tests.ring_processes import claimed_ring\n"
        "claimed_ring(Path(sys.argv[1]), 0, os.getpid())\n"
        "os.environ['HANGSCOPE_INTERNAL_OWNER'] = str(os.getpid())\n"
        "os.execvp('sleep', ['sleep', '60'])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as process:
        command = Path(f"/proc/{process.pid}/cmdline")
        until(lambda: command.read_bytes().startswith(b"sleep"))
        assert LiveRun(tmp_path, _KEY, own=_own("")).look().ranks[0].pid == process.pid
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_files_of_other_users_and_links_are_not_followed(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 0)
    with ring_process(tmp_path, 0), ring_process(tmp_path, 1):
        (tmp_path / "elsewhere").mkdir()
        os.chown(tmp_path / "rank_1.ring", _OTHER, _OTHER)
        (tmp_path / "rank_0.ring").rename(tmp_path / "elsewhere" / "x.ring")
        (tmp_path / "rank_0.ring").symlink_to(tmp_path / "elsewhere" / "x.ring")
        run = LiveRun(tmp_path, _KEY, own=_own(""))
        assert run.refresh() == []
        assert len(run.look().warnings) == 2
        assert sorted(LiveRun(tmp_path).look().ranks) == [0, 1], "for analysis all are read"


@pytest.mark.parametrize("here", ["one node", "several nodes"])
@pytest.mark.parametrize("known", ["launch only", "on all nodes"])
def test_rings_of_other_nodes(tmp_path: Path, known: str, here: str) -> None:
    """They count where ranks are elsewhere; with a secret of the whole job, only with its seal."""
    own = _own("secret", shared=known == "on all nodes")
    elsewhere = {"pid": 7, "boot_id": "another", "pid_namespace": 9}
    sealed = own.secret.seal("live", 0, "another", 9, 7, 5)
    with ring_process(tmp_path, 0, **{LAUNCH_VARIABLE: "secret"}):
        ring = tmp_path / "rank_0.ring"
        if here == "several nodes":
            from hangscope.ring import layout

            with ring.open("r+b") as file:
                file.seek(layout.header_offset("local_world_size"))
                file.write((1).to_bytes(4, "little"))
        RingRank(tmp_path, 1, 2, **elsewhere)
        (tmp_path / "rank_1.ring").rename(tmp_path / "rank_1.a.ring")
        RingRank(tmp_path, 1, 3, start_ticks=5, seal=sealed, **elsewhere)
        run = LiveRun(tmp_path, None, own=own)
        found = {ring.reader.path.name for ring in run.refresh()}
        expected = {"rank_0.ring", "rank_1.ring"}
        assert found == expected
        (tmp_path / "rank_1.ring").unlink()
        run = LiveRun(tmp_path, None, own=own)
        left = {ring.reader.path.name for ring in run.refresh()} - {"rank_0.ring"}
        counts = here == "several nodes" and known == "launch only"
        assert left == ({"rank_1.a.ring"} if counts else set())


def test_run_command_follows_what_it_has_started(tmp_path: Path) -> None:
    """Not the newest ring in the directory, which claims to be of a rank that has crashed."""
    run = tmp_path / "run"
    run.mkdir()
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, time; from pathlib import Path\n"
        "from tests.ring_processes import ring_process\n"
        "folder = Path(sys.argv[1])\n"
        "with ring_process(folder, 0), ring_process(folder, 1, 'broadcast'):\n"
        "    time.sleep(8)\n"
    )
    dead = RingRank(run, 0, 4, pid=99_999_999, run_id="evil")
    dead.issue(dead.join("0", "default_pg", range(4)), "barrier")
    dead.ring.put_i8("created_ns", time.time_ns() + 10**12)
    (run / "rank_0.ring").rename(run / "rank_0.evil.ring")
    done = subprocess.run(
        [sys.executable, "-m", "hangscope", "run", "--dir", str(run), "--timeout", "2", "--",
         sys.executable, str(script), str(run)],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "broadcast" in done.stderr
    assert "barrier" not in done.stderr
