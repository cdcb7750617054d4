"""Hosts that vanished at one moment: what one of them had still issued makes it no victim."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.vanished_hosts import UNHEARD
from hangscope.diagnosis.model import Verdict

_SAME_MOMENT_NS = 2 * 10**9
"""Heartbeats come once a second or so."""


def name_all_that_vanished(context: Context, causes: list[Cause]) -> list[Cause]:
    """Who fell silent together with an accused that did is accused as well."""
    silent = {r: h.end_ns for r, h in context.processes.items() if h.end_text == UNHEARD}
    return [_with_all_of_its_moment(cause, silent) for cause in causes]


def _with_all_of_its_moment(cause: Cause, silent: dict[int, int]) -> Cause:
    """The cause with all who fell silent (when, in ns) at a moment when one of its accused did."""
    if cause.verdict is not Verdict.RANK_CRASHED or silent.keys().isdisjoint(cause.culprits):
        return cause
    moments = [silent[rank] for rank in cause.culprits if rank in silent]
    beside = {
        rank
        for rank, at_ns in silent.items()
        if min(abs(at_ns - moment) for moment in moments) <= _SAME_MOMENT_NS
    }
    culprits = tuple(sorted({*cause.culprits, *beside}))
    return replace(cause, culprits=culprits, victims=cause.victims - beside)
