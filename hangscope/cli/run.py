"""``hangscope run -- CMD``: run a command with recording on and HangScope as its monitor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli.console import say
from hangscope.cli.errors import UserError
from hangscope.cli.types import Seconds
from hangscope.nccl_plugin.background import prepare_plugin
from hangscope.ring.run_directory import create, opened
from hangscope.ring.run_secret import LAUNCH_VARIABLE, VARIABLE, new_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangscope.monitor.config import MonitorConfig
    from hangscope.recording.settings import Settings
    from hangscope.trace.live.open_ring import RunKey


@click.command(
    "run",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.1, 1e7),
    metavar="SECONDS",
    help="How long a collective may wait before the run counts as hung (HANGSCOPE_TIMEOUT; 120).",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run directory (HANGSCOPE_DIR); by default a new one in hangscope-runs.",
)
@click.option(
    "--buffer",
    type=click.IntRange(16),
    metavar="N",
    help="Records kept per rank (HANGSCOPE_BUFFER; 10000).",
)
@click.option("--no-stacks", is_flag=True, help="Record no Python stacks.")
@click.option(
    "--on-hang",
    type=click.Choice(["report", "kill"]),
    help="After the report: only report (the default), or end the job (HANGSCOPE_ON_HANG).",
)
@click.option(
    "--slow", is_flag=True, help="Also mention ranks that are always late (HANGSCOPE_NOTICE=slow)."
)
@click.argument("arguments", nargs=-1, required=True, metavar="-- CMD...")
def command(
    timeout_s: float | None,
    directory: Path | None,
    buffer: int | None,
    no_stacks: bool,
    on_hang: str | None,
    slow: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run CMD with recording on in every rank, and HangScope as its monitor.

    The exit status is that of CMD, or 128 + n if signal n ended it. Reports go to stderr. For a job
    on several nodes, use it on each of them.

    \b
    hangscope run -- torchrun --nproc-per-node=8 train.py
    """
    from hangscope.recording.settings import read_settings

    environment = dict(os.environ)
    environment["HANGSCOPE"] = "1"
    environment["HANGSCOPE_INTERNAL_MONITORED"] = "1"
    if not environment.get(VARIABLE):
        environment[LAUNCH_VARIABLE] = new_secret()
    for name, value in (
        ("HANGSCOPE_TIMEOUT", timeout_s),
        ("HANGSCOPE_BUFFER", buffer),
        ("HANGSCOPE_STACKS", 0 if no_stacks else None),
        ("HANGSCOPE_ON_HANG", on_hang),
        ("HANGSCOPE_DIR", directory),
        ("HANGSCOPE_NOTICE", "slow" if slow else None),
    ):
        if value is not None:
            environment[name] = str(value)
    settings = read_settings(environment, lambda text: say(f"hangscope: {text}", err=True))
    given = bool(environment.get("HANGSCOPE_DIR"))
    run_directory = _directory(environment)
    former = None if given else _link_latest(run_directory)
    environment["HANGSCOPE_DIR"] = str(run_directory)
    try:
        status = _run(arguments, environment, run_directory, settings)
    finally:
        if not given:
            _remove_if_unused(run_directory, former)
    sys.exit(status)


def _directory(environment: dict[str, str]) -> Path:
    """The run directory, created now so that all ranks use the same."""
    given = environment.get("HANGSCOPE_DIR")
    name = time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
    directory = Path(given).absolute() if given else Path.cwd() / "hangscope-runs" / name
    try:
        create(directory)
    except OSError as error:
        raise UserError(
            f"cannot create the run directory {directory}: {error.strerror}; choose one with --dir"
        ) from error
    return directory


def _link_latest(directory: Path) -> str | None:
    """Point ``latest`` at the run directory; returns its previous target."""
    from hangscope.recording.ring_location import link_latest

    link = directory.parent / "latest"
    former = os.readlink(link) if link.is_symlink() else None
    link_latest(directory)
    return former


def _remove_if_unused(directory: Path, former: str | None) -> None:
    """Remove a run directory in which nothing was recorded, and restore ``latest``."""
    from hangscope.recording.ring_location import link_latest

    with contextlib.suppress(OSError), opened(directory.parent) as runs:
        runs.remove_directory(directory.name)  # if it is empty
        if runs.target_of("latest") != directory.name:
            return
        if former is not None:
            link_latest(directory.parent / former)
            return
        runs.remove("latest")
        directory.parent.rmdir()


def _run(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    directory: Path,
    settings: Settings,
) -> int:
    from hangscope.monitor.successor import start_successor

    prepare_plugin(environment)

    def take_over(pid: int, started_ticks: int) -> None:
        from hangscope.monitor.successor import lives

        say("[hangscope] the monitor has died: it is started again", err=True)
        config = _config(directory, environment, settings, pid, started_ticks)
        _follow(config, lambda: lives(pid, started_ticks), newest_only=True)

    successor = start_successor(take_over)  # before anything large is imported
    from hangscope.ring.process_identity import start_ticks

    _import_monitor()
    try:
        process = subprocess.Popen(arguments, env=environment)
    except OSError as error:
        hint = "; check its name and PATH" if isinstance(error, FileNotFoundError) else ""
        if isinstance(error, PermissionError):
            hint = "; is it a program, or a script for an interpreter in front of it?"
        raise UserError(f"cannot run {arguments[0]}: {error.strerror}{hint}") from error
    started_ticks = start_ticks(process.pid)
    if successor is not None:
        successor.watch(process.pid, started_ticks)

    def forward(number: int, frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    # Ctrl-C in a terminal reaches the command directly; we stay alive for the verdict.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    config = _config(directory, environment, settings, process.pid, started_ticks)
    followed = _follow(config, lambda: process.poll() is None)
    if not followed and not any(directory.glob("*.ring")):
        say(
            "[hangscope] nothing was recorded: the command started no ranks, "
            "or its Python has no hangscope or a torch older than 2.5",
            err=True,
        )
    if successor is not None:
        successor.dismiss()
    status = process.returncode
    return 128 - status if status < 0 else status


def _import_monitor() -> None:
    """Import it before the command starts: while imports run, nobody watches."""
    import hangscope.monitor.watch  # noqa: F401


def _config(
    directory: Path,
    environment: dict[str, str],
    settings: Settings,
    pid: int,
    started_ticks: int,
) -> MonitorConfig:
    from hangscope.monitor.config import MonitorConfig
    from hangscope.ring.run_secret import RunSecret
    from hangscope.trace.live.own_run import OwnRun
    from hangscope.trace.processes.signals import DescendsFrom

    return MonitorConfig(
        directory=directory,
        key=None,
        local_world_size=0,
        timeout_s=settings.timeout_s,
        on_hang=settings.on_hang,
        notice=settings.notice,
        own=OwnRun(RunSecret.of(environment)),
        launcher=DescendsFrom(frozenset({(pid, started_ticks)})),
    )


def _follow(
    config: MonitorConfig, keep_going: Callable[[], bool], *, newest_only: bool = False
) -> set[RunKey]:
    """Follow the command's attempts until it has ended; returns those that were followed.

    ``newest_only``: another monitor has followed the earlier ones.
    """
    from hangscope.monitor.watch import Monitor

    followed: set[RunKey] = set()
    while keep_going():
        # One monitor per attempt: an elastic restart begins a new one.
        monitor = Monitor(config, keep_going=keep_going, skip=frozenset(followed))
        monitor.follow()
        if newest_only:
            followed |= monitor.up_to_followed()
        if monitor.key is not None:
            followed.add(monitor.key)
    return followed
