"""Advice about a rank by what its process does, or by how it ended."""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.dead_threads import dead_thread
from hangscope.diagnosis.exits.primary_failures import own_errors
from hangscope.diagnosis.exits.vanished_hosts import UNHEARD
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.graph.store_places import PREFIX as STORE
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.observability import is_unknown_form
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.process_state import (
    CHECKPOINT,
    LOADER,
    ProcessState,
    is_late_abort,
)
from hangscope.diagnosis.processes.stacks import calls_exit, innermost, is_over, user_frames, where
from hangscope.diagnosis.wording.blocked import awaits_device, blocked_in, frame_names
from hangscope.diagnosis.wording.phrases import address, everybody_is, rank_s
from hangscope.diagnosis.wording.playbook import Advice, say
from hangscope.diagnosis.wording.summaries_of_ends import left_its_own_behind
from hangscope.trace.model import NONE, ON_ITS_WAY_OUT, ExceptionFacts, RankFacts

_SYMPTOM = "; the hang of the others is its symptom"
_HALF_WRITTEN = "what it was writing may be cut, so start again from the checkpoint before"
_READS = re.compile(r"load|restore|resume", re.I)
_WORKS = ("busy", "running")
_ENDS = [
    (re.compile(text, re.I), key)
    for text, key in (
        (re.escape(ON_ITS_WAY_OUT), "way out"),
        (r"\bBdbQuit\b|EOF when reading a line", "typed"),
        (r"finished reduction in the prior iteration|did not receive grad", "buckets"),
        (r"marked as ready twice|mark a variable ready only once", "ready twice"),
        (r"sizes of the same param in process|expects same model across all ranks", "models"),
        (r"inconsistent between workers", "replicas"),
        (r"duplicate gpu", "one device"),
        (
            r"out of memory|\boom\b|killed for memory|(cannot|can't) allocate memory|bad_alloc",
            "memory",
        ),
        (r"\b(?:nan|inf)\b|loss scale|checkfornan", "not finite"),
        (r"dataloader worker \(pid.*(?:segmentation fault|illegal instruction|aborted)", "native"),
        (r"dataloader worker \(pid", "loader died"),
        (
            r"device-side assert|illegal (?:memory access|address|instruction)|"
            r"misaligned address|xid[^:]*: (?:13|31|43)\b|memory access fault by gpu",
            "index",
        ),
        (
            r"\becc\b|nvlink|fallen off the bus|device_lost|gpu hang|"
            r"xid[^:]*: (?:48|63|64|74|79|94|95)\b",
            "device failed",
        ),
        (r"(?:cuda|hip) error|cuda failure|gpu node|xid", "device or program"),
        (r"environment variable \w+ expected, but not set", "no launcher"),
        (r"address already in use", "port"),
        (rf"^{re.escape(UNHEARD)}", "unheard"),
        (r"^killed by SIGKILL", "killed"),
        (r"^killed by SIG(TERM|INT|HUP)", "told"),
        (r"^killed by SIG(SEGV|BUS|ILL|FPE|ABRT)", "native"),
        (r"^exit status \d+\s*$", "status"),
    )
]
"""How the words begin, or what they hold, with which a rank ended; and its advice."""


def for_rank(context: Context, cause: Cause, place: Place | None) -> Advice | None:
    """Advice about the first of the accused, by how it ended or what it does; None if there is
    none."""
    rank = cause.culprits[0] if cause.culprits else NONE
    facts, at = context.trace.ranks.get(rank), address(context, rank)
    process = context.processes.get(rank)
    if place is not None:
        process = context.process_in(rank, place.group)
        if cause.verdict is Verdict.MISSING_RANK and (
            dead := dead_thread(context, rank, place.group)
        ):
            return _dead_thread(dead, at)
        look = look_at(process, at)
        if place.phase.startswith(STORE):
            return say("key to set", look=look)
        if is_lock(place):
            return say("holds a lock", look=look)
    stopped = facts is not None and facts.process_state == "stopped"
    if cause.verdict is Verdict.MISSING_RANK or (
        cause.verdict is Verdict.STUCK_COLLECTIVE and stopped
    ):
        left = place is not None and has_left_group(context.trace, rank, place.group)
        finalized = left or (facts is not None and bool(facts.finalized))
        first = place is not None and place.phase == INIT
        advice = missing(process, at, first=first, finalized=finalized)
        return with_dead_thread(context, advice, rank)
    if cause.verdict is Verdict.RANK_LOST:
        return _lost(context, cause, place, at)
    if cause.verdict is Verdict.RANK_CRASHED and process is not None and facts is not None:
        return _crashed(context, cause, place, process, facts)
    return _exited(cause, place, facts, at) if cause.verdict is Verdict.RANK_EXITED else None


def _lost(context: Context, cause: Cause, place: Place | None, at: str) -> Advice:
    if context.unreadable.keys() >= set(cause.culprits):
        unknown = all(is_unknown_form(context.unreadable[r]) for r in cause.culprits)
        return say("unknown form" if unknown else "unreadable", ranks=rank_s(cause.culprits))
    never = context.trace.live and place is not None and place.phase == INIT
    return say("never seen" if never else cause.verdict, at=f" {at}" if at else "")


def _exited(cause: Cause, place: Place | None, facts: RankFacts | None, at: str) -> Advice | None:
    raised = facts.exception if facts is not None else None
    if raised is None:
        left = place is not None and left_its_own_behind(cause, place)
        return say("left its own behind", rank=rank_s(cause.culprits)) if left else None
    return _dead_thread(raised, at) if _ended_a_thread(raised) else None


def look_at(process: ProcessState | None, address: str) -> str:
    """Where to look first: ``look at data.py:41 in load_batch on host node0 (pid 4711)``."""
    frame = innermost(process.stack) if process is not None else None
    return f"look at {_and(where(frame), address) or 'what runs there instead'}"


def missing(
    process: ProcessState | None = None,
    address: str = "",
    *,
    first: bool = False,
    finalized: bool = False,
) -> Advice:
    """A live rank that did not arrive; ``address`` is what `phrases.address` says about it.

    ``first``: the others still wait for it to reach ``init_process_group``; ``finalized``: it has
    destroyed its groups.
    """
    if process is not None and process.state == "stopped":
        on, by = f", {address}" if address else "", process.held_by
        key = "was stopped" if process.gone else "held" if by else "stopped"
        advice = say(key, by=by or "SIGSTOP", on=on)
        if not _is_saving(process):
            return advice
        was = "was in a checkpoint:" if process.gone else "is in a checkpoint: if you end the job,"
        return replace(advice, fix=f"{advice.fix}; it {was} {_HALF_WRITTEN}")
    stack = process.stack if process is not None else ()
    look = look_at(process, address)
    if not stack:
        look = look_at(None, "") + _at(address).removeprefix(",")
    inside = awaits_device(process) or blocked_in(process)
    if inside:
        look += f": {inside}"
    if process is not None and process.state == "gil-held":
        return say("holds the GIL", look=look, then=";" if inside else ":")
    if finalized or (process is not None and process.phase == "destroy_process_group"):
        return say("fewer steps")
    if is_over(stack):
        return say("over", look=look)
    if first:
        seen = process is not None and process.is_observed and not (process.gone or stack)
        dump = ": py-spy dump shows it even before torch is imported" if seen else ""
        return say("not begun", look=look, dump=dump)
    return say(_doing(process, blocked=bool(inside)), look=look)


def _is_saving(process: ProcessState) -> bool:
    """Whether a rank writes a checkpoint, and does not read one."""
    names = _names(process)
    return CHECKPOINT.search(names) is not None and _READS.search(names) is None


def _names(process: ProcessState | None) -> str:
    """The names of what a rank runs: its phase, and its innermost functions."""
    phase = process.phase if process is not None else None
    return f"{phase or ''} {frame_names(process)}"


def _doing(process: ProcessState | None, *, blocked: bool) -> str:
    """What else a rank runs, which its function names identify.

    ``blocked``: it is known what the rank waits for.
    """
    if CHECKPOINT.search(_names(process)):
        return "checkpoint"
    if blocked:
        return "blocked"
    loads = LOADER.search(frame_names(process)) is not None
    if process is not None and (process.seen_state in _WORKS or process.wakes):
        return "slow data" if loads else "slow"
    return "data" if loads else "elsewhere"


def crash(text: str, detail: str = "", *, of_all: bool = False) -> Advice:
    """A rank that ended with an error; ``text`` is the error, ``detail`` where it happened.

    ``of_all``: no rank is left that could hang.
    """
    symptom = "" if of_all else _SYMPTOM
    for pattern, key in _ENDS:
        if pattern.search(text):
            at = f", {detail}" if pattern.pattern.startswith("^") else f" ({detail})"
            return say(key, at=at if detail else "", symptom=symptom)
    error = "that error" if of_all else "the first error of that rank"
    return say(Verdict.RANK_CRASHED, error=error, at=_at(detail), symptom=symptom)


def _at(detail: str) -> str:
    """A line after a colon, a host without a line after a comma; empty for nothing."""
    return "" if not detail else f"{', ' if detail.startswith('on host') else ': '}{detail}"


def _crashed(
    context: Context, cause: Cause, place: Place | None, process: ProcessState, facts: RankFacts
) -> Advice:
    at, raised = address(context, facts.rank), facts.exception
    of_all = everybody_is(context, cause.culprits)
    if place is None and is_late_abort(process):
        destroy = ", and call destroy_process_group before a process ends"
        return say("late abort", destroy="" if facts.finalized else destroy, at=f": {at}")
    said = own_errors(context.trace.claims).get(facts.rank)
    if said is None and raised is None and calls_exit(process.stack):
        line = _and(where(innermost(process.stack)), at)
        return say("exited there", at=f" at {line}", symptom=_SYMPTOM)
    frames = user_frames(raised.stack) if raised is not None else ()
    words = (
        process.end_text,
        raised.message if raised is not None else "",
        said.text if said is not None else "",
    )
    return crash(" ".join(words), _and(where(frames[0] if frames else None), at), of_all=of_all)


def _ended_a_thread(raised: ExceptionFacts) -> bool:
    """Whether an exception ended a thread beside the main one, for a reason of its own."""
    return not raised.is_main_thread and not is_secondary(raised.message)


def with_dead_thread(context: Context, advice: Advice, rank: int) -> Advice:
    """Add a dead thread of the rank: it may have owed what the rank, or others, wait for."""
    facts = context.trace.ranks.get(rank)
    raised = facts.exception if facts is not None else None
    if raised is None or not _ended_a_thread(raised):
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
