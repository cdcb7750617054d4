"""Diagnoses a fixture and compares the result with the expectation."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass, replace
from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.replay.fixture import Expected, Fixture, FixtureError
from hangscope.replay.observed import read_dump_time, read_moment
from hangscope.report.safe_console import SafeConsole
from hangscope.report.text import render
from hangscope.trace import formats
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.loading.budget import Budget
from hangscope.trace.model import Trace

_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from the expectation; both values as texts."""

    what: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one fixture. ``diagnosis`` is None if its dumps could not be read."""

    fixture: Fixture
    diagnosis: Diagnosis | None
    differences: tuple[Difference, ...]
    report: str = ""
    took_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.differences


def load_recorded(dumps: Path, budget: Budget | None = None) -> Trace:
    """The trace of a fixture's ``dumps``, as of the time it was recorded.

    Raises
    ------
    NothingReadable
        If no file in it can be used.
    """
    moment = read_moment(dumps)
    if moment is None:
        return _dated(load_trace([dumps], budget=budget), read_dump_time(dumps))
    trace = load_trace([dumps], now_ns=moment.observed_ns, budget=budget)
    return replace(trace, live=True, looks=moment.looks, observed_ns=moment.observed_ns)


def _dated(trace: Trace, dumped_ns: int) -> Trace:
    """Date dumps and logs by when they were written, or not at all: mtimes are the checkout's."""
    own = {s.rank for s in trace.sources if s.format in (formats.RING, formats.JOURNAL)}
    ranks = {
        rank: facts if rank in own else replace(facts, observed_ns=dumped_ns)
        for rank, facts in trace.ranks.items()
    }
    newest = max((facts.observed_ns for facts in ranks.values()), default=0)
    return replace(trace, ranks=ranks, observed_ns=newest)


def diagnose_fixture(fixture: Fixture, budget: Budget | None = None) -> tuple[Trace, Diagnosis]:
    """Read and diagnose a fixture; ``budget`` is what reading it may cost.

    Raises
    ------
    FixtureError
        If nothing in its ``dumps`` can be read.
    """
    try:
        trace = load_recorded(fixture.dumps, budget)
    except NothingReadable as error:
        raise FixtureError(f"{fixture.dumps}: {error}") from error
    return trace, diagnose(trace)


def verify(fixture: Fixture, budget: Budget | None = None) -> Outcome:
    """Check that a fixture still gets its verdict; never raises because of its dumps' content.

    ``budget``: what reading it may cost.
    """
    began_s = time.perf_counter()
    try:
        _, diagnosis = diagnose_fixture(fixture, budget)
    except FixtureError as error:
        problem = Difference("dumps", "readable", str(error))
        return Outcome(fixture, None, (problem,), took_s=time.perf_counter() - began_s)
    report = report_text(diagnosis)
    found = differences(fixture.expected, diagnosis, report)
    return Outcome(fixture, diagnosis, found, report, time.perf_counter() - began_s)


def report_text(diagnosis: Diagnosis) -> str:
    """The text report without colours, wide enough that hardly any line is wrapped."""
    out = io.StringIO()
    console = SafeConsole(
        file=out, width=_WIDTH, no_color=True, highlight=False, markup=False, emoji=False
    )
    console.print(render(diagnosis))
    return out.getvalue()


def differences(expected: Expected, diagnosis: Diagnosis, report: str) -> tuple[Difference, ...]:
    """The differences between a diagnosis and the expectation."""
    found = []
    first = diagnosis.findings[0] if diagnosis.findings else None
    if diagnosis.verdict.value != expected.verdict:
        found.append(Difference("verdict", expected.verdict, diagnosis.verdict.value))
    culprits = tuple(sorted(diagnosis.culprits))
    if culprits != expected.culprits:
        found.append(Difference("culprits", ranks(expected.culprits), ranks(culprits)))
    if expected.confidence is not None and diagnosis.confidence.value != expected.confidence:
        found.append(Difference("confidence", expected.confidence, diagnosis.confidence.value))
    playbook = first.playbook if first is not None else ""
    if expected.playbook and expected.playbook not in playbook.replace(",", " ").split():
        found.append(Difference("playbook", expected.playbook, playbook or "none"))
    flat = " ".join(report.split())
    missing = [t for t in expected.must_mention if " ".join(t.split()) not in flat]
    found += [Difference("must mention", text, "is not in the report") for text in missing]
    unwanted = [t for t in expected.must_not_mention if " ".join(t.split()) in flat]
    found += [Difference("must not mention", f"not {t}", _line_with(t, report)) for t in unwanted]
    return tuple(found)


def ranks(culprits: tuple[int, ...]) -> str:
    """Ranks as a short text."""
    return " ".join(map(str, culprits)) or "none"


def _line_with(text: str, report: str) -> str:
    return next((line.strip() for line in report.splitlines() if text in line), text)
