"""``hangscope demo``: a real multi-process job with a real fault, and the verdict on it."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import rich_click as click

from hangscope.cli.console import say, stdout_console
from hangscope.cli.errors import UserError, cannot_write
from hangscope.cli.types import Seconds
from hangscope.demos.catalogue import BY_NAME, DEFAULT, DEMOS, Demo


@click.command("demo")
@click.argument(
    "names",
    nargs=-1,
    metavar="[NAME]...",
    shell_complete=lambda ctx, param, begun: [n for n in BY_NAME if n.startswith(begun)],
)
@click.option(
    "--list", "list_them", is_flag=True, help="List the faults and their expected verdicts."
)
@click.option("--all", "all_of_them", is_flag=True, help="Run all of them, one after another.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.5, 3600),
    metavar="SECONDS",
    default=4.0,
    show_default=True,
    help="HANGSCOPE_TIMEOUT of the job.",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep the run here.")
def command(
    names: tuple[str, ...],
    list_them: bool,
    all_of_them: bool,
    timeout_s: float,
    directory: Path | None,
) -> None:
    """Run a real 4-rank training job with a real fault, and show the verdict on it.

    Needs torch. The job trains a small DDP model over Gloo with a second process group; the report
    is the one HangScope prints into the job's own log.
    """
    if list_them:
        _list()
        return
    demos = [_find(name) for name in names] or [BY_NAME[DEFAULT]]
    if all_of_them:
        demos = list(DEMOS)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("the demo needs torch: pip install 'hangscope[torch]'") from error
    wrong = [demo.name for demo in demos if not _show(demo, timeout_s, directory)]
    if wrong:
        raise UserError(f"wrong verdict for: {', '.join(wrong)}", exit_status=1)


def _find(name: str) -> Demo:
    demo = BY_NAME.get(name)
    if demo is None:
        raise UserError(f"no demo is called {name!r}; hangscope demo --list names them")
    return demo


def _list() -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("what happens")
    table.add_column("verdict", no_wrap=True)
    table.add_column("culprits", no_wrap=True)
    for demo in DEMOS:
        table.add_row(
            demo.name, demo.story, demo.verdict, " ".join(map(str, demo.culprits)) or "none"
        )
    stdout_console().print(table)


def _show(demo: Demo, timeout_s: float, directory: Path | None) -> bool:
    from hangscope.cli.analyze import investigate
    from hangscope.demos.launch import run_demo
    from hangscope.diagnosis.model import Diagnosis
    from hangscope.recording.ring_location import link_latest
    from hangscope.report.text import render

    where = directory or Path("hangscope-runs") / f"demo-{demo.name}"
    named, where = where, where.resolve()
    try:
        if directory is None and where.exists():
            shutil.rmtree(where)
        where.mkdir(parents=True, exist_ok=True)
        if directory is None:
            link_latest(where)
    except OSError as error:
        raise cannot_write(where, error, "--dir") from error
    say(f"demo {demo.name}: {demo.story}", err=True)
    found: list[Diagnosis] = []

    def inspect(path: Path) -> None:
        found.append(investigate((str(path),))[1])

    began_s = time.monotonic()
    run = run_demo(
        demo,
        where,
        timeout_s=timeout_s,
        inspect=inspect,
        echo=lambda line: say(f"  │ {line}", err=True),
    )
    diagnosis = found[0]
    say("\nand `hangscope analyze` on the same run:\n", err=True)
    stdout_console().print(render(diagnosis))
    right = (
        diagnosis.verdict.value == demo.verdict
        and tuple(sorted(diagnosis.culprits)) == demo.culprits
        and run.reported == (demo.verdict != "healthy")
    )
    expected = f"{demo.verdict} {list(demo.culprits) or ''}".strip()
    spoken = (
        ""
        if run.reported_after_s is None
        else f", reported {run.reported_after_s:.1f} s after the stall"
    )
    say(
        f"{'right' if right else 'WRONG'}: expected {expected}{spoken} "
        f"({time.monotonic() - began_s:.0f} s in all); look at it: hangscope tui {named}",
        err=True,
    )
    sys.stderr.flush()
    return right
