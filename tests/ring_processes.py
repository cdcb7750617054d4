"""Processes that write rings, as ranks do, without torch; and rings that only claim to have one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.ring.run_secret import RunSecret
from tests.live_rings import RingRank

_WRITER = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from hangscope.ring.stack_requests import STACK_SIGNALS, stacks_file
from tests.ring_processes import claimed_ring
folder, rank, op, act = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if act == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ring = claimed_ring(folder, rank, os.getpid())
ring.issue(ring.join("0", "default_pg", range(2)), op)
if act == "answers":
    file = open(stacks_file(str(ring.ring.path)), "w")
    faulthandler.register(STACK_SIGNALS[-1], file=file, all_threads=True)
    ring.ring.put_u4("fault_signal", STACK_SIGNALS[-1])
    ring.ring.put_i8("watcher_thread", os.getpid())
print(flush=True)
while True:
    time.sleep(60)
"""


def claimed_ring(
    folder: Path, rank: int, pid: int, world: int = 2, run_id: str = "live"
) -> RingRank:
    """A ring that says that it belongs to this process, which is true only in that process."""
    process = (boot_id(), pid_namespace(), pid, start_ticks(pid))
    return RingRank(
        folder,
        rank,
        world,
        pid=pid,
        start_ticks=process[3],
        boot_id=process[0],
        pid_namespace=process[1],
        run_id=run_id,
        seal=RunSecret.of(os.environ).seal(run_id, 0, *process),
        local_world_size=world,
    )


@contextlib.contextmanager
def ring_process(
    folder: Path, rank: int, op: str = "all_reduce", act: str = "", **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes a ring, ``deaf`` to SIGTERM, or that ``answers`` with its stacks."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder), str(rank), op, act],
        stdout=subprocess.PIPE,
        env={**os.environ, **environ},
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def bystander(user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with the job."""
    user = os.geteuid() if user is None else user
    with subprocess.Popen(["sleep", "60"], user=user) as process:
        try:
            yield process
        finally:
            process.kill()
