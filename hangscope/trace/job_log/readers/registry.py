"""All readers of log lines, and which of them each line is offered to.

Each reader declares what every line it understands contains: one of a few words, or a match of a
regular expression. None of these contains a digit, so the readers for a line follow from the line's
shape (`line_shapes`) and are looked up once per shape. A reader in the middle of a multi-line
report is also offered lines that may continue it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hangscope.trace.job_log.lines import truncation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import ShapeCache, contains_any, shape_of
from hangscope.trace.job_log.readers import (
    blocked_io,
    debug_traces,
    desync,
    elastic_table,
    fatal_errors,
    fr_trace,
    framework_reports,
    gloo,
    kernel_timeouts,
    launcher,
    logging_tracebacks,
    nodes,
    other_launchers,
    ras,
    ray,
    schedulers,
    stacks,
    tracebacks,
    watchdog,
)
from hangscope.trace.job_log.readers.evidence import Evidence


class Reader(NamedTuple):
    """A reader, and what identifies the lines that it may understand."""

    read: Callable[[LogLine, int, Evidence], bool]
    """Records what a line says. Returns whether it understood the line."""
    words: tuple[str, ...] = ()
    form: re.Pattern[str] | None = None
    follows: Callable[[LogLine], bool] | None = None
    """Whether a line may continue a report that it has begun to read."""

    def may_know(self, shape: str) -> bool:
        """Whether it may understand a single line of this shape."""
        if contains_any(shape, self.words):
            return True
        return self.form is not None and self.form.search(shape) is not None


class Readers:
    """All readers for one attempt of the job."""

    def __init__(self, year: int, attempt: int = 0) -> None:
        self.attempt = attempt
        self._starters = other_launchers.OtherLaunchers()
        self._logged = logging_tracebacks.LoggingTracebacks()
        self._table = elastic_table.ElasticTable(year)
        self._stalls = framework_reports.FrameworkReports()
        self._ras = ras.RasReport()
        analysed = fr_trace.FrTrace()
        self._announced = debug_traces.DebugTraces()
        self._kernels = kernel_timeouts.KernelTimeouts()
        self.truncation = truncation.TruncationDetector()
        ray_deaths, raised, stack_lines = ray.RayDeaths(), tracebacks.Tracebacks(), stacks.Stacks()
        self.first_to_know = (
            Reader(ray_deaths.read, ray.WORDS, follows=ray_deaths.follows),
            Reader(raised.read, tracebacks.WORDS, follows=raised.follows),
            Reader(stack_lines.read, stacks.WORDS, stacks.FORM, stack_lines.follows),
            Reader(watchdog.read, watchdog.WORDS, follows=watchdog.follows),
            Reader(self._announced.read, debug_traces.WORDS),
            Reader(self._kernels.read, kernel_timeouts.WORDS),
            Reader(desync.read, desync.WORDS),
            Reader(gloo.read, gloo.WORDS),
            Reader(self._table.read, form=elastic_table.FORM, follows=self._table.follows),
            Reader(schedulers.read, schedulers.WORDS),
            Reader(self._starters.read, other_launchers.WORDS, follows=self._starters.follows),
            Reader(self._stalls.read, framework_reports.WORDS, follows=self._stalls.follows),
            Reader(analysed.read, fr_trace.WORDS, follows=analysed.follows),
            Reader(self._ras.read, form=ras.FORM, follows=self._ras.follows),
            Reader(nodes.Nodes().read, nodes.WORDS),
            Reader(launcher.read, launcher.WORDS),
            Reader(fatal_errors.read, fatal_errors.WORDS, fatal_errors.FORM),
            Reader(blocked_io.read, blocked_io.WORDS),
        )
        self._followers = [
            (1 << place, reader.follows)
            for place, reader in enumerate(self.first_to_know)
            if reader.follows is not None
        ]
        self._of_shape = ShapeCache(self._may_know)
        self._of_bits: dict[int, tuple[Reader, ...]] = {}

    def attributed(self, line: LogLine) -> LogLine:
        """The line, attributed to its writer if an earlier line states who that is."""
        line = self._logged.attributed(line)
        line = self._starters.attributed(line)
        return self._table.attributed(line)

    def finish(self, evidence: Evidence) -> None:
        """Record what is known only once the log has ended."""
        self._table.finish(evidence)
        self._stalls.finish(evidence)
        self._ras.finish(evidence)
        self._announced.finish(evidence)
        self._kernels.finish(evidence)

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> None:
        """Offer the line to one reader after another, until one understands it."""
        asked = self._of_shape[line.shape or shape_of(line.text)]
        for bit, follows in self._followers:
            if not asked & bit and follows(line):
                asked |= bit
        if not asked:
            return
        for reader in self._of_bits.get(asked) or self._chosen(asked):
            if reader.read(line, at_ns, evidence):
                return

    def _may_know(self, shape: str) -> int:
        """A bit for each reader that may understand lines of a shape."""
        return sum(1 << i for i, reader in enumerate(self.first_to_know) if reader.may_know(shape))

    def _chosen(self, bits: int) -> tuple[Reader, ...]:
        chosen = tuple(r for i, r in enumerate(self.first_to_know) if bits >> i & 1)
        self._of_bits[bits] = chosen
        return chosen
