"""Opens pidfds of the ranks' processes while the monitor is still importing.

On a loaded machine the monitor needs a second or two before it can read rings. A rank that ends in
that time stays a zombie only until its launcher reaps it; after that, only the holder of a pidfd
opened earlier can learn how it ended. Imports nothing but the standard library, to start at once.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from pathlib import Path

from hangscope.monitor.processes import oom_kills
from hangscope.ring.run_directory import read_start

MAGIC = b"HSRING\x00\x01"
PID = struct.Struct("<i")
PID_OFFSET = 920
"""Offset of the process id in a ring's header; a test checks it against the layout."""
LOOK_S = 0.02


class EarlyWatch:
    """Watches every process that has a ring in ``directory``, until `take` is called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._oom_kills = oom_kills()
        self._descriptors: dict[int, int] = {}
        self._ended_ns: dict[int, int] = {}
        self._poll = select.poll()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="early-watch", daemon=True)
        self._thread.start()

    def take(self) -> tuple[dict[int, int], dict[int, int], int]:
        """Stop watching and hand over what was collected.

        Returns open pidfds by process id, end times (ns) of the processes that ended, and the value
        of `oom_kills` when the watch began.
        """
        self._stop.set()
        self._thread.join()
        return self._descriptors, self._ended_ns, self._oom_kills

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._look()
            except OSError:
                continue

    def _look(self) -> None:
        for entry in os.scandir(self._directory):
            if entry.name.endswith(".ring"):
                pid = pid_of(entry.path)
                if pid > 0 and pid not in self._descriptors:
                    self._open(pid)
        pids = {descriptor: pid for pid, descriptor in self._descriptors.items()}
        for descriptor, _ in self._poll.poll(0):
            self._poll.unregister(descriptor)
            self._ended_ns[pids[descriptor]] = time.time_ns()

    def _open(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return  # gone already, or this kernel has none
        self._descriptors[pid] = descriptor
        self._poll.register(descriptor, select.POLLIN)


def pid_of(path: str) -> int:
    """Process id in a ring's header; 0 if it cannot be read."""
    head = read_start(path, PID_OFFSET + PID.size)
    if len(head) < PID_OFFSET + PID.size or not head.startswith(MAGIC):
        return 0
    return int(PID.unpack_from(head, PID_OFFSET)[0])
