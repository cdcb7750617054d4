"""Hosts that vanished at one moment: having issued more than another makes a rank no victim."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.vanished_hosts import UNHEARD
from hangscope.diagnosis.model import Verdict

_SAME_MOMENT_NS = 2 * 10**9
"""Heartbeats come about once a second."""


def accuse_all_vanished(context: Context, causes: list[Cause]) -> list[Cause]:
    """Also accuse ranks that fell silent together with an accused one."""
    silent = {r: h.end_ns for r, h in context.processes.items() if h.end_text == UNHEARD}
    return [_with_all_of_its_moment(cause, silent) for cause in causes]


def _with_all_of_its_moment(cause: Cause, silent: dict[int, int]) -> Cause:
    """The cause with all ranks that fell silent (when, in ns) at the same moment as one of the
    accused."""
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
