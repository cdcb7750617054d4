"""Data sources of the application: a live run, or what is left of one.

Both look the same to the application: it asks for a look, and then for its diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from hangscope.diagnosis.model import Diagnosis, RankReport, Side
from hangscope.trace.model import RankFacts, Trace
from hangscope.tui.snapshot import Snapshot, judged, take

if TYPE_CHECKING:
    from hangscope.trace.loading.budget import Budget

LIVE_ROWS = 65_536
"""Records that a live look keeps for all ranks together: 8,192 for each of 8 ranks, 64 for each of
1,024. The others are read only for the verdict on a job that makes no progress."""
_QUICKLY_JUDGED = 200_000
"""Records; the diagnosis of more takes about a second for each 600,000."""
_MANY_RANKS = 512
"""For the diagnosis of a running job that hangs, all records of its ranks are read."""
_STANDS_S, _STANDS_MAX_S = 10.0, 300.0
"""If nothing changes in the job, its verdict is computed again after this many seconds, and each
further time after twice as many, up to the maximum."""
_FACTS = attrgetter(
    "alive", "gil_blocked", "phases", "initialized", "finalized", "exit", "exception", "stack_moved"
)
_REPORT = [field.name for field in fields(RankReport)]
_report = attrgetter(*_REPORT)
_WAITING = _REPORT.index("waiting_s")


class Source(Protocol):
    """Anything that can be looked at, once or repeatedly."""

    @property
    def title(self) -> str:
        """A short title of what is shown."""

    @property
    def live(self) -> bool:
        """Whether looking again can show something new."""

    def look(self) -> Trace:
        """The current trace. May read files; called outside the UI thread."""

    def judge(self, trace: Trace) -> Diagnosis:
        """The diagnosis of the newest look. May read files; called outside the UI thread."""


class LiveReader(Protocol):
    """A live run that re-reads only what has changed."""

    moved: bool
    """Whether any rank has issued or finished anything between the last two looks."""

    @property
    def is_partial(self) -> bool:
        """Whether the last look omitted older records."""

    def look(self) -> Trace:
        """The current trace."""

    def look_at_all(self) -> Trace:
        """The current trace with all records."""

    def ask_for_stacks(self, wanted: Callable[[RankFacts], bool]) -> int:
        """Have ranks that cannot run Python write their stacks, once per stall."""


class StaticSource:
    """A source that was read once: post-mortem, and tests.

    ``judge`` gives its diagnosis, once it is asked for.
    """

    live = False

    def __init__(self, trace: Trace, judge: Callable[[Trace], Diagnosis], title: str = "") -> None:
        self._trace = trace
        self._judge = judge
        self._diagnosis: Diagnosis | None = None
        self.title = title

    def look(self) -> Trace:
        return self._trace

    def judge(self, trace: Trace) -> Diagnosis:
        if self._diagnosis is None:
            self._diagnosis = self._judge(trace)
        return self._diagnosis


class LiveSource:
    """A running job: every look reads what has changed, and diagnoses it if necessary.

    Only with ``ask_stacks`` are ranks that cannot run Python asked for their stacks, by a signal.
    """

    def __init__(
        self,
        run: LiveReader,
        title: str = "",
        *,
        ask_stacks: bool = False,
        source_directories: tuple[str, ...] = (),
    ) -> None:
        self._run = run
        self.title = title
        self._ask_stacks = ask_stacks
        self._source_directories = source_directories
        self.live = True
        self._facts: list[object] = []
        self._judged: Diagnosis | None = None
        self._judged_s = 0.0
        self._stands_s = _STANDS_S

    def look(self) -> Trace:
        trace = self._run.look()
        self.live = trace.live and trace.current
        return trace

    def judge(self, trace: Trace) -> Diagnosis:
        diagnosis = self._standing(trace)
        if diagnosis is None:
            diagnosis = self._judge(trace)
        if diagnosis.findings and self._ask_stacks:
            self._run.ask_for_stacks(lambda facts: bool(facts.gil_blocked))
        return diagnosis

    def _judge(self, trace: Trace) -> Diagnosis:
        from hangscope.diagnosis.engine import diagnose

        diagnosis = diagnose(trace)
        if diagnosis.findings and self._run.is_partial and not self._run.moved:
            diagnosis = diagnose(self._run.look_at_all())
        diagnosis = replace(diagnosis, source_directories=self._source_directories)
        self._judged, self._judged_s = diagnosis, time.monotonic()
        return diagnosis

    def _standing(self, trace: Trace) -> Diagnosis | None:
        """The last verdict, with its waits prolonged, if nothing has changed since.

        Without a finding every look is diagnosed, because a wait becomes a hang merely by lasting
        long enough.
        """
        facts: list[object] = [
            (_FACTS(f), f.main_stack, f.process_state == "stopped", (f.cpu_busy or 0.0) > 0.2)
            for f in trace.ranks.values()
        ]
        same, self._facts = facts == self._facts, facts
        known, passed_s = self._judged, time.monotonic() - self._judged_s
        if not same or self._run.moved or known is None or not known.findings:
            self._stands_s = _STANDS_S
            return None
        if passed_s >= self._stands_s:
            self._stands_s = min(2 * self._stands_s, _STANDS_MAX_S)
            return None
        return later(known, passed_s)


def snapshots(source: Source, *, first: bool) -> Iterator[Snapshot]:
    """One look at a source. Of a large job, the ``first`` gives a picture before its verdict."""
    trace = source.look()
    snapshot = take(trace)
    if first and (len(trace.records) > _QUICKLY_JUDGED or len(trace.ranks) > _MANY_RANKS):
        yield snapshot
    yield judged(snapshot, source.judge(trace))


def later(diagnosis: Diagnosis, passed_s: float) -> Diagnosis:
    """``diagnosis`` of a job that has made no progress for another ``passed_s`` seconds."""
    reports = []
    for report in diagnosis.ranks:
        if report.waiting_s is not None:
            values = list(_report(report))
            values[_WAITING] = report.waiting_s + passed_s
            report = RankReport(*values)
        reports.append(report)
    findings = tuple(
        replace(finding, sides=tuple(_side_later(side, passed_s) for side in finding.sides))
        for finding in diagnosis.findings
    )
    return replace(
        diagnosis,
        ranks=tuple(reports),
        findings=findings,
        stalled_s=_plus(diagnosis.stalled_s, passed_s),
    )


def _side_later(side: Side, passed_s: float) -> Side:
    return replace(
        side,
        waiting_s=_plus(side.waiting_s, passed_s),
        last_age_s=_plus(side.last_age_s, passed_s),
    )


def _plus(known_s: float | None, passed_s: float) -> float | None:
    return None if known_s is None else known_s + passed_s


def open_source(
    paths: Sequence[str],
    *,
    ask_stacks: bool = False,
    source_directories: tuple[str, ...] = (),
    budget: Budget | None = None,
) -> Source:
    """The source for `paths`: live if it is a single run directory with a live process.

    Source files in ``source_directories`` may be quoted, whatever the evidence. ``budget`` is what
    reading may cost.

    Raises `hangscope.trace.load.NothingReadable` if nothing in `paths` can be read.
    """
    from hangscope.diagnosis.engine import diagnose
    from hangscope.trace.live.follow import LiveRun
    from hangscope.trace.live.rings import run_directory_of
    from hangscope.trace.load import load_trace

    title = " ".join(paths)
    directory = run_directory_of(paths[0]) if len(paths) == 1 else None
    if directory is not None:
        run = LiveRun(directory, rows=LIVE_ROWS)
        if run.may_live() and run.look().live:
            return LiveSource(
                run, title, ask_stacks=ask_stacks, source_directories=source_directories
            )
        run.close()
    trace = load_trace(list(paths), budget=budget)
    return StaticSource(
        trace,
        lambda trace: replace(diagnose(trace), source_directories=source_directories),
        title,
    )
