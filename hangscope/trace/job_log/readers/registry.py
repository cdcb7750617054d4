"""All readers of log lines, and which of them each line is offered to.

Whether a row or a reader may understand a line follows from the literals of its expressions, none
of which depends on a digit. So it follows from the line's shape (`line_shapes`) and is found out
once per shape. Whoever is in the middle of a report is also offered lines that may continue it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines import truncation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import ShapeCache, contains_any, shape_of
from hangscope.trace.job_log.readers import debug_traces, elastic_table, ras, stacks, tracebacks
from hangscope.trace.job_log.rows.literals import shortest
from hangscope.trace.job_log.rows.row import Report, Row, Said
from hangscope.trace.job_log.rows.table import ROWS

_MOST_REPORTS = 16
"""Reports that are open at one time; the oldest is given up."""
_ELSEWHERE = (
    "[hangscope]", "==> ", "]:[E", "ProcessGroup", '"MESSAGE":[', "RankID:", "Service thread",
    "torch/distributed/run.py", "torch.distributed.run", "distributed.elastic",
    "distributed/elastic",
)  # fmt: skip
"""What prefixes and attribution look for: a block that contains one of these matters, too."""


class Reader(NamedTuple):
    """Whoever may understand a line, and what identifies the lines that it may understand."""

    read: Callable[[LogLine, Attempt], bool | Report | None]
    """Records what a line says. Returns whether it understood the line, or the report that the
    line begins."""
    literals: tuple[str, ...] = ()
    form: re.Pattern[str] | None = None
    follows: Callable[[LogLine], bool] | None = None
    """Whether a line may continue a report that it has begun to read."""

    def may_know(self, shape: str) -> bool:
        """Whether it may understand a single line of this shape."""
        if contains_any(shape, self.literals):
            return True
        return self.form is not None and self.form.search(shape) is not None


def _reader_of(known: Row) -> Reader:
    search, note = known.line.search, known.note

    def read(line: LogLine, attempt: Attempt) -> bool | Report | None:
        found = search(line.text)
        if found is None:
            return False
        return note(Said(line._replace(payload=found.start()), found), attempt)

    return Reader(read, known.literals)


_OF_ROWS = tuple(map(_reader_of, ROWS))


@lru_cache(maxsize=1)
def telling_words() -> tuple[bytes, ...]:
    """A block of a log without any of these says nothing."""
    of_rows = (text for known in ROWS if not known.passing for text in known.literals)
    heads = (known.HEADS for known in (tracebacks, stacks, debug_traces, elastic_table, ras))
    words = shortest([*of_rows, *chain.from_iterable(heads), *_ELSEWHERE])
    return tuple(word.encode() for word in words)


class Readers:
    """All readers for one attempt of the job."""

    def __init__(self, year: int) -> None:
        self._table, self._ras = elastic_table.ElasticTable(year), ras.RasReport()
        self._announced, self._raised = debug_traces.DebugTraces(), tracebacks.Tracebacks()
        self.truncation = truncation.TruncationDetector()
        stack_lines = stacks.Stacks()
        self._all = (
            Reader(self._raised.read, tracebacks.WORDS, follows=self._raised.follows),
            Reader(stack_lines.read, form=stacks.FORM, follows=stack_lines.follows),
            Reader(self._announced.read, debug_traces.WORDS),
            Reader(self._table.read, form=elastic_table.FORM, follows=self._table.follows),
            Reader(self._ras.read, form=ras.FORM, follows=self._ras.follows),
            Reader(self._raised.read_loose, tracebacks.LOOSE),
            *_OF_ROWS,
        )
        self._followers = [(1 << i, r.follows) for i, r in enumerate(self._all) if r.follows]
        self._reports: list[Report] = []
        self._of_shape = ShapeCache(self._may_know)
        self._of_bits: dict[int, tuple[Reader, ...]] = {}

    def attributed(self, line: LogLine) -> LogLine:
        """The line, attributed to the rank whose traceback torchrun's table quotes."""
        return self._table.attributed(line)

    def is_truncated(self, newest: LogLine) -> bool:
        """Whether the log, whose last line is ``newest``, was cut at its end or its beginning."""
        return self._raised.inside == newest.number or self.truncation.is_truncated(newest)

    def finish(self, attempt: Attempt) -> None:
        """Record what is known only once the log has ended."""
        self._table.finish(attempt)
        for tell in [*attempt.at_end.values()]:
            tell()
        self._ras.finish(attempt)
        self._announced.finish(attempt)
        self._raised.finish(attempt)

    def read(self, line: LogLine, attempt: Attempt) -> None:
        """Offer the line to open reports and then to one reader after another, until one
        understands it."""
        if self._reports and self._continue(line):
            return
        asked = self._of_shape[line.shape or shape_of(line.text)]
        for bit, follows in self._followers:
            if not asked & bit and follows(line):
                asked |= bit
        if not asked:
            return
        for reader in self._of_bits.get(asked) or self._chosen(asked):
            known = reader.read(line, attempt)
            if known is not False and (known is None or known is True or self._begin(known)):
                return

    def _begin(self, report: Report) -> bool:
        """Begin a report. Returns whether no other reader needs its first line."""
        known = next(report, True)
        self._reports = [*self._reports[1 - _MOST_REPORTS :], report]
        return known

    def _continue(self, line: LogLine) -> bool:
        """Offer the line to open reports. Returns whether it belongs to one of them."""
        for report in [*self._reports]:
            try:
                if report.send(line):
                    return True
            except StopIteration:
                self._reports.remove(report)
        return False

    def _may_know(self, shape: str) -> int:
        """A bit for each reader that may understand lines of a shape."""
        return sum(1 << i for i, reader in enumerate(self._all) if reader.may_know(shape))

    def _chosen(self, bits: int) -> tuple[Reader, ...]:
        chosen = tuple(r for i, r in enumerate(self._all) if bits >> i & 1)
        self._of_bits[bits] = chosen
        return chosen
