"""Processes that failed, in words."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.primary_failures import own_errors
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.processes.process_state import End, is_late_abort
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import (
    capital,
    everybody_is,
    it_them,
    rank_s,
    title_of,
)


def crashed(context: Context, cause: Cause, place: Place | None) -> Words:
    """The accused crashed; ``place`` is where others wait for them, if any do."""
    said = own_errors(context.trace.claims).get(cause.culprits[0])
    how = context.processes[cause.culprits[0]].end_text or (
        shortened(said.text.splitlines()[0], 160) if said is not None else "ended"
    )
    summary = f"{capital(rank_s(cause.culprits))} crashed: {how}"
    if place is not None:
        summary += f"; others wait for {it_them(cause.culprits)} in {title_of(context, place)}"
    if everybody_is(context, cause.culprits):
        return Words(summary, "no rank is left to wait for it")
    if place is None and all(is_late_abort(context.processes[rank]) for rank in cause.culprits):
        return Words(summary, "its program had finished, and no rank is known to wait for it")
    return Words(
        summary, f"{rank_s(cause.culprits)} ended; every rank that needs it waits or fails"
    )


def perhaps_not_first(context: Context, cause: Cause) -> Words:
    """Nobody waits, and nobody is accused: who failed, if any did."""
    processes = context.processes
    failed = [r for r in cause.victims if r in processes and processes[r].end is End.CRASHED]
    if not failed:  # a file so damaged that nobody waits in it
        return Words("What is left does not show who waits for whom")
    return Words(
        f"{capital(rank_s(failed))} failed, and what is left does not show which process failed "
        "first"
    )
