"""Evidence that speaks against an answer lowers its confidence, wherever it came from."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends.told_together import signal_of
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.host import End
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.words.phrases import capital, rank_s
from hangscope.trace.job_log.own_lines import OWN_REPORT
from hangscope.trace.model import RankFacts
from hangscope.trace.signals import SIGABRT, SIGKILL


def doubt_ends(context: Context, causes: list[Cause]) -> None:
    """Ends that may be the answer to another one.

    A watchdog aborts its process as well: an abort without a word is no certain crash. Of several
    that were stopped at one moment the launcher may have stopped all but the first. And who alone
    ended when it was told to stop may have been told with all others, if these were only killed.
    """
    not_killed = _not_killed(context)
    for cause in causes:
        if cause.verdict is not Verdict.RANK_CRASHED:
            continue
        facts = [context.trace.ranks.get(rank) for rank in cause.culprits]
        if any(f is not None and _aborted_silently(f) for f in facts):
            cause.doubt("why it aborted is not told: a watchdog that gives up does so as well")
        if len(facts) > 1 and any(f and f.exit and f.exit.by_launcher for f in facts):
            cause.doubt("the launcher may have stopped the others because one had ended")
        others = len(context.trace.ranks) > len(cause.culprits)
        if others and not_killed <= set(cause.culprits) and any(f and signal_of(f) for f in facts):
            cause.doubt(
                "the others were killed: they may have been told to stop, too, and ignored it"
            )


def _not_killed(context: Context) -> set[int]:
    """Ranks that SIGKILL did not end, or not before a failure of their own."""
    return {
        rank
        for rank, facts in context.trace.ranks.items()
        if facts.exit is None or facts.exit.signal != SIGKILL or facts.exception is not None
    }


def _aborted_silently(facts: RankFacts) -> bool:
    aborted = facts.exit is not None and facts.exit.signal == SIGABRT
    return aborted and facts.exception is None


def doubt_contradicted(context: Context, causes: list[Cause]) -> None:
    """A log says of a rank that no answer names that it failed of its own, and not when.

    It may have come before all that is on record, or be of another run of the job.
    """
    named = {r for cause in causes for r in cause.culprits}
    failed = [
        host
        for host in context.hosts.values()
        if host.end is End.CRASHED
        and not host.secondary
        and host.rank not in named
        and _undated(context.trace.ranks[host.rank])
    ]
    if not failed:
        return
    first = failed[0]
    words = f"rank {first.rank} failed of {shortened(first.end_text)}, and nothing says when"
    for cause in causes:
        if cause.confidence is Confidence.CERTAIN:
            cause.doubt(words)


def doubt_own_report(context: Context, causes: list[Cause]) -> None:
    """Of a log alone: HangScope's own reports in it, which rest on more, are about other ranks."""
    said = [c.text for c in context.trace.claims if c.kind == OWN_REPORT]
    if not said or not context.trace.only_logs:
        return
    for cause in causes:
        subject = f"{capital(rank_s(cause.culprits))} " if cause.culprits else ""
        if not any(text.startswith(subject) for text in said):
            cause.doubt(f"HangScope had said in this log: {shortened(said[0])}")


def _undated(facts: RankFacts) -> bool:
    """Whether an exception is told, and no source says when it was raised."""
    dated = facts.exit is not None and facts.exit.at_ns
    return facts.exception is not None and not facts.exception.at_ns and not dated
