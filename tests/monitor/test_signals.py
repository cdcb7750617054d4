"""Whom HangScope signals: what a file claims never suffices."""

from __future__ import annotations

import ast
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.monitor import local_ranks
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.process_identity import start_ticks
from hangscope.ring.reader import RingReader
from hangscope.ring.stack_requests import STACK_SIGNALS, stacks_file
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.processes import signals
from hangscope.trace.processes.signals import DescendsFrom, launcher_of, target_of
from hangscope.trace.rings.facts import writer_of
from tests.real_jobs import environment
from tests.ring_processes import bystander, claimed_ring, ring_process
from tests.waiting import until

PACKAGE = Path(__file__).parents[2] / "hangscope"
_SENDS = {
    "kill",
    "killpg",
    "pidfd_send_signal",
    "pthread_kill",
    "tgkill",
    "send_signal",
    "terminate",
}
_OF_THEIR_CHILD = {
    # A `Popen` object, or one of multiprocessing, signals nothing but its own child, which nobody
    # else can have waited for.
    ("cli/run.py", "process.send_signal"),
    ("monitor/node_reports.py", "_process.kill"),
    ("demos/launch.py", "process.kill"),
    ("trace/loading/parallel.py", "process.kill"),
    ("trace/loading/parallel.py", "worker.kill"),
    ("monitor/hardware/evidence.py", "child.kill"),
    ("monitor/hardware/errors.py", "_child.kill"),
    # Methods of `Target` and of the module itself.
    ("monitor/watch.py", "_ranks.kill"),
}


class Anything:
    """Evidence that holds for every process."""

    def holds(self, pid: int) -> bool:
        return True


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with bystander() as process:
        yield process
        time.sleep(0.1)
        assert process.poll() is None, "it was signalled"


def test_signals_are_sent_in_one_place_only() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in _SENDS:
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                found.add((name, f"{owner}.{node.attr}"))
    elsewhere = {one for one in found if one[0] != "trace/processes/signals.py"}
    assert elsewhere == _OF_THEIR_CHILD
    made = [p for p in PACKAGE.rglob("*.py") if "Target(" in p.read_text()]
    assert [path.name for path in made] == ["signals.py"]


def _forged(folder: Path, pid: int, number: int = signal.SIGKILL) -> None:
    """Rings of a job that hangs, of which one names a process that has nothing to do with it."""
    claims = [claimed_ring(folder, rank, pid) for rank in range(2)]
    for claim, op in zip(claims, ("all_reduce", "broadcast"), strict=True):
        claim.issue(claim.join("0", "default_pg", range(2)), op)
        claim.ring.put_u4("fault_signal", number)
        claim.ring.put_i8("watcher_thread", pid)
        claim.ring.put_i8("heartbeat_ns", time.time_ns() - 60 * 10**9)


@pytest.mark.parametrize(
    "command",
    [["analyze", "--ask-stacks"], ["tui", "--ask-stacks", "--screenshot", "still.svg"]],
    ids=" ".join,
)
def test_commands_do_not_signal_what_a_forged_ring_names(
    tmp_path: Path, command: list[str]
) -> None:
    """The process that it names only reads the rings, as any other command would."""
    reads = (
        "import mmap, sys, time; sys.stdin.readline()\n"
        "files = [open(path, 'rb') for path in sys.argv[1:]]\n"
        "maps = [mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) for f in files]\n"
        "print(flush=True); time.sleep(60)"
    )
    rings = [str(tmp_path / f"rank_{rank}.ring") for rank in range(2)]
    with subprocess.Popen(
        [sys.executable, "-c", reads, *rings], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as victim:
        _forged(tmp_path, victim.pid)
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(b"\n")
        victim.stdin.flush()
        victim.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-m", "hangscope", *command, str(tmp_path)],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert victim.poll() is None, "it was signalled"
        victim.kill()
    assert done.returncode in (0, 1), done.stderr


def test_monitor_does_not_end_what_a_forged_ring_names(
    tmp_path: Path, victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ranks, "KILL_GRACE_S", 0.3)
    _forged(tmp_path, victim.pid)
    out = io.StringIO()
    Monitor(
        MonitorConfig(tmp_path, RunKey("live", 0), 2, timeout_s=2.0, on_hang="kill"),
        out=out,
        keep_going=lambda: "left alone" not in out.getvalue(),
    ).follow()
    assert f"left alone: process {victim.pid}" in out.getvalue()


def test_writer_of_another_ring_is_no_target(tmp_path: Path) -> None:
    """A copy of a ring names the same process, but is not the file that it writes."""
    (tmp_path / "copy").mkdir()
    with ring_process(tmp_path, 0) as process:
        ring = tmp_path / "rank_0.ring"
        copied = tmp_path / "copy" / ring.name
        copied.write_bytes(ring.read_bytes())
        for path, is_its_own in ((ring, True), (copied, False)):
            reader = RingReader(path)
            found = target_of(process.pid, start_ticks(process.pid), [writer_of(reader)])
            assert (found is not None) is is_its_own
        assert not writer_of(RingReader(ring)).holds(os.getpid()), "it only reads the file"


def test_stacks_are_asked_for_only_by_the_signal_that_is_handled(tmp_path: Path) -> None:
    with ring_process(tmp_path, 0, act="answers") as answers, ring_process(tmp_path, 1) as silent:
        for process, rank in ((answers, 0), (silent, 1)):
            reader = RingReader(tmp_path / f"rank_{rank}.ring")
            target = target_of(process.pid, start_ticks(process.pid), [writer_of(reader)])
            assert target is not None
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, STACK_SIGNALS[-2], 0):
                assert not target.ask_for_stacks(process.pid, number)
            assert not target.ask_for_stacks(os.getpid(), STACK_SIGNALS[-1]), "another's thread"
            assert target.ask_for_stacks(process.pid, STACK_SIGNALS[-1]) is (process is answers)
            target.close()
        written = Path(stacks_file(str(tmp_path / "rank_0.ring")))
        until(lambda: written.stat().st_size)
        assert "most recent call first" in written.read_text()
        assert [answers.poll(), silent.poll()] == [None, None]


def test_live_run_asks_the_rank_itself(tmp_path: Path) -> None:
    with ring_process(tmp_path, 0, act="answers"):
        run = LiveRun(tmp_path)
        run.look()
        assert run.ask_for_stacks(lambda facts: True) == 1
        assert run.ask_for_stacks(lambda facts: True) == 0, "once per stall"
        run.close()


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_start_time_and_user_must_agree(monkeypatch: pytest.MonkeyPatch, has_pidfds: bool) -> None:
    if not has_pidfds:
        monkeypatch.setattr(signals, "_pidfd", lambda number, flags=0: -1)
    with bystander() as process:
        started = start_ticks(process.pid)
        assert target_of(process.pid, started + 1, [Anything()]) is None
        assert target_of(1, 0, [Anything()]) is None
        assert target_of(os.getpid(), 0, [Anything()]) is None
        assert target_of(process.pid, started, []) is None
        target = target_of(process.pid, started, [Anything()])
        assert target is not None
        assert target.send(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
        assert not target.send(signal.SIGTERM)
        target.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_process_of_another_user_is_no_target() -> None:
    with bystander(user=65534) as process:
        assert target_of(process.pid, 0, [Anything()]) is None


def test_processes_of_one_launcher() -> None:
    shell = "sh -c 'sleep 60; true' & sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        direct = int(launcher.stdout.readline())
        family = DescendsFrom(frozenset({(launcher.pid, start_ticks(launcher.pid))}))
        with bystander() as other:
            assert launcher_of([direct]) == family
            assert launcher_of([]) == DescendsFrom(frozenset())
            assert family.holds(direct)
            assert not family.holds(other.pid)
            assert not DescendsFrom(frozenset({(launcher.pid, 1)})).holds(direct), "reused pid"
            assert not DescendsFrom(frozenset({(1, start_ticks(1))})).holds(direct), "init"
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for pid in map(int, children):
            target = target_of(pid, 0, [family])
            assert target is not None
            assert target.send(signal.SIGKILL)
            target.close()
