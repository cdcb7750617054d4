"""``hangscope export``: the same run in another tool's form."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from hangscope.cli.errors import UserError

FORMS = ("flight-recorder", "perfetto", "html", "fixture")


@click.command("export")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="The form to write.")
@click.option("-o", "--output", required=True, metavar="OUT", help="File or directory to write.")
def command(paths: tuple[str, ...], form: str, output: str) -> None:
    """Write a run in another tool's form.

    \b
    flight-recorder  a directory of dumps that torchfrtrace reads
    perfetto         a trace file for ui.perfetto.dev and chrome://tracing
    html             one self-contained page, fit for a ticket
    fixture          a recorded hang for `hangscope replay`
    """
    from hangscope.trace.load import NothingReadable, load_trace

    try:
        trace = load_trace(list(paths))
    except NothingReadable as error:
        raise UserError(f"nothing readable in {' '.join(paths)}: {error}") from error
    out = Path(output)
    try:
        done = _write(trace, paths, form, out)
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}; give another place with -o") from error
    for warning in trace.warnings:
        click.echo(f"hangscope: {warning}", err=True)
    click.echo(f"hangscope: {done}", err=True)


def _write(trace: object, paths: tuple[str, ...], form: str, out: Path) -> str:
    """Write `trace` as `form`; returns a word on what was written."""
    from hangscope.trace.model import Trace

    assert isinstance(trace, Trace)
    if form == "flight-recorder":
        from hangscope.report import flight_recorder

        files = flight_recorder.write(trace, out)
        return f"{len(files)} dumps in {out}; judge them with: torchfrtrace {out}"
    from hangscope.diagnosis.engine import diagnose

    diagnosis = diagnose(trace)
    if form == "fixture":
        from importlib import import_module

        try:
            write_fixture = import_module("hangscope.replay").write_fixture
        except (ImportError, AttributeError) as error:
            raise UserError("this version cannot write fixtures") from error
        write_fixture(trace, diagnosis, paths, out)
        return f"fixture in {out}"
    if form == "html":
        from hangscope.report.html import to_html

        out.write_text(to_html(diagnosis, trace), encoding="utf-8")
        return f"page in {out}"
    from hangscope.report import perfetto

    with out.open("wb") as file:
        count = perfetto.write(trace, diagnosis, file)
    return f"{count} events in {out}; open it at https://ui.perfetto.dev"
