"""Where the application gets its pictures from: a run that is still alive, or what was left of one.

Both are the same to the application: it looks, and gets a trace and the diagnosis of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import RankFacts, Trace


class Source(Protocol):
    """Anything that can be looked at, once or again and again."""

    @property
    def title(self) -> str:
        """What is being looked at, in a few words."""

    @property
    def live(self) -> bool:
        """Whether looking again can show something new."""

    def look(self) -> tuple[Trace, Diagnosis]:
        """The trace now and what it means. May read files; called outside the interface thread."""


class Looker(Protocol):
    """A live run that re-reads only what has changed."""

    def look(self) -> Trace:
        """The trace now."""

    def ask_for_stacks(self, wanted: Callable[[RankFacts], bool]) -> int:
        """Have ranks that cannot run Python write their stacks, once a stall."""


class Still:
    """A source that was read once: post-mortem, and tests."""

    live = False

    def __init__(self, trace: Trace, diagnosis: Diagnosis, title: str = "") -> None:
        self._picture = (trace, diagnosis)
        self.title = title

    def look(self) -> tuple[Trace, Diagnosis]:
        return self._picture


class Live:
    """A running job: every look reads what changed and judges anew."""

    def __init__(self, run: Looker, title: str = "") -> None:
        self._run = run
        self.title = title
        self.live = True

    def look(self) -> tuple[Trace, Diagnosis]:
        from hangscope.diagnosis.engine import diagnose

        trace = self._run.look()
        self.live = trace.live
        diagnosis = diagnose(trace)
        if diagnosis.findings:
            self._run.ask_for_stacks(lambda facts: bool(facts.gil_blocked))
        return trace, diagnosis


def open_source(paths: Sequence[str]) -> Source:
    """The source behind `paths`: live where it is one run directory with a process alive.

    Raises `hangscope.trace.load.NothingReadable` where nothing in `paths` can be read.
    """
    from hangscope.diagnosis.engine import diagnose
    from hangscope.trace.live import LiveRun, run_directory_of
    from hangscope.trace.load import load_trace

    title = " ".join(paths)
    directory = run_directory_of(paths[0]) if len(paths) == 1 else None
    if directory is not None:
        run = LiveRun(directory)
        if run.look().live:
            return Live(run, title)
        run.close()
    trace = load_trace(list(paths))
    return Still(trace, diagnose(trace), title)
