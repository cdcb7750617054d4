"""Evidence against an answer lowers its confidence, wherever it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.shared_stop_signals import signal_of, signalled_alone
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.failure_messages import lost_a_peer
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import capital, rank_s
from hangscope.trace.job_log.hangscope_output import OWN_REPORT
from hangscope.trace.signals import SIGKILL

_FIRST_CUT = "torchrun's table ends before it tells which process failed first"


def doubt_ends(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt ends that may be reactions to another end.

    A watchdog aborts its process too, so an abort without a message is not certainly a crash. If
    several ranks were stopped at one moment, the launcher may have stopped all but the first. A
    rank that ended alone when told to stop may have been told together with all others (if these
    were only killed, or may have a handler), or before all others by someone working rank by rank.
    """
    not_killed = _not_killed(context)
    alone = signalled_alone(context.processes, context.trace)
    failures = [facts.exception for facts in context.trace.ranks.values()]
    lost = any(failure is not None and lost_a_peer(failure) for failure in failures)
    later = _failed_later(context)

    def doubted(cause: Cause) -> Cause:
        if cause.verdict is not Verdict.RANK_CRASHED:
            return cause
        if later.issuperset(cause.culprits):
            return _not_the_first(cause)
        return cause.doubted(*_why_an_answer(context, cause, not_killed, alone, lost))

    return [doubted(cause) for cause in causes]


def _not_the_first(cause: Cause) -> Cause:
    failed = capital(rank_s(cause.culprits))
    summary = f"{failed} failed, and the log does not show which process was the first"
    return replace(cause.naming_nobody(_FIRST_CUT), words=Words(summary=summary))


def _failed_later(context: Context) -> set[int]:
    """Ranks that left a status alone, in a table of which the first process to fail is cut off."""
    ranks = {r for c in context.trace.claims for r in c.details.get("failed_later", ())}
    return {r for r in ranks if context.trace.ranks[r].exception is None}


def _why_an_answer(
    context: Context, cause: Cause, not_killed: set[int], alone: int | None, lost: bool
) -> Iterator[str]:
    """Why the ends of the accused may be reactions to other ends."""
    facts = [context.trace.ranks[r] for r in cause.culprits if r in context.trace.ranks]
    if any(f.aborted_silently for f in facts):
        yield "nothing says why it aborted: a watchdog that gives up aborts, too"
    if len(cause.culprits) > 1 and any(f.exit and f.exit.by_launcher for f in facts):
        yield "the launcher may have stopped the others because one had ended"
    others = len(context.trace.ranks) > len(cause.culprits)
    if others and not_killed <= set(cause.culprits) and any(map(signal_of, facts)):
        yield "the others were killed: they may have been told to stop, too, and have ignored it"
    if alone in cause.culprits:
        yield "the others were told to stop after it: perhaps not because of its end"
    if others and any(f.exit and f.exit.not_signalled == frozenset() for f in facts) and not lost:
        yield "the others may have been told to stop as well, and handle it"


def _not_killed(context: Context) -> set[int]:
    """Ranks that SIGKILL did not end, or only after a failure of their own."""
    return {
        rank
        for rank, facts in context.trace.ranks.items()
        if facts.exit is None or facts.exit.signal != SIGKILL or facts.exception is not None
    }


def doubt_contradicted(context: Context, causes: list[Cause]) -> list[Cause]:
    """Doubt answers if a log says that another rank failed on its own but not when.

    That failure may precede everything recorded, or belong to another run of the job.
    """
    named = {r for cause in causes for r in cause.culprits}
    failed = [
        process
        for process in context.processes.values()
        if process.failed
        and process.rank not in named
        and context.trace.ranks[process.rank].failed_undated
    ]
    if not failed:
        return causes
    first = failed[0]
    words = f"rank {first.rank} failed with {shortened(first.end_text)}, and nothing says when"
    return [cause.doubted(words) if cause.is_certain else cause for cause in causes]


def doubt_own_report(context: Context, causes: list[Cause]) -> list[Cause]:
    """For a log alone: doubt answers if HangScope's own reports in it, which rest on more, name
    other ranks."""
    said = [c.text for c in context.trace.claims if c.kind == OWN_REPORT]
    if not said or not context.trace.only_logs:
        return causes
    doubt = f"HangScope had said in this log: {shortened(said[0])}"

    def is_said(cause: Cause) -> bool:
        subject = f"{capital(rank_s(cause.culprits))} " if cause.culprits else ""
        return any(text.startswith(subject) for text in said)

    return [cause if is_said(cause) else cause.doubted(doubt) for cause in causes]
