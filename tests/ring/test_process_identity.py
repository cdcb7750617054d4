"""What identifies a process beyond its pid."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hangscope.ring.process_identity import (
    machine_id,
    pid_namespace,
    start_ticks,
    stat_fields,
)


def test_start_time_identifies_a_process() -> None:
    first_ticks = start_ticks(os.getpid())
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert start_ticks(process.pid) > first_ticks == start_ticks(os.getpid()) > 0
        process.kill()
        process.wait()
        assert start_ticks(process.pid) == 0
        assert stat_fields(process.pid) is None


def test_unreadable_namespace_is_zero() -> None:
    assert pid_namespace() == os.stat("/proc/self/ns/pid").st_ino
    assert pid_namespace("/proc/none") == 0


def test_machine_id_depends_on_boot_and_namespace() -> None:
    names = {machine_id(boot, space) for boot in ("a", "b") for space in (1, 2)}
    assert len(names) == 4
    assert {len(name) for name in names} == {8}
    # Without a namespace the boot stands for itself: it may be such a name already.
    assert machine_id("cafe0123", 0) == "cafe0123"
    assert machine_id("", 7) == ""
