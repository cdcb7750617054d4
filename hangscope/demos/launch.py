"""Launches a demo job under torchrun and waits for its verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.demos.catalogue import Demo
from hangscope.ring.process_identity import start_ticks
from hangscope.trace.processes.signals import DescendsFrom, targets_of

WORLD_SIZE = 4
GIVE_UP_S = 90.0


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Result of a demo job. Times are in seconds."""

    log: str
    directory: Path
    reported: bool
    reported_after_s: float | None
    """From the stall (the newest record before the report) to the report, if there is one."""
    ended: bool


def run_demo(
    demo: Demo,
    directory: Path,
    *,
    timeout_s: float,
    inspect: Callable[[Path], None],
    echo: Callable[[str], None] = lambda line: None,
    world_size: int = WORLD_SIZE,
    extra: tuple[str, ...] = (),
) -> DemoRun:
    """Run one demo job to its verdict.

    Parameters
    ----------
    demo:
        The fault.
    directory:
        Run directory; must not exist or be empty.
    timeout_s:
        ``HANGSCOPE_TIMEOUT`` of the job.
    inspect:
        Called once with the run directory: while the job hangs, or after it has ended.
    echo:
        Called with every line of the job's log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "job.log"
    with (
        open(log, "wb") as sink,
        subprocess.Popen(
            _command(demo, world_size, extra),
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=_environment(directory, timeout_s),
            start_new_session=True,
        ) as process,
    ):
        try:
            output = _listen(process, log, echo, until_reported=demo.hangs)
            inspected = output.reported and demo.hangs
            if inspected:
                inspect(directory)
            ended = process.poll() is not None
        finally:
            _end(process)
        if not inspected:
            inspect(directory)
    return DemoRun(
        "".join(output.lines), directory, output.reported, output.reported_after_s, ended
    )


def _environment(directory: Path, timeout_s: float) -> dict[str, str]:
    environment = {
        **os.environ,
        "HANGSCOPE": "1",
        "HANGSCOPE_DIR": str(directory),
        "HANGSCOPE_TIMEOUT": str(timeout_s),
        "HANGSCOPE_MONITOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("HANGSCOPE_INTERNAL_MONITORED", None)
    return environment


def _command(demo: Demo, world_size: int, extra: tuple[str, ...]) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={world_size}", "-m", "hangscope.demos.train", "--fault", demo.name,
        *extra,
    ]  # fmt: skip


@dataclass(slots=True)
class _JobOutput:
    """A job's output so far, and HangScope's first report in it."""

    lines: list[str] = field(default_factory=list)
    reported: bool = False
    reported_after_s: float | None = None


def _listen(
    process: subprocess.Popen[bytes],
    log: Path,
    echo: Callable[[str], None],
    *,
    until_reported: bool,
) -> _JobOutput:
    """Read the log until the report appears, if one is due, or until all processes have ended."""
    output = _JobOutput()
    deadline_s = time.monotonic() + GIVE_UP_S
    with open(log, encoding="utf-8", errors="replace") as text:
        while time.monotonic() < deadline_s:
            line = text.readline()
            if line.endswith("\n"):
                output.lines.append(line)
                echo(line.rstrip("\n"))
                if line.startswith("[hangscope] more:"):
                    output.reported = True
                    output.reported_after_s = _since_newest_record_s(log.parent)
                    if until_reported:
                        break
                continue
            if process.poll() is not None and _monitor_is_done(log.parent):
                rest = text.read()
                if not rest:
                    break
                output.lines.append(rest)
            time.sleep(0.05)
    return output


def _since_newest_record_s(directory: Path) -> float | None:
    """How long ago the job issued its last operation, that is, when it stalled."""
    from hangscope.ring.checks import RingError
    from hangscope.ring.reader import RingReader

    newest_ns = 0
    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(path)
        except (RingError, OSError):
            continue
        slots, _ = reader.slots()
        if len(slots):
            newest_ns = max(newest_ns, int(slots["created_ns"][-1]))
        reader.close()
    return (time.time_ns() - newest_ns) / 1e9 if newest_ns else None


def _monitor_is_done(directory: Path) -> bool:
    """Whether no monitor process follows this directory any more."""
    import psutil

    wanted = str(directory)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hangscope.monitor" in words and wanted in words:
            return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the launcher and every rank, whatever state they are in."""
    import psutil

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    launcher = DescendsFrom(frozenset({(process.pid, start_ticks(process.pid))}))
    with targets_of((member.pid, 0, [launcher]) for member in family) as targets:
        process.kill()
        for target in targets.values():
            target.send(signal.SIGKILL)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass
