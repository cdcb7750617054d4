"""``hangscope replay``: recorded hangs must still get their expected verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli.budget import budget_options
from hangscope.cli.console import Progress, say, say_json, stdout_console
from hangscope.cli.errors import UserError, no_empty_path

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hangscope.replay.verify import Outcome
    from hangscope.trace.loading.budget import Budget

SCHEMA = "hangscope/replay/1"


@click.command("replay")
@click.argument("paths", nargs=-1, required=True, metavar="DIR...")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show only fixtures that differ.")
@click.option("-v", "--verbose", is_flag=True, help="Show the report of each failing fixture.")
@click.option(
    "--update",
    is_flag=True,
    help="Show each difference and ask whether the new verdict is right.",
)
@click.option("--yes", is_flag=True, help="With --update: accept without asking.")
@click.option(
    "--redact",
    is_flag=True,
    help="Replace paths, hosts and addresses in the dumps; verdicts must not change.",
)
@click.option("--no-color", is_flag=True, help="No colours, even on a terminal.")
@budget_options
def command(
    paths: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    verbose: bool,
    update: bool,
    yes: bool,
    redact: bool,
    no_color: bool,
    budget: Budget,
) -> None:
    """Check that every recorded fixture below DIR still gets its expected verdict.

    What reading may cost is counted for each fixture anew.

    A fixture is a folder with expected.toml and dumps/; `hangscope export --to fixture` makes one.

    Exit status: 0 all as expected, 1 something differs, 2 no usable fixture.
    """
    folders = _folders(paths)
    if redact:
        _redact(folders)
    outcomes = _verify_all(folders, budget)
    console = stdout_console(no_color=no_color)
    if as_json:
        _print_json(outcomes)
    else:
        shown = [o for o in outcomes if not o.passed] if quiet else outcomes
        if shown:
            console.print(_table(shown))
        for outcome in outcomes:
            if not outcome.passed:
                console.print(_side_by_side(outcome))
                if verbose and outcome.report:
                    console.print(outcome.report)
        passed = sum(o.passed for o in outcomes)
        took_s = sum(o.took_s for o in outcomes)
        console.print(f"{passed} of {len(outcomes)} fixtures as expected ({took_s:.1f} s)")
    failed = [o for o in outcomes if not o.passed]
    if update:
        failed = [o for o in failed if not _update(o, ask=not yes)]
    sys.exit(1 if failed else 0)


def _folders(paths: Sequence[str]) -> list[Path]:
    from hangscope.replay.fixture import FixtureError, find_fixtures

    no_empty_path(paths)
    try:
        folders = find_fixtures(paths)
    except FixtureError as error:
        raise UserError(str(error)) from error
    if not folders:
        raise UserError(
            f"no fixture below {' '.join(paths)}: a fixture is a folder with expected.toml and "
            "dumps/; hangscope export PATH --to fixture makes one"
        )
    return folders


def _verify_all(folders: Sequence[Path], budget: Budget) -> list[Outcome]:
    from hangscope.replay.fixture import FixtureError, load_fixture
    from hangscope.replay.verify import verify

    outcomes = []
    with Progress("replaying") as progress:
        for done, folder in enumerate(folders, start=1):
            try:
                outcomes.append(verify(load_fixture(folder), replace(budget)))
            except FixtureError as error:
                raise UserError(str(error)) from error
            progress.update(done, len(folders))
    return outcomes


def _redact(folders: Sequence[Path]) -> None:
    from hangscope.replay.fixture import FixtureError
    from hangscope.replay.write import redact_fixture

    for folder in folders:
        try:
            redact_fixture(folder)
        except (FixtureError, ValueError) as error:
            raise UserError(f"{folder} was not changed: {error}") from error
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror or error}") from error


def _table(outcomes: Sequence[Outcome]) -> RenderableType:
    from rich.table import Table

    from hangscope.replay.verify import ranks

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("fixture", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("culprits")
    table.add_column("confidence", no_wrap=True)
    table.add_column("ms", justify="right")
    for outcome in outcomes:
        diagnosis = outcome.diagnosis
        table.add_row(
            "ok" if outcome.passed else "DIFFERS",
            outcome.fixture.name,
            diagnosis.verdict.value if diagnosis else "unreadable",
            ranks(tuple(sorted(diagnosis.culprits))) if diagnosis else "",
            diagnosis.confidence.value if diagnosis else "",
            f"{outcome.took_s * 1000:.0f}",
            style="" if outcome.passed else "bold red",
        )
    return table


def _side_by_side(outcome: Outcome) -> RenderableType:
    from rich.table import Table

    table = Table(
        title=f"{outcome.fixture.path}", title_justify="left", title_style="bold", expand=False
    )
    table.add_column("")
    table.add_column("expected", overflow="fold")
    table.add_column("got", overflow="fold")
    for difference in outcome.differences:
        table.add_row(difference.what, difference.expected, difference.got)
    if outcome.fixture.expected.story:
        table.add_row("story", outcome.fixture.expected.story, "", style="dim")
    if outcome.diagnosis is not None:
        table.add_row("summary", "", outcome.diagnosis.summary, style="dim")
    return table


def _update(outcome: Outcome, *, ask: bool) -> bool:
    """Accept the new verdict; True if the fixture passes from now on."""
    from hangscope.replay.fixture import EXPECTED, load_fixture, updated_toml
    from hangscope.replay.verify import verify
    from hangscope.report.escape import visible

    diagnosis = outcome.diagnosis
    if diagnosis is None:
        return False
    name = outcome.fixture.name
    culprits = sorted(diagnosis.culprits)
    if ask and not click.confirm(
        f"{visible(name)}: is {diagnosis.verdict.value} {culprits} the right answer?", err=True
    ):
        return False
    changes: dict[str, str | Sequence[int]] = {}
    for difference in outcome.differences:
        if difference.what == "verdict":
            changes["verdict"] = diagnosis.verdict.value
        elif difference.what == "culprits":
            changes["culprits"] = culprits
        elif difference.what == "confidence":
            changes["confidence"] = diagnosis.confidence.value
        elif difference.what == "playbook":
            first = diagnosis.findings[0].playbook if diagnosis.findings else ""
            changes["playbook"] = first.split(",")[0].strip()
    file = outcome.fixture.path / EXPECTED
    file.write_text(updated_toml(file.read_text("utf-8"), changes), encoding="utf-8")
    again = verify(load_fixture(outcome.fixture.path))
    for difference in again.differences:
        say(
            f"{name}: {difference.what} {difference.expected!r} is left to you: {difference.got}",
            err=True,
        )
    return again.passed


def _print_json(outcomes: Sequence[Outcome]) -> None:
    import orjson

    from hangscope.report.json import to_json

    document = {
        "schema": SCHEMA,
        "passed": sum(o.passed for o in outcomes),
        "failed": sum(not o.passed for o in outcomes),
        "fixtures": [
            {
                "path": str(o.fixture.path),
                "passed": o.passed,
                "took_s": round(o.took_s, 4),
                "expected": {
                    "verdict": o.fixture.expected.verdict,
                    "culprits": list(o.fixture.expected.culprits),
                },
                "differences": [
                    {"what": d.what, "expected": d.expected, "got": d.got} for d in o.differences
                ],
                "diagnosis": orjson.loads(to_json(o.diagnosis)) if o.diagnosis else None,
            }
            for o in outcomes
        ],
    }
    say_json(orjson.dumps(document, option=orjson.OPT_INDENT_2))
