"""Those that know lines of a log, and which of them a line is shown to.

Each says what stands in every line that it knows: some word, or a form. None of these holds a
digit, so which readers a line is shown to follows from its shape, and is found out once for all
lines of that shape. A reader that follows a report of several lines is shown what may belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hangscope.trace import (
    log_agreement,
    log_announced,
    log_cut,
    log_deaths,
    log_gloo,
    log_launcher,
    log_ras,
    log_ray,
    log_schedulers,
    log_stacks,
    log_stalls,
    log_starters,
    log_watchdog,
)
from hangscope.trace.log_evidence import Evidence
from hangscope.trace.log_line import LogLine
from hangscope.trace.log_shapes import Remembered, holds_any, shape_of


class Reader(NamedTuple):
    """One of them."""

    read: Callable[[LogLine, int, Evidence], bool]
    """Notes what a line says. Returns whether it knew the line."""
    words: tuple[str, ...] = ()
    form: re.Pattern[str] | None = None
    follows: Callable[[LogLine], bool] | None = None
    """Whether a line may belong to a report of which it has read the beginning."""

    def may_know(self, shape: str) -> bool:
        """Whether it may know a line of this shape that stands alone."""
        if holds_any(shape, self.words):
            return True
        return self.form is not None and self.form.search(shape) is not None


class Readers:
    """All of them; one set for every life of the job."""

    def __init__(self, year: int, attempt: int = 0) -> None:
        self.attempt = attempt
        self.starters = log_starters.Starters()
        self.logged = log_starters.Logged()
        self.table = log_launcher.LauncherTable(year)
        self.stalls = log_stalls.Stalls()
        self.ras = log_ras.RasReport()
        self.announced = log_announced.Announced()
        self.cut = log_cut.Cut()
        ray, tracebacks, stacks = log_ray.RayDeaths(), log_deaths.Tracebacks(), log_stacks.Stacks()
        self.first_to_know = (
            Reader(ray.read, log_ray.WORDS, follows=ray.follows),
            Reader(tracebacks.read, log_deaths.TRACEBACK_WORDS, follows=tracebacks.follows),
            Reader(stacks.read, log_stacks.WORDS, log_stacks.FORM, stacks.follows),
            Reader(log_watchdog.read, log_watchdog.WORDS, follows=log_watchdog.follows),
            Reader(self.announced.read, log_announced.WORDS),
            Reader(log_agreement.read, log_agreement.WORDS),
            Reader(log_gloo.read, log_gloo.WORDS),
            Reader(self.table.read, form=log_launcher.TABLE, follows=self.table.follows),
            Reader(log_schedulers.read, log_schedulers.WORDS),
            Reader(self.starters.read, log_starters.WORDS, follows=self.starters.follows),
            Reader(self.stalls.read, log_stalls.WORDS, follows=self.stalls.follows),
            Reader(self.ras.read, form=log_ras.FORM, follows=self.ras.follows),
            Reader(log_launcher.read, log_launcher.WORDS),
            Reader(log_deaths.read, log_deaths.WORDS, log_deaths.FORM),
        )
        self._followers = [
            (1 << place, reader.follows)
            for place, reader in enumerate(self.first_to_know)
            if reader.follows is not None
        ]
        self._of_shape = Remembered(self._may_know)
        self._of_bits: dict[int, tuple[Reader, ...]] = {}

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> None:
        """Show the line to one reader after the other, until one knows it."""
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
        """A bit for each that may know lines of a shape."""
        return sum(1 << i for i, reader in enumerate(self.first_to_know) if reader.may_know(shape))

    def _chosen(self, bits: int) -> tuple[Reader, ...]:
        chosen = tuple(r for i, r in enumerate(self.first_to_know) if bits >> i & 1)
        self._of_bits[bits] = chosen
        return chosen
