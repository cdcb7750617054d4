"""A job in a notebook: the diagnosis, and everything recorded as pandas DataFrames.

``run = hangscope.load(PATH)`` reads what ``hangscope analyze PATH`` reads. Only its tables need
pandas; nothing else in HangScope imports it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.diagnosis.processes.stacks import innermost
from hangscope.lateness.lateness import lateness
from hangscope.report.formatting import place
from hangscope.report.html import to_html
from hangscope.report.text import render
from hangscope.trace.clocks import align_clocks
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, State, Trace, flagged

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ("created", "started", "completed")


def load(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Run:
    """Read and diagnose a job.

    Parameters
    ----------
    path:
        A run directory, dumps, rings or logs, or a list of them: whatever ``hangscope analyze``
        takes.

    Raises
    ------
    hangscope.trace.load.NothingReadable
        If no file could be read; its ``warnings`` say why.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    trace = load_trace([os.fspath(one) for one in paths])
    return Run(align_clocks(trace), diagnose(trace))


@dataclass(frozen=True)
class Run:
    """One job as it was left, or at the moment of reading if it still runs.

    Shows itself as the report in a terminal and as the HTML page in a notebook.
    """

    trace: Trace
    diagnosis: Diagnosis

    @functools.cached_property
    def records(self) -> pd.DataFrame:
        """One row per recorded operation, by rank and in the order of issue.

        ======================  ===================  ==============================================
        column                  dtype                meaning
        ======================  ===================  ==============================================
        rank                    int32                global rank
        group                   category             the process group's label
        seq                     int64                number of the collective in its group, from 1;
                                                     of a send or recv, its own number
        op                      category             ``all_reduce``, ``send``, ...
        peer                    Int32                the other side of a send or recv
        root                    Int32                root of a collective, or tag of a send or recv
        state                   category             ``scheduled``, ``started`` or ``completed``
        created, started,       datetime64[ns, UTC]  when it was issued, begun and finished; NaT if
        completed                                    unknown or not yet
        duration_s              float64              from issue to end, in seconds
        asynchronous            bool                 issued with ``async_op=True``
        line                    category             innermost line of the user's code
        ======================  ===================  ==============================================
        """
        import pandas as pd

        rows, trace = self.trace.records, self.trace
        p2p = flagged(rows["flags"], Flag.P2P)
        seconds = (rows["completed_ns"] - rows["created_ns"]) / 1e9
        timed = (rows["completed_ns"] > 0) & (rows["created_ns"] > 0)
        table = {
            "rank": rows["rank"],
            "group": _category(rows["group"], [group.label for group in trace.groups]),
            "seq": np.where(p2p, rows["p2p_seq"], rows["collective_seq"]),
            "op": _category(rows["signature"], [s.op for s in trace.signatures]),
            "peer": _known(rows["peer"]),
            "root": _known(rows["root"]),
            "state": _category(rows["state"], [state.name.lower() for state in State]),
            **{name: _times(rows[f"{name}_ns"]) for name in _TIMES},
            "duration_s": np.where(timed, seconds, np.nan),
            "asynchronous": flagged(rows["flags"], Flag.ASYNC),
            "line": self._lines(),
        }
        return pd.DataFrame(table)

    @functools.cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per rank, indexed by it.

        Columns: ``host`` and ``role`` (category; ``culprit``, ``victim`` or ``other``), ``pid``
        (Int64), ``state``, ``phase``, ``exit`` and ``line`` (object; None if unknown),
        ``waiting_for`` (object, a tuple of ranks) and ``waiting_s`` (float64, seconds).
        """
        import pandas as pd

        found = [
            {
                "rank": r.rank,
                "host": r.host,
                "role": r.role,
                "pid": r.pid,
                "state": r.state,
                "phase": r.phase,
                "exit": r.exit,
                "waiting_for": r.waiting_for,
                "waiting_s": r.waiting_s,
                "line": place(r.stack[0]) if r.stack else None,
            }
            for r in self.diagnosis.ranks
        ]
        columns = list(found[0]) if found else ["rank", "host", "role", "pid", "waiting_s"]
        table = pd.DataFrame(found, columns=columns).set_index("rank")
        types = {"host": "category", "role": "category", "pid": "Int64", "waiting_s": "float64"}
        return table.astype(types)

    @functools.cached_property
    def groups(self) -> pd.DataFrame:
        """One row per process group: ``name``, ``label``, ``backend`` (object), ``epoch`` (int64),
        ``size`` (Int64) and ``ranks`` (object, a tuple in group-rank order)."""
        import pandas as pd

        found = [
            (g.name, g.label, g.backend, g.epoch, len(g.ranks) or g.size, g.ranks)
            for g in self.trace.groups
        ]
        columns = ["name", "label", "backend", "epoch", "size", "ranks"]
        table = pd.DataFrame(found, columns=columns)
        return table.astype({"size": "Int64", "epoch": "int64"})

    @functools.cached_property
    def lateness(self) -> pd.DataFrame:
        """One row per rank, indexed by it: who makes the others wait.

        Columns: ``host`` (object), ``collectives`` and ``times_last`` (int64), ``waited_s`` and
        ``made_wait_s`` (float64, seconds). ``attrs`` holds ``span_s``, the observed time, and
        ``stragglers``, those who are late more often than chance allows
        (`hangscope.lateness.model.Straggler`).
        """
        import pandas as pd

        found = lateness(self.trace)
        columns = ["rank", "host", "collectives", "times_last", "waited_s", "made_wait_s"]
        rows = [[getattr(rank, name) for name in columns] for rank in found.ranks]
        table = pd.DataFrame(rows, columns=columns).set_index("rank")
        table.attrs.update(span_s=found.span_s, stragglers=found.stragglers)
        return table

    def _lines(self) -> pd.Categorical:
        lines = [innermost(tuple(stack)) for stack in self.trace.stacks]
        return _category(self.trace.records["stack"], [place(f) if f else "" for f in lines])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield render(self.diagnosis)

    def __repr__(self) -> str:
        verdict, ranks = self.diagnosis.verdict.value, len(self.trace.ranks)
        return f"<hangscope.Run: {verdict}, {ranks} ranks, {len(self.trace.records)} records>"

    def _repr_html_(self) -> str:
        return to_html(self.diagnosis, self.trace)


def _category(codes: np.ndarray, names: Sequence[str]) -> pd.Categorical:
    """Indexes into a list of names, which may repeat, as a categorical column."""
    import pandas as pd

    known = sorted(set(names))
    position = {name: number for number, name in enumerate(known)}
    table = np.array([*(position[name] for name in names), -1])
    inside = np.where((codes >= 0) & (codes < len(names)), codes, len(names))
    kind = pd.CategoricalDtype(known)
    return pd.Categorical.from_codes(table[inside].astype(np.int64), dtype=kind)


def _known(ranks: np.ndarray) -> pd.arrays.IntegerArray:
    import pandas as pd

    return pd.arrays.IntegerArray(ranks.astype(np.int32), ranks < 0)


def _times(nanoseconds: np.ndarray) -> pd.Series[pd.Timestamp]:
    import pandas as pd

    known = nanoseconds > 0
    times = np.where(known, nanoseconds, 0).astype("datetime64[ns]")
    return pd.Series(times).where(known).dt.tz_localize("UTC")
