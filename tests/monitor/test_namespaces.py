"""Ranks in another container write into the same run directory; their pids mean nothing here."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangscope.diagnosis.model import Verdict
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.trace.live.open_ring import RunKey

PATIENCE_S = 30.0
RUN = "one-run"
_RANK = f"""
import os, sys, time
from pathlib import Path
from hangscope.recording.identity import ring_identity
from hangscope.ring.job_place import place_from_environment
from hangscope.recording.ring_location import open_ring
wanted = int(sys.argv[2])
while wanted and os.getpid() != wanted:  # go through the pids of this namespace
    child = os.fork()
    if child == wanted:
        os.waitpid(child, 0)
        sys.exit()
    if child:
        os.waitpid(child, 0)
    elif os.getpid() != wanted:
        os._exit(0)
identity = ring_identity(place_from_environment(os.environ), {RUN!r}, timeout_s=9.0,
                         heartbeat_interval_s=1.0)
ring = open_ring(Path(sys.argv[1]), identity, 64)
ring.beat()
ring.put_u4("ready", 1)
print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(3)
"""


def container() -> list[str]:
    """A command that runs another one in a new pid namespace; empty if not permitted."""
    program = shutil.which("unshare")
    if program is None:
        return []
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [program, *as_root, "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*command, "true"], capture_output=True, timeout=30, check=False)
    return command if done.returncode == 0 else []


@contextmanager
def rank(number: int, folder: Path, inside: list[str], pid: int = 0) -> Iterator[subprocess.Popen]:
    """A process that records as a rank until its input is closed, with this pid there."""
    environment = {**os.environ, "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    with subprocess.Popen(
        [*inside, sys.executable, "-c", _RANK, str(folder), str(pid)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            own = int(process.stdout.readline())
            assert pid in (0, own)
            yield process
        finally:
            process.stdin.close()


def unused_pid() -> int:
    return next(pid for pid in range(2, 10_000) if not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("used_here", [True, False], ids=["another's pid here", "no pid here"])
def test_pids_of_another_container_are_not_watched(tmp_path: Path, used_here: bool) -> None:
    inside = container()
    if not inside:
        pytest.skip("pid namespaces are not permitted here")
    # If pids were watched, the init process would keep the monitor alive for ever, and with an
    # unused pid the rank would count as dead.
    pid = 1 if used_here else unused_pid()
    with rank(1, tmp_path, inside, pid) as there, rank(0, tmp_path, []) as here:
        assert here.stdin is not None
        here.stdin.close()
        deadline_s = time.monotonic() + PATIENCE_S
        out = io.StringIO()
        config = MonitorConfig(tmp_path, RunKey(RUN, 0), local_world_size=1, timeout_s=9.0)
        monitor = Monitor(config, out=out, keep_going=lambda: time.monotonic() < deadline_s)
        last = monitor.follow()
        assert time.monotonic() < deadline_s, "it ends with the ranks of its own node"
        assert there.poll() is None
    assert last is not None
    assert (last.verdict, last.culprits) == (Verdict.RANK_CRASHED, (0,)), out.getvalue()
    (journal,) = tmp_path.glob("*.journal")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(e["rank"], e["pid"]) for e in events if e.get("event") == "exit"] == [(0, here.pid)]
