"""``hangscope doctor``: check a launch before it starts, and inside a job."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.markup import escape
from rich.table import Table

from hangscope.cli.budget import budget_options
from hangscope.cli.console import say, say_warnings
from hangscope.cli.errors import UserError, no_empty_path, nothing_readable
from hangscope.cli.types import Number, Seconds
from hangscope.report.safe_console import SafeConsole
from hangscope.toolkit.barriers.barrier import BarrierTimeout
from hangscope.toolkit.doctor.devices import check_fit
from hangscope.toolkit.doctor.examine import check_files, check_process, with_command_environment
from hangscope.toolkit.doctor.job import examine, missing_finding
from hangscope.toolkit.doctor.model import CheckUp, Finding, Surroundings, sort
from hangscope.toolkit.doctor.surroundings import read_surroundings
from hangscope.toolkit.doctor.timeouts import timeout_rows
from hangscope.toolkit.launching.world import WorldInfo, get_world_info
from hangscope.toolkit.ranks import name_ranks

if TYPE_CHECKING:
    from hangscope.trace.loading.budget import Budget

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


@click.command("doctor")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--script", type=click.Path(path_type=Path), help="Training script to read.")
@click.option(
    "--deepspeed-config", type=click.Path(path_type=Path), help="DeepSpeed configuration to read."
)
@click.option(
    "--run", "run_paths", multiple=True, metavar="PATH", help="Recorded run or dumps to check."
)
@click.option("--parameters", metavar="N", help="Size of the model, such as 7e9 or 7B.")
@click.option(
    "--memory",
    "memory_gib",
    type=Number(0.001, 1e6),
    metavar="GIB",
    help="Memory per device, if it is not that of this host.",
)
@click.option(
    "--wrapper",
    type=click.Choice(["ddp", "zero1", "zero2", "zero3", "fsdp"]),
    metavar="NAME",
    help="How the model of --parameters is wrapped: ddp, zero1, zero2, zero3 or fsdp.",
)
@click.option(
    "--world-size", type=click.IntRange(1), metavar="N", help="Number of ranks of the job."
)
@click.option(
    "--timeout",
    type=Seconds(0.1, 1e7),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait for the other ranks.",
)
@click.option("--notes/--no-notes", default=True, help="Show notes, which are no problems.")
@budget_options
def command(
    cmd: tuple[str, ...],
    as_json: bool,
    script: Path | None,
    deepspeed_config: Path | None,
    run_paths: tuple[str, ...],
    parameters: str | None,
    memory_gib: float | None,
    wrapper: str | None,
    world_size: int | None,
    timeout: float,
    notes: bool,
    budget: Budget,
) -> None:
    """Check the launch environment before a job starts.

    Pass the command you are about to run to check it together with its script. Under torchrun,
    the ranks are compared.

    Exit status: 0 healthy, 1 problem found (notes do not count), 2 bad usage.

    \b
    hangscope doctor -- torchrun --nproc-per-node=8 train.py
    torchrun --nproc-per-node=8 --no-python hangscope doctor
    """
    surroundings = read_surroundings(cmd)
    surroundings = replace(surroundings, env=with_command_environment(surroundings))
    world = _world(surroundings)
    inside = world is not None and world.world_size > 1 and not cmd
    found = list(check_process(surroundings))
    if not inside or (world is not None and world.rank == 0):
        found += check_files(surroundings, script, deepspeed_config)
        found += _traffic(run_paths, budget)
        found += _fit(surroundings, parameters, memory_gib, wrapper, world_size, world)
    if inside and world is not None:
        found = _in_job(surroundings, world, found, timeout)
        if world.rank != 0:
            sys.exit(0 if CheckUp(tuple(found)).healthy else 1)
    shown = [finding for finding in found if notes or finding.level != "note"]
    check_up = CheckUp(sort(shown), tuple(timeout_rows(surroundings)), _facts(surroundings))
    if as_json:
        say(json.dumps(as_dict(check_up), indent=2))
    else:
        _print(check_up)
    sys.exit(0 if check_up.healthy else 1)


def as_dict(check_up: CheckUp) -> dict[str, object]:
    """The report for ``--json``."""
    return {
        "schema": "hangscope/doctor/1",
        "healthy": check_up.healthy,
        "findings": [asdict(finding) for finding in check_up.findings],
        "timeouts": [asdict(row) for row in check_up.timeouts],
        "facts": dict(check_up.facts),
    }


def parse_count(text: str) -> int:
    """``7B``, ``7e9``, ``350M`` or a plain number of parameters."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([kKmMbBtT]?)\s*", text)
    if not match:
        raise UserError(f"--parameters {text}: give a number such as 7e9, 7B or 350M")
    scale = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}[match[2].lower()]
    return round(float(match[1]) * scale)


def _world(s: Surroundings) -> WorldInfo | None:
    try:
        return get_world_info(s.env)
    except ValueError:
        return None  # check_launch reports what is wrong


def _fit(
    s: Surroundings,
    parameters: str | None,
    memory_gib: float | None,
    wrapper: str | None,
    world_size: int | None,
    world: WorldInfo | None,
) -> list[Finding]:
    if parameters is None:
        return []
    count = parse_count(parameters)
    memory = (
        int(memory_gib * 2**30)
        if memory_gib
        else min((device.memory_bytes for device in s.devices if device.memory_bytes), default=0)
    )
    if not memory:
        raise UserError("--parameters needs --memory GIB: no device was found on this host")
    size = world_size or (world.world_size if world else 1)
    return list(check_fit(count, memory, size, wrapper or ""))


def _traffic(paths: Sequence[str], budget: Budget) -> list[Finding]:
    if not paths:
        return []
    no_empty_path(paths)
    from hangscope.toolkit.doctor.traffic import check_traffic
    from hangscope.trace.load import NothingReadable, load_trace

    try:
        trace = load_trace(list(paths), budget=budget)
    except NothingReadable as error:
        raise nothing_readable(paths, error.warnings) from None
    say_warnings(trace.warnings)
    return list(check_traffic(trace))


def _in_job(
    s: Surroundings, world: WorldInfo, local: Sequence[Finding], timeout: float
) -> list[Finding]:
    from hangscope.toolkit.launching.launch import rendezvous_store

    try:
        return examine(s, world, local, rendezvous_store(world, timeout), timeout)
    except BarrierTimeout as error:
        return [*local, missing_finding(error.missing, str(error))]
    except (RuntimeError, ValueError) as error:
        return [*local, missing_finding((), str(error))]


def _facts(s: Surroundings) -> dict[str, object]:
    return {
        "torch": s.torch_version,
        "devices": [device.name or str(device.index) for device in s.devices],
        "interfaces": {i.name: i.kind for i in s.interfaces if i.usable},
        "shm_bytes": s.shm_bytes,
    }


def _print(check_up: CheckUp) -> None:
    console = SafeConsole(highlight=False, soft_wrap=True)
    for finding in check_up.findings:
        colour = _COLOURS[finding.level]
        tag = f" [{finding.playbook}]" if finding.playbook else ""
        ranks = f" ({name_ranks(finding.ranks)})" if finding.ranks else ""
        where = f"{finding.where}: " if finding.where else ""
        console.print(
            f"[{colour}]{finding.level}[/]{escape(tag)} {escape(where + finding.what + ranks)}"
        )
        console.print(f"    [dim]fix:[/] {escape(finding.fix)}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("timeout", no_wrap=True)  # names must be easy to copy
    for heading in ("value", "read by", "effective"):
        table.add_column(heading, overflow="fold")
    for row in check_up.timeouts:
        mark = "yes" if row.effective else "no"
        name = row.name.replace(", ", ",\n").replace(" (", "\n(")
        cells = [name, f"{row.value} ({row.set_by})", row.read_by, mark]
        table.add_row(*(escape(cell) for cell in cells), style=None if row.effective else "dim")
    console.print(table, soft_wrap=False)
    if check_up.healthy:
        console.print("[green]healthy[/]: nothing found that would stop or hang a job")
    else:
        bad = sum(finding.level != "note" for finding in check_up.findings)
        console.print(f"[red]{bad} problem{'s' if bad != 1 else ''} found[/]")
