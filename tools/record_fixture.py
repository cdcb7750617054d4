"""Records fixtures from real processes: ``python -m tools.record_fixture [NAME...]``.

Each program of ``tools/hangs`` is started with its fault, left to stall (or to end), looked at as
``hangscope analyze`` looks at it, and written to ``fixtures/`` with paths and hosts replaced. What
must be said of it stands in `tools.recordings`; where HangScope says something else, the fixture is
kept as it must be and the difference is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.replay import (
    Expected,
    FixtureError,
    find_fixtures,
    load_fixture,
    verify,
    write_fixture,
)
from hangscope.replay.fixture import EXPECTED, to_toml
from hangscope.ring.reader import RingError, RingReader
from hangscope.trace.live import LiveRun, is_gil_blocked
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tools.forkserver import Job, Server
from tools.recordings import Recording, recordings

ROOT = Path(__file__).resolve().parent.parent
HANGS = ROOT / "tools" / "hangs"
FIXTURES = ROOT / "fixtures"
TIMEOUT_S = 2.0
RUNNING_S = 4.0
GIVE_UP_S = 90.0
LINKS = ("hangs0", "hangs1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SECOND_LOOK_S = 1.2
SLOW_START_S = 10.0
"""A job that has recorded nothing for so long is not merely slow to start."""
README_HEAD = """# Recorded hangs

Each folder is one real job that was recorded: what is left of it in `dumps/`, and what must be
said of it in `expected.toml`. Made by `python -m tools.record_fixture` from `tools/hangs`
(paths and host names replaced), checked by `hangscope replay fixtures`. See `docs/fixtures.md`.
"""
PRELOAD = (
    "torch.distributed", "torch.distributed.fsdp", "torch.nn.parallel",
    "torch.distributed.tensor.parallel", "torch.distributed.device_mesh", "numpy",
)  # fmt: skip


def main() -> int:
    """Record what is asked for; the exit status says whether all verdicts were as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="fixtures to record; all that are missing if none")
    parser.add_argument("--again", action="store_true", help="also those that are there already")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument(
        "--refresh", action="store_true", help="only write expectations and README.md anew"
    )
    arguments = parser.parse_args()
    if arguments.refresh:
        refresh()
        return 0
    wanted = [r for r in recordings() if not arguments.names or r.name in arguments.names]
    if arguments.list:
        for recording in wanted:
            print(f"{recording.name:28} {recording.verdict:20} {recording.story}")
        return 0
    if not arguments.again and not arguments.names:
        wanted = [r for r in wanted if not (FIXTURES / r.name).exists()]
    wrong = 0
    with Server(PRELOAD) as server:
        for recording in wanted:
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="hang-") as place:
                try:
                    differences = record(recording, Path(place), server)
                except (FixtureError, TimeoutError) as error:
                    differences = [str(error)]
            wrong += bool(differences)
            took_s = time.monotonic() - began_s
            print(f"{'WRONG' if differences else 'ok':6}{recording.name} ({took_s:.0f} s)")
            for line in differences:
                print(f"      {line}")
            sys.stdout.flush()
    refresh()
    return 1 if wrong else 0


def refresh() -> None:
    """Bring the expectations of what is recorded, and the list of it, up to date."""
    lines = [README_HEAD]
    known = {recording.name: recording for recording in recordings()}
    for folder in find_fixtures([FIXTURES]):
        fixture = load_fixture(folder)
        recording = known.get(fixture.name)
        expected = fixture.expected
        if recording is not None:
            expected = replace(_expected(recording), recorded=expected.recorded)
            (folder / EXPECTED).write_text(to_toml(expected), encoding="utf-8")
        told = expected.recorded
        how = f"`{told['command']}`, {told['world_size']} ranks" if "command" in told else "chaos"
        lines.append(f"- **{fixture.name}** ({told.get('kind', 'rings')}): {expected.story}. {how}")
    (FIXTURES / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def record(recording: Recording, place: Path, server: Server) -> list[str]:
    """Record one fixture; returns what is not as expected, one line each."""
    sources = place / "run"
    sources.mkdir()
    make = {
        "rings": _record_rings,
        "native": _record_native,
        "logs": _record_logs,
        "hosts": _record_hosts,
    }[recording.kind]
    target = FIXTURES / recording.name
    if target.exists():
        shutil.rmtree(target)
    found: list[Diagnosis] = []

    def look() -> None:
        """While the job hangs: what is copied later is no longer what was looked at."""
        trace, diagnosis = look_twice(sources)
        expected = _expected(recording)
        write_fixture(
            trace, diagnosis, [sources], target, redact=True, expected=expected, check=False
        )
        found.append(diagnosis)

    make(recording, sources, server, look)
    diagnosis = found[0]
    outcome = verify(load_fixture(target))
    lines = [f"{d.what}: expected {d.expected}, got {d.got}" for d in outcome.differences]
    again = outcome.diagnosis
    if again is None or (again.verdict, again.culprits) != (diagnosis.verdict, diagnosis.culprits):
        lines.append(
            f"REPLAY differs from the live verdict {diagnosis.verdict.value} "
            f"{list(diagnosis.culprits)}"
        )
    return lines


def look_twice(directory: Path) -> tuple[Trace, Diagnosis]:
    """What ``analyze`` would say; living processes are always looked at twice."""
    trace = load_trace([directory])
    if trace.live:
        run = LiveRun(directory)
        run.look()
        run.ask_for_stacks(is_gil_blocked)
        time.sleep(SECOND_LOOK_S)
        trace = run.look()
        run.close()
    return trace, diagnose(trace)


def _expected(recording: Recording) -> Expected:
    import torch

    command = [f"tools/hangs/{recording.program}.py", *_arguments(recording)]
    return Expected(
        verdict=recording.verdict,
        culprits=recording.culprits,
        story=recording.story,
        confidence=recording.confidence,
        playbook=recording.playbook,
        must_mention=recording.mention,
        must_not_mention=recording.avoid,
        recorded={
            "command": " ".join(command),
            "kind": recording.kind,
            "world_size": recording.world,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _arguments(recording: Recording) -> list[str]:
    return ["--fault", recording.fault, "--rank", str(recording.rank), *recording.extra]


# -- rings -------------------------------------------------------------------------------------


def _record_rings(
    recording: Recording, sources: Path, server: Server, look: Callable[[], None]
) -> None:
    environment = {
        "HANGSCOPE": "1",
        "HANGSCOPE_TIMEOUT": str(TIMEOUT_S),
        **recording.environment,
    }
    job = Job(
        program=str(HANGS / f"{recording.program}.py"),
        arguments=_arguments(recording),
        world_size=recording.world,
        directory=str(sources),
        log=str(sources.parent / "job.log"),
        environment=environment,
        kill_on_failure=recording.kill_on_failure,
        skip_ranks=list(recording.skip_ranks),
    )
    server.run(job)
    try:
        alive = recording.world - len(recording.skip_ranks)
        if recording.at == "running":
            _wait(server, alive, lambda: False, RUNNING_S)
        else:
            _wait(server, alive, _standstill(sources, alive), GIVE_UP_S)
        time.sleep(1.0)  # for the monitor's journal
        look()
    finally:
        server.end()


def _wait(server: Server, alive: int, done: Callable[[], bool], limit_s: float) -> None:
    """Until every rank has ended, ``done`` says so, or the time is over."""
    deadline_s = time.monotonic() + limit_s
    while alive and time.monotonic() < deadline_s and not done():
        event = server.wait(0.2)
        if event is not None and event["event"] == "exit":
            alive -= 1


def _standstill(directory: Path, world: int) -> Callable[[], bool]:
    """Whether no ring has moved for longer than the timeout (and all that can be there are)."""
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
                (int(header["last_record_id"]), header["phases"].tobytes(),
                 reader.groups()["completed"].tobytes(), int(header["exit_ns"]))
            )  # fmt: skip
            reader.close()
        if state != last[0]:
            last[0], since_s[0] = state, time.monotonic()
        still_s = time.monotonic() - since_s[0]
        begun = any(number for number, *_ in state)
        return len(state) >= world and still_s > (TIMEOUT_S + 2.0 if begun else SLOW_START_S)

    return done


# -- native dumps ------------------------------------------------------------------------------


def _record_native(
    recording: Recording, sources: Path, server: Server, look: Callable[[], None]
) -> None:
    running = recording.at == "running"
    job = Job(
        program=str(HANGS / "native.py"),
        arguments=[str(HANGS / f"{recording.program}.py"), *_arguments(recording)],
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
    server.run(job)
    try:
        expected = recording.world - (1 if recording.fault in ("stop", "gil") else 0)
        _wait(server, recording.world, lambda: len(list(sources.iterdir())) >= expected, GIVE_UP_S)
        time.sleep(1.0)
    finally:
        server.end()
    look()


# -- logs --------------------------------------------------------------------------------------


def _record_logs(
    recording: Recording, sources: Path, server: Server, look: Callable[[], None]
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    environment.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", **recording.environment)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={recording.world}", str(HANGS / f"{recording.program}.py"),
        *_arguments(recording),
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


# -- two hosts whose network is cut ------------------------------------------------------------


def _record_hosts(
    recording: Recording, sources: Path, server: Server, look: Callable[[], None]
) -> None:
    """Two network namespaces with a link between them, taken down while the job trains (root)."""
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


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """The names of two connected network namespaces."""
    hosts = (f"hs{os.getpid()}a", f"hs{os.getpid()}b")
    steps = [["ip", "netns", "add", host] for host in hosts]
    steps.append(
        ["ip", "link", "add", LINKS[0], "netns", hosts[0], "type", "veth",
         "peer", "name", LINKS[1], "netns", hosts[1]]
    )  # fmt: skip
    for host, link, address in zip(hosts, LINKS, ADDRESSES, strict=True):
        steps.append(["ip", "-n", host, "addr", "add", f"{address}/24", "dev", link])
        steps.append(["ip", "-n", host, "link", "set", link, "up"])
        steps.append(["ip", "-n", host, "link", "set", "lo", "up"])
    try:
        for step in steps:
            subprocess.run(step, check=True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False)


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
        *_arguments(recording),
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
        total += int(reader.header()["last_record_id"])
        reader.close()
    return total


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    import psutil

    for process in processes:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
