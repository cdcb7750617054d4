"""``hangscope slow``: who makes everybody wait, how often, and what it costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli.budget import budget_options
from hangscope.cli.console import Progress, say_json, say_warnings, stdout_console
from hangscope.cli.errors import no_empty_path, nothing_readable

if TYPE_CHECKING:
    from hangscope.trace.loading.budget import Budget


@click.command("slow")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print the analysis as JSON.")
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="List that many ranks and call sites.",
)
@click.option(
    "--least",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Name who costs at least this much of the time.",
)
@click.option("--no-color", is_flag=True, help="No colours, even on a terminal.")
@budget_options
def command(
    paths: tuple[str, ...], as_json: bool, top: int, least: float, no_color: bool, budget: Budget
) -> None:  # fmt: skip
    """Say who makes everybody wait, how often, and what it costs.

    PATH is anything that `hangscope analyze` reads with times in it: run directories (a running
    job's, too) and Flight Recorder dumps. For every collective of which all members are recorded,
    it compares when they arrived, with the clocks of all hosts aligned.

    Exit status: 0 nobody is late more often than chance explains, 1 somebody is, 2 bad usage or
    nothing readable.
    """
    from hangscope.lateness.lateness import lateness
    from hangscope.trace.clocks import align_clocks
    from hangscope.trace.load import NothingReadable, load_trace

    no_empty_path(paths)
    with Progress("reading") as progress:
        try:
            trace = load_trace(paths, progress=progress.update, budget=budget)
        except NothingReadable as error:
            raise nothing_readable(paths, error.warnings) from error
    say_warnings(trace.warnings)
    found = lateness(align_clocks(trace), least_share=least / 100)
    if as_json:
        import orjson

        from hangscope.report.lateness import to_dict

        say_json(orjson.dumps(to_dict(found), option=orjson.OPT_INDENT_2))
    else:
        from hangscope.report.lateness import render

        stdout_console(no_color=no_color).print(render(found, top=top))
    sys.exit(1 if found.stragglers else 0)
