"""``hangscope collect``: bring what a job left on its nodes to one place, small."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import rich_click as click

from hangscope.cli.budget import budget_options
from hangscope.cli.console import say, say_warnings
from hangscope.cli.errors import UserError, cannot_write, nothing_readable
from hangscope.trace.loading.budget import Budget


@click.command("collect")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    help="A file, a URL (s3://bucket/node7.hangscope.tar.gz) or - for standard output; with --on, "
    "a directory or the URL of one.",
)
@click.option(
    "--on",
    "where",
    metavar="WHERE",
    help="Run on all nodes of a job: slurm:JOBID, kubectl:SELECTOR or ssh:HOST,HOST,...",
)
@click.option(
    "--command", "program", default="hangscope", show_default=True, help="HangScope on the nodes."
)
@budget_options
def command(
    paths: tuple[str, ...], output: str, where: str | None, program: str, budget: Budget
) -> None:
    """Reduce what lies on a node to a small bundle, or do so on all nodes of a job.

    A bundle is a tar file with the rings without their unused space, the dumps, logs and journals
    found at PATH, and what is observed of processes that still run. `hangscope analyze` reads
    bundles, directories of bundles called *.hangscope.tar.gz, URLs of either, and a bundle on
    standard input.
    """
    if where is None:
        _collect_here(paths, output, budget)
        return
    from hangscope.cli.fan_out import bring, nodes_of

    nodes = nodes_of(where)
    if not nodes:
        raise UserError(f"--on {where}: no nodes")
    try:
        failed = bring(nodes, [program, "collect", *paths, "-o", "-"], output)
    except OSError as error:
        raise cannot_write(output, error, "-o") from error
    for name, why in failed.items():
        say(f"hangscope: {name}: {why}", err=True)
    say(f"hangscope: {len(nodes) - len(failed)} of {len(nodes)} bundles in {output}", err=True)
    if failed:
        missing = ",".join(failed)
        say(f"hangscope: to fetch: {missing}", err=True)
        sys.exit(1)


def _collect_here(paths: Sequence[str], output: str, budget: Budget) -> None:
    from hangscope.replay import FixtureError
    from hangscope.replay.write import write_evidence
    from hangscope.trace.load import NothingReadable, load_trace
    from hangscope.trace.loading.remote import opened_for_writing
    from hangscope.trace.loading.temporary import temporary_folder

    try:
        trace = load_trace(paths, budget=budget)
    except NothingReadable as error:
        raise nothing_readable(paths, error.warnings) from error
    say_warnings(trace.warnings)
    with temporary_folder() as name:
        folder = Path(name) / "evidence"
        folder.mkdir()
        try:
            write_evidence(trace, paths, folder)
        except FixtureError as error:
            raise UserError(str(error)) from error
        if output == "-":
            _pack(folder, sys.stdout.buffer)
            return
        try:
            with opened_for_writing(output) as file:
                _pack(folder, file)
        except OSError as error:
            raise cannot_write(output, error, "-o") from error
    say(f"hangscope: bundle in {output}; read it with: hangscope analyze {output}", err=True)


def _pack(folder: Path, file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w|gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(folder)), recursive=False)
