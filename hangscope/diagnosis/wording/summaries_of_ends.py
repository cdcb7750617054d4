"""Ranks that crashed, left or were lost, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.primary_failures import own_errors
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.observability import is_text_alone, merely_named
from hangscope.diagnosis.processes.process_state import End, is_late_abort
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import (
    capital,
    everybody_is,
    members_of,
    rank_s,
    subject,
    title_of,
    verb,
    waiters_of,
)


def crashed(context: Context, cause: Cause, place: Place | None) -> Words:
    """The accused crashed; ``place`` is where others wait for them, if any do."""
    said = own_errors(context.trace.claims).get(cause.culprits[0])
    how = context.processes[cause.culprits[0]].end_text or (
        shortened(said.text.splitlines()[0], 160) if said is not None else "ended"
    )
    summary = f"{capital(rank_s(cause.culprits))} crashed: {how}"
    if place is not None:
        waiting = f"others wait for {verb(cause.culprits, 'it')} in {title_of(context, place)}"
        summary = f"{summary.rstrip('.')}; {waiting}"
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


def exited(context: Context, cause: Cause, place: Place) -> Words:
    return Words(
        f"{subject(cause.culprits)} {_left(context, cause.culprits)} while {waiters_of(place)} "
        f"still {verb(place.waiters, 'needs')} {verb(cause.culprits, 'it')} in "
        f"{title_of(context, place)}{members_of(context, place)}",
        f"{rank_s(cause.culprits)} issued it too, but left before it was done"
        if left_its_own_behind(cause, place)
        else f"{rank_s(cause.culprits)} finished early; the others still have work to do",
    )


def left_its_own_behind(cause: Cause, place: Place) -> bool:
    """Whether the accused had issued the operation the others are in, and ended before it was
    done."""
    return bool(cause.culprits) and set(cause.culprits) <= set(place.behind)


def _left(context: Context, ranks: Iterable[int]) -> str:
    """How cleanly exited ranks ended, as far as known."""
    ways = {context.processes[rank].end_text for rank in ranks}
    return (
        "exited with status 0"
        if ways == {"exit status 0"}
        else "exited on its own, with a status nobody saw,"
    )


def lost(context: Context, cause: Cause, place: Place) -> Words:
    left = "left no record and no sign of life"
    why = {context.unreadable.get(rank, "") for rank in cause.culprits}
    if "" not in why:
        left = f"left a dump that cannot be read ({shortened(', '.join(sorted(why)), 80)})"
    elif merely_named(context.trace).issuperset(cause.culprits):
        left = "left no record, only ordinary output"
    elif is_text_alone(context.trace):
        left = f"{'does' if len(cause.culprits) == 1 else 'do'} not appear in the log"
    return Words(
        f"{subject(cause.culprits)} {left}; {waiters_of(place)} {verb(place.waiters, 'waits')} in "
        f"{title_of(context, place)}",
        "nothing else explains the wait",
    )
