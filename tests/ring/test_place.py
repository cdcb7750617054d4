"""What makes a pid mean one process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hangscope.ring import place


def test_when_a_process_started_tells_it_from_another_one() -> None:
    first_ticks = place.start_ticks(os.getpid())
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert place.start_ticks(process.pid) > first_ticks == place.start_ticks(os.getpid()) > 0
        process.kill()
        process.wait()
        assert place.start_ticks(process.pid) == 0
        assert place.stat_fields(process.pid) is None


def test_a_namespace_that_cannot_be_read_is_none() -> None:
    assert place.pid_namespace() == os.stat("/proc/self/ns/pid").st_ino
    assert place.pid_namespace("/proc/none") == 0


def test_machines_are_told_apart_by_boot_and_namespace() -> None:
    names = {place.machine_id(boot, space) for boot in ("a", "b") for space in (1, 2)}
    assert len(names) == 4
    assert {len(name) for name in names} == {8}
    # Without a namespace the boot stands for itself: it may be such a name already.
    assert place.machine_id("cafe0123", 0) == "cafe0123"
    assert place.machine_id("", 7) == ""
