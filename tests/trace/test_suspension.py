"""What suspends a process: a debugger, a frozen control group, a core dump being written."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.ring import process_identity
from hangscope.trace.processes.process import ProcessLook, look_here
from hangscope.trace.processes.suspension import (
    has_execed,
    is_dumping_core,
    is_frozen,
    tracer_of,
)
from tests.waiting import until

ATTACH, DETACH = 16, 17
FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def _look(pid: int, wanted: str) -> ProcessLook:
    look = functools.partial(look_here, pid, process_identity.start_ticks(pid))
    until(lambda: look().state == wanted, 10.0, every_s=0.01, seen=look)
    return look()


def test_tracer_of_a_process_is_named(sleeper: int) -> None:
    assert _look(sleeper, "sleeping").held_by is None
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(ATTACH, sleeper, None, None):
        pytest.skip("tracing is not allowed here")
    try:
        own = Path("/proc/self/comm").read_text().strip()
        assert _look(sleeper, "stopped").held_by == f"{own} (pid {os.getpid()})"
    finally:
        os.waitpid(sleeper, 0)
        ptrace(DETACH, sleeper, None, None)
    assert tracer_of(sleeper) is None


def test_process_stopped_by_a_signal_has_no_holder(sleeper: int) -> None:
    os.kill(sleeper, 19)
    assert _look(sleeper, "stopped").held_by is None


def test_frozen_control_group_is_seen_until_it_thaws(sleeper: int) -> None:
    group = FREEZER / f"hangscope_test_{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(sleeper))
    except OSError:
        pytest.skip("no control group of v1 can be made here")
    try:
        assert not is_frozen(sleeper)
        (group / "freezer.state").write_text("FROZEN")
        assert is_frozen(sleeper)
        (group / "freezer.state").write_text("THAWED")
        assert not is_frozen(sleeper)
    finally:
        (group / "freezer.state").write_text("THAWED")
        (FREEZER / "cgroup.procs").write_text(str(sleeper))
        group.rmdir()


@pytest.mark.parametrize("root", ["", "unified"])
@pytest.mark.parametrize("frozen", [False, True])
def test_unified_cgroup_hierarchy(root: str, frozen: bool, tmp_path: Path) -> None:
    """As the kernel's documentation of version 2 shows the files."""
    own, group = tmp_path / "proc" / "7", tmp_path / "groups" / root / "pods" / "job"
    own.mkdir(parents=True)
    group.mkdir(parents=True)
    (own / "cgroup").write_text("1:name=systemd:/init\n0::/pods/job\n")
    (group / "cgroup.events").write_text(f"populated 1\nfrozen {int(frozen)}\n")
    assert is_frozen(7, tmp_path / "proc", tmp_path / "groups") is frozen


def test_process_that_writes_its_core_dump_is_seen(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for told in (0, 1):
        (tmp_path / "7" / "status").write_text(
            f"Name:\tpython\nState:\tD (disk sleep)\nTracerPid:\t0\nCoreDumping:\t{told}\n"
        )
        assert is_dumping_core(7, tmp_path) is bool(told)
        assert tracer_of(7, tmp_path) is None


def test_process_that_replaced_its_program_no_longer_has_its_ring(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.ring"
    path.write_bytes(bytes(4096))
    code = (
        "import mmap, os, sys; m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096); "
        "print(1, flush=True); sys.stdin.readline(); os.execvp('sleep', ['sleep', '60'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "1\n"
            assert not has_execed(process.pid, str(path))
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: has_execed(process.pid, str(path)), 10.0)
            assert not has_execed(process.pid, str(tmp_path / "no.ring"))
        finally:
            process.kill()


def test_nonexistent_process_has_no_holder(tmp_path: Path) -> None:
    assert not is_frozen(7, tmp_path, tmp_path)
    assert not is_dumping_core(7, tmp_path)
    assert tracer_of(7, tmp_path) is None
