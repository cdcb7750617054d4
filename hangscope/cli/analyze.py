"""``hangscope analyze``: diagnose a job from whatever it has left behind."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli.budget import budget_options
from hangscope.cli.console import Progress, say, say_json, stdout_console
from hangscope.cli.errors import UserError, cannot_write, no_empty_path, nothing_readable
from hangscope.cli.types import Engine, source_option

if TYPE_CHECKING:
    from hangscope.diagnosis.model import Diagnosis
    from hangscope.trace.loading.budget import Budget
    from hangscope.trace.model import Trace

SECOND_LOOK_S = 1.2
"""Time between the two looks at a live job."""
NEWEST_COMPARED = 512
"""How many of each rank's newest records tell who is late; `hangscope slow` reads all."""


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
@click.option("--brief", is_flag=True, help="With --json: no rows for ranks and files.")
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write one self-contained page, for a ticket.",
)
@click.option("--group", metavar="NAME", help="Only findings about this process group.")
@click.option("--rank", type=int, metavar="N", help="Show more about this rank.")
@click.option(
    "--all", "all_findings", is_flag=True, help="Show every finding, not only the first cause."
)
@click.option(
    "--ask-stacks",
    is_flag=True,
    help="Ask live ranks that cannot run Python for their stacks, by a signal to their recorder; "
    "without it, nothing is sent to any process.",
)
@source_option
@click.option(
    "--engine",
    type=Engine(),
    metavar="ENGINE",
    help="What reads rings and dumps: so many processes of this machine, or the workers of "
    "dask://HOST:PORT (a scheduler) or ray://HOST:PORT (a head's client server), which need "
    "HangScope and the files: a shared file system, or URLs.",
)
@click.option("--no-color", is_flag=True, help="No colours, even on a terminal.")
@budget_options
def command(
    paths: tuple[str, ...],
    as_json: bool,
    brief: bool,
    html_file: Path | None,
    group: str | None,
    rank: int | None,
    all_findings: bool,
    ask_stacks: bool,
    source: tuple[str, ...],
    engine: int | str | None,
    no_color: bool,
    budget: Budget,
) -> None:
    """Say who diverged, where, and what to do.

    PATH is a run directory (hangscope-runs/latest is the newest), a directory of Flight Recorder
    dumps of any version, single dumps or rings, stacks, job logs, or `-` for a log on standard
    input. You can mix them.

    Exit status: 0 healthy, 1 problem found, 2 bad usage or nothing readable.
    """
    if brief and not as_json:
        raise UserError("--brief works with --json only")
    trace, diagnosis = investigate(paths, budget, ask_stacks=ask_stacks, engine=engine)
    diagnosis = replace(diagnosis, source_directories=source)
    if diagnosis.verdict.value == "healthy":
        diagnosis = _with_lateness(trace, diagnosis)
    if group is not None and not any(group in (g.name, g.desc, g.label) for g in trace.groups):
        known = ", ".join(sorted({g.label for g in trace.groups})) or "none"
        raise UserError(f"no process group is called {group!r}; there are: {known}")
    if rank is not None and rank not in trace.ranks and rank not in trace.missing_ranks:
        raise UserError(f"no source says anything about rank {rank} of {trace.world_size}")
    if html_file is not None:
        if str(html_file) == "-":
            raise UserError("--html -: the page is written to a file; give its name")
        from hangscope.report.html import to_html

        try:
            html_file.write_text(to_html(diagnosis, trace), encoding="utf-8")
        except OSError as error:
            raise cannot_write(html_file, error, "--html") from error
    if as_json:
        from hangscope.report.json import to_json

        say_json(to_json(diagnosis, brief=brief))
    else:
        from hangscope.report.text import render

        stdout_console(no_color=no_color).print(
            render(diagnosis, all_findings=all_findings, rank=rank, group=group)
        )
    if html_file is not None:
        say(f"wrote {html_file}", err=True)
    sys.exit(0 if diagnosis.verdict.value == "healthy" else 1)


def _with_lateness(trace: Trace, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a healthy job with two lines on who makes the others wait."""
    from hangscope.lateness.lateness import lateness
    from hangscope.report.lateness import remarks
    from hangscope.trace.clocks import align_clocks

    lines = remarks(lateness(align_clocks(trace), newest=NEWEST_COMPARED))
    return replace(diagnosis, notes=(*diagnosis.notes, *lines))


def investigate(
    paths: tuple[str, ...],
    budget: Budget | None = None,
    *,
    ask_stacks: bool = False,
    engine: int | str | None = None,
) -> tuple[Trace, Diagnosis]:
    """Load and diagnose; a running job is looked at twice.

    Only with ``ask_stacks`` is a signal sent to anybody.

    Raises
    ------
    UserError
        If nothing could be read, or the engine cannot be used.
    """
    from hangscope.diagnosis.engine import diagnose
    from hangscope.diagnosis.model import Confidence, Verdict
    from hangscope.monitor.main_threads import MainThreads
    from hangscope.trace.live.follow import LiveRun, is_gil_blocked
    from hangscope.trace.live.rings import run_directory_of
    from hangscope.trace.load import NothingReadable, load_trace
    from hangscope.trace.loading.reading import NoEngine

    no_empty_path(paths)
    with Progress("reading") as progress:
        try:
            trace = load_trace(paths, progress=progress.update, budget=budget, engine=engine)
        except NothingReadable as error:
            raise nothing_readable(paths, error.warnings) from error
        except NoEngine as error:
            raise UserError(str(error)) from error
    diagnosis = diagnose(trace)
    directory = run_directory_of(paths[0]) if len(paths) == 1 else None
    if not (trace.live and trace.current) or directory is None:
        return trace, diagnosis
    if diagnosis.verdict.value == "healthy" and not _is_stalled(trace):
        return trace, diagnosis
    # A problem of a running job has to persist, and only a second look can tell whether a job that
    # has issued nothing for long still moves.
    run = LiveRun(directory)
    first = run.look()
    if ask_stacks:
        run.ask_for_stacks(is_gil_blocked)
    threads = MainThreads()
    threads.any_progressed(first.ranks.values())
    time.sleep(SECOND_LOOK_S)
    trace = run.look()
    run.close()
    diagnosis = diagnose(trace)
    undated = bool(diagnosis.findings and diagnosis.findings[0].unchanged_s)
    if undated and threads.any_progressed(trace.ranks.values()):
        # It has no timestamp on record, and it is not even the same wait in both looks.
        diagnosis = replace(
            diagnosis,
            verdict=Verdict.HEALTHY,
            culprits=(),
            confidence=Confidence.CERTAIN,
            summary="Nothing waits for longer than it should",
            findings=(),
        )
    return trace, diagnosis


def _is_stalled(trace: Trace) -> bool:
    """Whether a running job has issued and finished nothing for longer than its timeout."""
    if not len(trace.records):
        return True
    newest_ns = max(
        int(trace.records["created_ns"].max()), int(trace.records["completed_ns"].max())
    )
    return trace.observed_ns - newest_ns > trace.timeout_s * 1e9
