"""Keeps the exported figures up to date, and never lets them keep the monitor from its work."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from hangscope.diagnosis.model import Diagnosis
from hangscope.lateness.lateness import lateness
from hangscope.monitor.metrics.exporters import VARIABLE, Exporter, exporter_of
from hangscope.monitor.metrics.standing import standing_of
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import Trace

_TICK_S = 1.0
_LATE_S = 60.0
_NEWEST = 512
"""How many of each rank's newest records tell how late it is."""


class Publishing:
    """What ``HANGSCOPE_METRICS`` asks for; nothing if it does not.

    Parameters
    ----------
    say:
        Prints a line into the job's log: what goes wrong does so once.
    """

    def __init__(self, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._say = say
        self._exporter: Exporter | None = None
        self._late_s: dict[int, float] = {}
        self._due_s = self._late_due_s = 0.0
        self._attempt(lambda: self._open(environ))

    def update(self, tables: Mapping[int, bytes], told: Diagnosis | None, run: str) -> None:
        """Take this moment's figures, once a second (`standing.standing_of`)."""
        exporter, now_s = self._exporter, time.monotonic()
        if exporter is None or now_s < self._due_s:
            return
        self._due_s = now_s + _TICK_S
        host = socket.gethostname()
        standing = standing_of(tables, told, run=run, host=host, late_s=self._late_s)
        self._attempt(lambda: exporter.update(standing))

    def look(self, trace: Trace) -> None:
        """Once a minute, learn from a look at the job who is late."""
        now_s = time.monotonic()
        if self._exporter is None or now_s < self._late_due_s:
            return
        self._late_due_s = now_s + _LATE_S
        found = lateness(align_clocks(trace), newest=_NEWEST)
        self._late_s = {one.rank: one.made_wait_s for one in found.ranks}

    def close(self) -> None:
        """Hand out the last figures."""
        if self._exporter is not None:
            self._attempt(self._exporter.close)

    def _open(self, environ: Mapping[str, str]) -> None:
        self._exporter = exporter_of(environ)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # of any library behind it
            self._exporter = None
            text = str(error).partition("\n")[0][:200] or type(error).__name__
            self._say(f"{VARIABLE}: {text}; no metrics")
