"""Real jobs under each restriction: the same end as without HangScope, and no false word."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hangscope.recording.compiled.load import PLACE
from tests.real_jobs import environment
from tests.restrictions import (
    DOCKER,
    EARLY_GVISOR,
    GVISOR,
    NUMBERS,
    allowing_only,
    forbidding,
    refusing,
)
from tools.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NUMBERS, reason="no system call numbers of this machine"),
]

_JOB = """
import os, subprocess, sys, time
if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in "01"
    ]
    codes = [rank.wait() for rank in ranks]
    print("codes", codes, flush=True)
    sys.exit(max(map(abs, codes)))
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total, go = torch.ones(4), sys.argv[1]
dist.all_reduce(total)
def step():
    if "running" in sys.argv:
        over = torch.zeros(1)
        while not over:
            over = torch.tensor([float(os.path.exists(go))])
            dist.all_reduce(over, dist.ReduceOp.MAX)
            open(go + ".waiting", "w").close()
            time.sleep(0.01)
    elif dist.get_rank() == 1:
        open(go + ".waiting", "w").close()
        while not os.path.exists(go):
            time.sleep(0.1)
    dist.all_reduce(total)
step()
dist.barrier()
dist.destroy_process_group()
print("total", total.tolist(), flush=True)
"""
_TMPFS = "mount -t tmpfs -o {} none"


class Restriction(NamedTuple):
    """How a job is restricted."""

    apply: Callable[[], None] = lambda: None
    inside: str = ""
    """Shell command in a mount namespace of its own; ``$D`` is the run directory."""
    unshare: str = "-m"
    meanwhile: Callable[[Path], None] = lambda run: None
    """What happens while it hangs."""
    is_running: bool = False
    """Whether it issues operations meanwhile, rather than hang."""
    is_compiled: bool = False
    """Whether the recorder's compiled part is there."""
    is_observable: bool = True
    """Whether the verdict must come all the same."""


def _truncate(run: Path) -> None:
    """One rank goes on to write into what is gone, the other one waits meanwhile."""
    for ring in run.glob("rank_*.ring"):
        os.truncate(ring, 4096)


def _limit(kind: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (most, most))


def _kill_monitor(run: Path) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            ours = b"hangscope.monitor" in words and os.fsencode(run) in words
            if ours and b"hangscope.monitor" in Path(f"/proc/{parent}/cmdline").read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def _refused(*calls: str, error: int = errno.EPERM) -> Callable[[], None]:
    return forbidding(*calls, error=error) if NUMBERS else lambda: None


RESTRICTIONS = {
    "none": Restriction(),
    "no pidfd": Restriction(_refused("pidfd_open", "pidfd_send_signal")),
    "no ptrace": Restriction(_refused("ptrace", "process_vm_readv")),
    "docker": Restriction(refusing(DOCKER)),
    "gvisor": Restriction(allowing_only(GVISOR)),
    "early gvisor": Restriction(allowing_only(EARLY_GVISOR)),
    "64 descriptors": Restriction(_limit(resource.RLIMIT_NOFILE, 64)),
    "files of 64 KiB": Restriction(_limit(resource.RLIMIT_FSIZE, 1 << 16), is_observable=False),
    "16 GiB of addresses": Restriction(_limit(resource.RLIMIT_AS, 16 << 30)),
    "no /dev/shm": Restriction(inside=f"{_TMPFS.format('ro,size=4k')} /dev/shm"),
    "no /proc": Restriction(inside="umount -l /proc", is_observable=False),
    "hidepid": Restriction(inside="mount -t proc -o hidepid=2 proc /proc"),
    "pid namespace": Restriction(inside="true", unshare="-mpf --mount-proc"),
    "read-only directory": Restriction(inside=f'{_TMPFS.format("ro")} "$D"', is_observable=False),
    "full disk": Restriction(inside=f'{_TMPFS.format("size=64k")} "$D"', is_observable=False),
    "vanishing directory": Restriction(meanwhile=shutil.rmtree, is_observable=False),
    "truncated rings": Restriction(meanwhile=_truncate, is_observable=False),
    "truncated rings, compiled": Restriction(
        meanwhile=_truncate, is_observable=False, is_compiled=True
    ),
    "truncated rings while it runs, compiled": Restriction(
        meanwhile=_truncate, is_observable=False, is_running=True, is_compiled=True
    ),
    "killed monitor": Restriction(meanwhile=_kill_monitor),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hangscope.recording.compiled.build import build

    return build(tmp_path_factory.mktemp("compiled")).parent


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_restricted_job_ends_as_without_hangscope(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    """It hangs until it is told to go on; by then the verdict is there, if there can be one."""
    limits = RESTRICTIONS[name]
    if limits.inside and (os.geteuid() != 0 or not shutil.which("unshare")):
        pytest.skip("mount namespaces need root")
    script, run, go, log = (tmp_path / part for part in ("job.py", "run", "go", "log"))
    script.write_text(_JOB)
    run.mkdir(mode=0o700)
    command = [sys.executable, str(script), str(go), *(["running"] if limits.is_running else [])]
    if limits.inside:
        shell = ["sh", "-c", f'{limits.inside} || exit 77; exec "$@"', "sh"]
        command = ["unshare", *limits.unshare.split(), *shell, *command]
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(run), HANGSCOPE_TIMEOUT="6", WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), D=str(run),
    )  # fmt: skip
    if limits.is_compiled:
        env |= {"HANGSCOPE_COMPILED": "1", PLACE: str(request.getfixturevalue("compiled"))}
    with (
        log.open("w") as out,
        subprocess.Popen(
            command,
            env=env,
            stdout=out,
            stderr=out,
            preexec_fn=limits.apply,
            start_new_session=True,
        ) as job,
    ):
        try:
            _await(lambda: Path(f"{go}.waiting").exists() or job.poll() is not None, 120)
            if job.poll() == 77:
                pytest.skip("not allowed here")
            limits.meanwhile(run)
            _await(lambda: "more:" in log.read_text(), 60 if limits.is_observable else 15)
            go.touch()
            job.wait(90)
        finally:
            go.touch()
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    said = log.read_text()
    assert job.returncode == 0, said
    assert "codes [0, 0]" in said, said
    assert said.count("total [4.0, 4.0, 4.0, 4.0]") == 2, said
    verdicts = re.findall(r"^\[hangscope\] (.*)\n  [A-Z]", said, re.M)
    assert all("Rank 1 never joined" in verdict for verdict in verdicts), said
    assert "post-mortem" not in said, "it was alive when that was said"
    if limits.is_observable:
        assert verdicts, said
    else:
        assert verdicts or "[hangscope]" in said or name == "no /proc", said


def _await(holds: Callable[[], bool], most_s: float) -> None:
    until_s = time.monotonic() + most_s
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.1)
