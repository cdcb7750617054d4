"""Advice from how the first of the accused ended, or from what its process does."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.dead_threads import dead_thread
from hangscope.diagnosis.exits.primary_failures import own_errors
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.graph.store_places import PREFIX as STORE
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.process_state import ProcessState, is_late_abort
from hangscope.diagnosis.processes.stacks import calls_exit, innermost, user_frames, where
from hangscope.diagnosis.records.coverage import is_unknown_form
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.crash_advice import (
    aborted_at_its_end,
    crash,
    crash_of_all,
    left_at,
)
from hangscope.diagnosis.wording.phrases import address, everybody_is, rank_s
from hangscope.diagnosis.wording.playbook import Advice, say
from hangscope.diagnosis.wording.summaries import left_its_own_behind
from hangscope.trace.model import NONE, ExceptionFacts, RankFacts


class _Accused(NamedTuple):
    """The first of the accused."""

    rank: int
    process: ProcessState | None
    facts: RankFacts | None
    at: str
    """Where its process is."""

    @property
    def raised(self) -> ExceptionFacts | None:
        """The exception that ended it, or one of its threads."""
        return self.facts.exception if self.facts is not None else None

    @property
    def finalized(self) -> bool:
        """Whether it has destroyed its groups."""
        return self.facts is not None and bool(self.facts.finalized)


def for_process(context: Context, cause: Cause, place: Place | None) -> Advice | None:
    """Advice from how the first of the accused ended or from what it does; None if there is
    none."""
    rank = cause.culprits[0] if cause.culprits else NONE
    process = (
        context.process_in(rank, place.group) if place is not None else context.processes.get(rank)
    )
    one = _Accused(rank, process, context.trace.ranks.get(rank), address(context, rank))
    owes = _owes(context, cause, place, one) if place is not None else None
    if owes is not None:
        return owes
    stopped = one.facts is not None and one.facts.process_state == "stopped"
    if cause.verdict is Verdict.MISSING_RANK or (
        cause.verdict is Verdict.STUCK_COLLECTIVE and stopped
    ):
        first = place is not None and place.phase == INIT
        left = place is not None and has_left_group(context.trace, rank, place.group)
        finalized = one.finalized or left
        advice = playbook.missing(process, one.at, first=first, finalized=finalized)
        return with_dead_thread(context, advice, rank)
    if cause.verdict is Verdict.RANK_LOST:
        if context.unreadable.keys() >= set(cause.culprits):
            unknown = all(is_unknown_form(context.unreadable[r]) for r in cause.culprits)
            return say("unknown form" if unknown else "unreadable", ranks=rank_s(cause.culprits))
        if context.trace.live and place is not None and place.phase == INIT:
            return say("never seen", at=f" {one.at}" if one.at else "")
        return playbook.by_verdict(cause.verdict, one.at)
    if cause.verdict is Verdict.RANK_CRASHED and process is not None:
        return _crashed(context, cause, place, one, process)
    return _exited(cause, place, one) if cause.verdict is Verdict.RANK_EXITED else None


def _owes(context: Context, cause: Cause, place: Place, one: _Accused) -> Advice | None:
    """What a rank owes to those waiting at a place that is no collective; None if nothing."""
    if cause.verdict is Verdict.MISSING_RANK:
        dead = dead_thread(context, one.rank, place.group)
        if dead is not None:
            return _dead_thread(dead, one.at)
    look = playbook.look_at(playbook.place_of(one.process, one.at))
    if place.phase.startswith(STORE):
        return say("key to set", look=look)
    return say("holds a lock", look=look) if is_lock(place) else None


def _crashed(
    context: Context, cause: Cause, place: Place | None, one: _Accused, process: ProcessState
) -> Advice:
    if place is None and is_late_abort(process):
        return aborted_at_its_end(one.at, destroyed=one.finalized)
    said = own_errors(context.trace.claims).get(one.rank)
    message = one.raised.message if one.raised is not None else ""
    if said is None and one.raised is None and calls_exit(process.stack):
        return left_at(_and(where(innermost(process.stack)), one.at))
    frames = user_frames(one.raised.stack) if one.raised is not None else ()
    advice = crash(
        " ".join((process.end_text, message, said.text if said is not None else "")),
        _and(where(frames[0] if frames else None), one.at),
    )
    return crash_of_all(advice) if everybody_is(context, cause.culprits) else advice


def _exited(cause: Cause, place: Place | None, one: _Accused) -> Advice | None:
    if one.raised is None:
        left = place is not None and left_its_own_behind(cause, place)
        return say("left its own behind", rank=rank_s(cause.culprits)) if left else None
    if one.raised.is_main_thread or is_secondary(one.raised.message):
        return None
    return _dead_thread(one.raised, one.at)


def with_dead_thread(context: Context, advice: Advice, rank: int) -> Advice:
    """Add a dead thread of the rank: it may have owed what the rank, or others, wait for."""
    facts = context.trace.ranks.get(rank)
    raised = facts.exception if facts is not None else None
    if raised is None or raised.is_main_thread or is_secondary(raised.message):
        return advice
    line = where(innermost(raised.stack))
    ended = f"see what ended its thread {raised.thread_name}{f', at {line}' if line else ''}"
    return replace(advice, fix=f"{advice.fix}; {ended}")


def _dead_thread(died: ExceptionFacts, at: str) -> Advice:
    line = _and(where(innermost(died.stack)), at)
    return say("dead thread", name=died.thread_name, at=f": {line}" if line else "")


def _and(line: str, at: str) -> str:
    """A line of code and an address, as far as known."""
    return " ".join(x for x in (line, at) if x)
