"""Every trace that the tests of the diagnosis give to the engine, with the answer of today.

There is no truth to compare with: the answer of the engine as it is counts as exact, and any other
as undecided, or wrong where it names a rank that was not named before. Tests of random input are
left out.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import hangscope.diagnosis.engine as engine
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.model import Trace
from tools.ablation.corpora import Case
from tools.simulator.outcomes import EXACT, UNDECIDED, WRONG

_ROOT = Path(__file__).parents[2]
_EACH = 12
"""Traces kept of one test at most."""


def from_tests() -> Iterator[Case]:
    """Run the tests of the diagnosis and yield what they diagnosed."""
    collector = _Collector()
    judged = engine._judge
    engine._judge = collector.note
    collector.judge = judged
    try:
        pytest.main(
            ["-q", "-q", "-p", "no:cacheprovider", "-n", "0", str(_ROOT / "tests" / "diagnosis")]
            + [f"--ignore-glob=*{word}*.py" for word in ("fuzz",)],
            plugins=[collector],
        )
    finally:
        engine._judge = judged
        faulthandler.cancel_dump_traceback_later()  # pytest leaves the last test's timer armed
    for name, trace in collector.traces:
        yield Case(name, trace, partial(_as_today, engine.diagnose(trace)))


class _Collector:
    """A plugin of pytest that knows which test is running."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, Trace]] = []
        self.judge = engine._judge
        self._test = ""
        self._of_test = 0

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test, self._of_test = item.nodeid.rpartition("/")[2], 0

    def note(self, trace: Trace) -> Diagnosis:
        if self._of_test < _EACH:
            self._of_test += 1
            self.traces.append((self._test, trace))
        return self.judge(trace)


def _as_today(today: Diagnosis, found: Diagnosis) -> tuple[str, bool]:
    if (found.verdict, found.culprits) == (today.verdict, today.culprits):
        return EXACT, False
    innocents = set(found.culprits) - set(today.culprits)
    certain = bool(innocents) and found.confidence is Confidence.CERTAIN
    return (WRONG if innocents else UNDECIDED), certain
