"""Runs the programs of ``tools/hangs`` with their faults, until they stall or end.

Each run leaves its evidence in the folder it is given: rings, dumps of torch's own recorder, or a
log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hangscope.ring.checks import RingError
from hangscope.ring.reader import RingReader
from tools.forked_jobs import Job, Jobs
from tools.recordings import Recording
from tools.two_hosts import ADDRESSES, LINKS, two_hosts

HANGS = Path(__file__).resolve().parent / "hangs"
TIMEOUT_S = 2.0
RUNNING_S = 4.0
GIVE_UP_S = 90.0
SLOW_START_S = 10.0
"""A job that has recorded nothing for this long is not merely slow to start."""


def arguments_of(recording: Recording) -> list[str]:
    """The program's command-line arguments."""
    return ["--fault", recording.fault, "--rank", str(recording.rank), *recording.extra]


def _record_rings(
    recording: Recording, sources: Path, jobs: Jobs, look: Callable[[], None]
) -> None:
    environment = {
        "HANGSCOPE": "1",
        "HANGSCOPE_TIMEOUT": str(TIMEOUT_S),
        **recording.environment,
    }
    job = Job(
        program=str(HANGS / f"{recording.program}.py"),
        arguments=arguments_of(recording),
        world_size=recording.world,
        directory=str(sources),
        log=str(sources.parent / "job.log"),
        environment=environment,
        kill_on_failure=recording.kill_on_failure,
        skip_ranks=list(recording.skip_ranks),
    )
    jobs.run(job)
    try:
        alive = recording.world - len(recording.skip_ranks)
        if recording.at == "running":
            _wait(jobs, alive, lambda: False, RUNNING_S)
        else:
            _wait(jobs, alive, _standstill(sources, alive), GIVE_UP_S)
        time.sleep(1.0)  # let the monitor write its journal
        look()
    finally:
        jobs.end()


def _wait(jobs: Jobs, alive: int, done: Callable[[], bool], limit_s: float) -> None:
    """Wait until every rank has ended, ``done`` returns True, or the time is over."""
    deadline_s = time.monotonic() + limit_s
    while alive and time.monotonic() < deadline_s and not done():
        ended = jobs.wait(0.2)
        if ended is not None:
            alive -= 1


def _standstill(directory: Path, world: int) -> Callable[[], bool]:
    """Make a check whether no ring has changed for the timeout (once all rings exist)."""
    last: list[object] = [None]
    since_s = [time.monotonic()]

    def done() -> bool:
        state = []
        for path in sorted(directory.glob("*.ring")):
            try:
                reader = RingReader(path)
            except (RingError, OSError):
                continue
            header = reader.header()
            state.append(
                (header.last_record_id, header.phases,
                 reader.groups()["completed"].tobytes(), header.exit_ns)
            )  # fmt: skip
            reader.close()
        if state != last[0]:
            last[0], since_s[0] = state, time.monotonic()
        still_s = time.monotonic() - since_s[0]
        begun = any(number for number, *_ in state)
        return len(state) >= world and still_s > (TIMEOUT_S + 2.0 if begun else SLOW_START_S)

    return done


def _record_native(
    recording: Recording, sources: Path, jobs: Jobs, look: Callable[[], None]
) -> None:
    running = recording.at == "running"
    job = Job(
        program=str(HANGS / "native.py"),
        arguments=[str(HANGS / f"{recording.program}.py"), *arguments_of(recording)],
        world_size=recording.world,
        directory=str(sources),
        log=str(sources.parent / "job.log"),
        environment={
            "HANGS_DUMPS": str(sources),
            "HANGS_DUMP_AFTER_S": str(RUNNING_S if running else 8.0 + recording.world / 2),
            "TORCH_FR_BUFFER_SIZE": "2000",
            **recording.environment,
        },
    )
    jobs.run(job)
    try:
        expected = recording.world - (1 if recording.fault in ("stop", "gil") else 0)
        _wait(jobs, recording.world, lambda: len(list(sources.iterdir())) >= expected, GIVE_UP_S)
        time.sleep(1.0)
    finally:
        jobs.end()
    look()


def _record_logs(recording: Recording, sources: Path, jobs: Jobs, look: Callable[[], None]) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    environment.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", **recording.environment)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={recording.world}", str(HANGS / f"{recording.program}.py"),
        *arguments_of(recording),
    ]  # fmt: skip
    with open(sources / "job.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            process.wait(GIVE_UP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)
            process.wait(30)
    look()


def _record_hosts(
    recording: Recording, sources: Path, jobs: Jobs, look: Callable[[], None]
) -> None:
    """Run in two linked network namespaces and take the link down during training (needs root)."""
    with two_hosts() as hosts:
        processes = [
            _launch_on(host, node, recording, sources, sources.parent / f"job.{node}.log")
            for node, host in enumerate(hosts)
        ]
        try:
            _until(lambda: _records(sources) > 20 * recording.world, GIVE_UP_S)
            subprocess.run(["ip", "-n", hosts[0], "link", "set", LINKS[0], "down"], check=True)
            _until(_standstill(sources, recording.world), GIVE_UP_S)
            time.sleep(1.0)
            look()
        finally:
            _end_all(processes)


def _launch_on(
    host: str, node: int, recording: Recording, sources: Path, log: Path
) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    environment.update(
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME=LINKS[node],
        TP_SOCKET_IFNAME=LINKS[node],
        HANGSCOPE="1",
        HANGSCOPE_DIR=str(sources),
        HANGSCOPE_TIMEOUT=str(TIMEOUT_S),
        **recording.environment,
    )
    command = [
        "ip", "netns", "exec", host,
        "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"node{node}",
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
        f"--master-addr={ADDRESSES[0]}", "--master-port=29517",
        f"--nproc-per-node={recording.world // 2}", str(HANGS / f"{recording.program}.py"),
        *arguments_of(recording),
    ]  # fmt: skip
    with open(log, "wb") as sink:
        return subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def _until(done: Callable[[], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the job did not get there within {limit_s:.0f} s")
        time.sleep(0.2)


def _records(directory: Path) -> int:
    total = 0
    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(path)
        except (RingError, OSError):
            continue
        total += reader.header().last_record_id
        reader.close()
    return total


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    import psutil

    for process in processes:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


Run = Callable[[Recording, Path, Jobs, Callable[[], None]], None]
"""Runs a recording into a folder; calls the last argument while the hang can be observed."""
RUNS: dict[str, Run] = {
    "rings": _record_rings,
    "native": _record_native,
    "logs": _record_logs,
    "hosts": _record_hosts,
}
