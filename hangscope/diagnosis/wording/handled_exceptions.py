"""The exception that an accused rank was handling when it issued its current operation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.trace.model import ExceptionFacts, Flag, flagged

_ENDS_OF_DATA = ("StopIteration", "StopAsyncIteration", "queue.Empty")
_ENDED = (Verdict.RANK_CRASHED, Verdict.RANK_EXITED, Verdict.RANK_LOST)
_MOST_TEXT = 120


class Handled(NamedTuple):
    """An exception handled by one rank but not by the others."""

    rank: int
    error: ExceptionFacts

    @property
    def words(self) -> str:
        """``ValueError: corrupt sample, raised at data.py:41 in load``."""
        message = self.error.message.partition("\n")[0]
        text = f"{self.error.type_name}: {message}" if message else self.error.type_name
        line = where(innermost(self.error.stack))
        return shortened(text, _MOST_TEXT) + (f", raised at {line}" if line else "")

    @property
    def is_end_of_data(self) -> bool:
        """Whether programs raise it to signal the end of data rather than a failure."""
        return self.error.type_name in _ENDS_OF_DATA


def handled_alone(context: Context, cause: Cause) -> Handled | None:
    """What the first of the accused handles, unless others handle something there as well.

    A job may run in an ``except`` clause from its first step to its last. An exception from a
    failed wait is nobody's own.
    """
    handling = flagged(context.trace.records["flags"], Flag.HANDLING)
    if not handling.any() or cause.verdict in _ENDED:
        return None
    ranks = context.trace.records["rank"]
    rows = {int(ranks[row]): int(row) for row in _rows(context, cause) if handling[row]}
    if not rows.keys() <= set(cause.culprits):
        return None
    for rank, row in sorted(rows.items()):
        error = context.trace.ranks[rank].handled
        record = context.trace.records[row]
        if (
            error is not None
            and error.at_ns <= int(record["created_ns"])
            and error.native_id in (0, int(record["thread"]))
            and not is_secondary(error.message)
        ):
            return Handled(rank, error)
    return None


def _rows(context: Context, cause: Cause) -> npt.NDArray[np.intp]:
    """The rows in which ranks reached the place in question, or their current one."""
    if cause.mismatch is not None:
        return context.rows_at(cause.mismatch.group, cause.mismatch.seq)
    newest = np.array([high - 1 for low, high in context.bounds.values() if high > low], np.intp)
    return newest[context.front.unfinished[newest]] if len(newest) else newest
