"""The corpora: traces with the truth about them, and how an answer is judged.

A trace is made once and diagnosed often, so a case keeps no files.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.replay.fixture import Fixture, find_fixtures, load_fixture
from hangscope.replay.verify import differences, load_recorded, report_text
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.model import Trace
from tools.simulator.case import Case as SimulatedCase
from tools.simulator.case import Truth
from tools.simulator.dialects import DIALECTS, Dialect
from tools.simulator.erosion import eroded, some_case
from tools.simulator.outcomes import EXACT, UNDECIDED, WRONG
from tools.simulator.score import IN_LOGS, draws, expected, judge, observed

Judge = Callable[[Diagnosis], tuple[str, bool]]
"""(outcome, whether an innocent rank is named as certain) of an answer."""

FIXTURES = Path(__file__).parents[2] / "fixtures"


@dataclass(frozen=True)
class Case:
    """One trace and how an answer to it is judged."""

    name: str
    trace: Trace
    judge: Judge


def simulated(cases: int, seed: int, **options: bool | list[str]) -> Iterator[Case]:
    """Cases of ``python -m tools.simulator`` with the same options."""
    folder = Path(tempfile.mkdtemp(prefix="hangscope-ablation-"))
    try:
        for case, dialect in draws(cases, seed, **options):  # type: ignore[arg-type]
            trace = observed(case, dialect, folder / str(case.number))
            shutil.rmtree(folder / str(case.number), ignore_errors=True)
            name = f"#{case.number} {case.truth.fault}, {dialect.name}"
            yield Case(name, trace, partial(_as_scored, case, dialect))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_scored(case: SimulatedCase, dialect: Dialect, found: Diagnosis) -> tuple[str, bool]:
    outcome, _, certain = judge(case, dialect, found)
    return outcome, certain


def with_less_evidence(cases: int, seed: int) -> Iterator[Case]:
    """Simulated cases with parts of the evidence missing at random."""
    for number in range(cases):
        rng = random.Random(f"{seed}/{number}")
        case = some_case(rng, number)
        with tempfile.TemporaryDirectory(prefix="hangscope-ablation-") as folder:
            lost = eroded(case, rng, Path(folder))
            try:
                trace = load_trace([folder])
            except NothingReadable:
                continue
        truth = expected(case, DIALECTS["pickle 2.10"])
        name = f"#{number} {case.truth.fault}, eroded"
        yield Case(name, trace, partial(_fair, truth, lost))


def _fair(truth: Truth, lost: frozenset[int], found: Diagnosis) -> tuple[str, bool]:
    """Ranks without a dump may be named beside the culprits."""
    fair = truth.culprits | truth.ambiguous_with | lost
    certain = any(
        not fair.issuperset(f.culprits)
        for f in found.findings
        if f.confidence is Confidence.CERTAIN
    )
    named = set(found.culprits)
    if named == truth.culprits and found.verdict.value in truth.verdicts:
        return EXACT, certain
    everyone = {rank for f in found.findings for rank in f.culprits}
    return (UNDECIDED if everyone <= fair else WRONG), certain


def recorded() -> Iterator[Case]:
    """The recorded fixtures, whose answers must be as expected."""
    for path in find_fixtures([FIXTURES]):
        fixture = load_fixture(path)
        yield Case(fixture.name, load_recorded(fixture.dumps), partial(_as_expected, fixture))


def _as_expected(fixture: Fixture, found: Diagnosis) -> tuple[str, bool]:
    expectation = fixture.expected
    wrong = differences(expectation, found, report_text(found))
    innocents = set(found.culprits) - set(expectation.culprits)
    certain = bool(innocents) and found.confidence is Confidence.CERTAIN
    return (WRONG if innocents else UNDECIDED) if wrong else EXACT, certain


def fixtures_with_less(seed: int) -> Iterator[Case]:
    """Fixtures without the files of one rank: only that rank may be named in place of another."""
    for path in find_fixtures([FIXTURES]):
        fixture = load_fixture(path)
        rng = random.Random(f"{seed}/{fixture.name}")
        trace = load_recorded(fixture.dumps)
        files = sorted({s.rank for s in trace.sources if s.rank is not None and s.rank >= 0})
        if len(files) < 3:
            continue
        lost = rng.choice(files)
        with tempfile.TemporaryDirectory(prefix="hangscope-ablation-") as folder:
            dumps = Path(folder) / "dumps"
            shutil.copytree(fixture.dumps, dumps)
            for source in trace.sources:
                if source.rank == lost:
                    (dumps / Path(source.path).name).unlink(missing_ok=True)
            try:
                less = load_recorded(dumps)
            except NothingReadable:
                continue
        truth = Truth(
            "", frozenset({fixture.expected.verdict}), frozenset(fixture.expected.culprits)
        )
        yield Case(f"{fixture.name} without {lost}", less, partial(_fair, truth, frozenset([lost])))


CORPORA: dict[str, Callable[[float, int], Iterator[Case]]] = {
    "default": lambda size, seed: simulated(int(600 * size), seed),
    "several": lambda size, seed: simulated(int(200 * size), seed, several=True),
    "two": lambda size, seed: simulated(int(120 * size), seed, two=True),
    "lose-victim": lambda size, seed: simulated(int(240 * size), seed, lose=True),
    "eroded": lambda size, seed: with_less_evidence(int(160 * size), seed),
    "logs": lambda size, seed: simulated(
        int(120 * size), seed, dialects=["job log"], faults=sorted(IN_LOGS)
    ),
    "fixtures": lambda size, seed: recorded(),
    "fixtures-less": lambda size, seed: fixtures_with_less(seed),
}
"""By name: made for a size (1 is the usual number of cases) and a seed."""
