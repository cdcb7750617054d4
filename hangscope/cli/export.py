"""``hangscope export``: convert a run for other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli.budget import budget_options
from hangscope.cli.console import say, say_warnings
from hangscope.cli.errors import UserError, cannot_write
from hangscope.cli.types import source_option

if TYPE_CHECKING:
    from hangscope.diagnosis.model import Diagnosis
    from hangscope.trace.loading.budget import Budget
    from hangscope.trace.model import Trace

FORMS = ("flight-recorder", "perfetto", "html", "fixture")


@click.command("export")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--to",
    "form",
    type=click.Choice(FORMS),
    metavar="FORM",
    required=True,
    help="flight-recorder, perfetto, html or fixture.",
)
@click.option("-o", "--output", required=True, metavar="OUT", help="File or directory to write.")
@click.option(
    "--redact", is_flag=True, help="Replace directories, hosts and addresses (fixtures only)."
)
@source_option
@budget_options
def command(
    paths: tuple[str, ...],
    form: str,
    output: str,
    redact: bool,
    source: tuple[str, ...],
    budget: Budget,
) -> None:
    """Convert a run for other tools.

    \b
    flight-recorder  a directory of dumps that torchfrtrace reads
    perfetto         a trace file for ui.perfetto.dev and chrome://tracing
    html             one self-contained page, for a ticket
    fixture          a recorded hang for `hangscope replay`
    """
    if redact and form != "fixture":
        raise UserError(f"--redact works with --to fixture only, not with --to {form}")
    if output == "-":
        raise UserError("-o -: the output is a file or directory; give its name")
    from hangscope.cli.analyze import investigate

    trace, diagnosis = investigate(paths, budget)
    diagnosis = replace(diagnosis, source_directories=source)
    out = Path(output)
    try:
        done = _write(trace, diagnosis, form, out, paths, redact)
    except OSError as error:
        raise cannot_write(out, error, "-o") from error
    say_warnings(trace.warnings)
    say(f"hangscope: {done}", err=True)


def _lost_in(dumps: Sequence[Path], diagnosis: Diagnosis) -> str:
    """One line if these dumps, analysed again, do not give the verdict of their source."""
    from hangscope.diagnosis.engine import diagnose
    from hangscope.trace.load import NothingReadable, load_trace
    from hangscope.trace.rank_text import named

    try:
        again = diagnose(load_trace(dumps))
        got = again.verdict.value, again.culprits
    except NothingReadable:
        got = "nothing", ()
    if got == (diagnosis.verdict.value, diagnosis.culprits):
        return ""
    verdicts = [
        f"{verdict} ({named(ranks, 60)})" if ranks else verdict
        for verdict, ranks in (got, (diagnosis.verdict.value, diagnosis.culprits))
    ]
    return (
        f"the format has no place for some of the evidence: analysed again, these dumps give "
        f"{verdicts[0]} instead of {verdicts[1]}"
    )


def _write(
    trace: Trace, diagnosis: Diagnosis, form: str, out: Path, paths: tuple[str, ...], redact: bool
) -> str:
    """Write the run as `form`; returns a message on what was written. Raises `OSError`."""
    if form == "flight-recorder":
        from hangscope.report import flight_recorder

        files = flight_recorder.write(trace, out)
        if lost := _lost_in(files, diagnosis):
            say(f"hangscope: {lost}", err=True)
        return f"{len(files)} dumps in {out}; judge them with: torchfrtrace {out}"
    if form == "html":
        from hangscope.report.html import to_html

        out.write_text(to_html(diagnosis, trace), encoding="utf-8")
        return f"page in {out}"
    if form == "perfetto":
        from hangscope.report import perfetto

        with out.open("wb") as file:
            count = perfetto.write(trace, diagnosis, file)
        return f"{count} events in {out}; open it at https://ui.perfetto.dev"
    from hangscope.replay import FixtureError, write_fixture

    try:
        write_fixture(trace, diagnosis, paths, out, redact=redact)
    except FixtureError as error:
        raise UserError(str(error)) from error
    return f"fixture in {out}; check it with: hangscope replay {out}"
