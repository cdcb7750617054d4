"""Findings that name nobody: what the signs of a hang show, and what to collect."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.no_cause.final_tracebacks import places_of_waits
from hangscope.diagnosis.no_cause.log_symptoms import NO_MORE, rendezvous_advice, signs
from hangscope.diagnosis.observability import is_text_alone, recorders
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.logs import undecided
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import say
from hangscope.diagnosis.wording.stack_summary import (
    how_to_identify,
    places_of_stacks,
)
from hangscope.trace.job_log.hangscope_output import OWN_REPORT

_REPORTED = (
    "the evidence for that report is in the run directory, not in this log",
    "read that report in the log; the command at its end (more: hangscope analyze ...) reads the "
    "run directory with the evidence",
)
"""Why HangScope's own report in a log is no verdict, and what to do."""
_STOPPED = (
    "The job was told to stop from outside, and nothing in this log shows whether it was hanging, "
    "or why"
)
_BEFORE_STOPPING = (
    "if its last step came long before, it hung: run it with HANGSCOPE=1, or take the stacks of "
    "all ranks (py-spy dump) before stopping it"
)
_COMPARE = (
    "compare where the ranks are: one that is not communicating may be the one the others wait "
    "for; stacks of more ranks, dumps or the job's log would tell more"
)


def nobody(
    summary: str,
    why: str,
    fix: str = "",
    *,
    verdict: Verdict = Verdict.INCONCLUSIVE,
    victims: Iterable[int] = (),
    evidence: tuple[str, ...] = (),
    unknowns: tuple[str, ...] = (),
    unchanged_s: float = 0.0,
) -> Finding:
    """A finding that names no rank; ``fix``: the verdict's usual advice if empty."""
    advice = say(verdict)
    return Finding(
        verdict,
        (),
        tuple(sorted(victims)),
        Confidence.LIKELY,
        summary,
        why,
        fix or advice.fix,
        advice.playbook,
        evidence=evidence,
        unknowns=unknowns,
        unchanged_s=unchanged_s,
    )


def inconclusive(context: Context, *, stopped: bool = False) -> Finding:
    """The finding that something hangs or failed, with everything known about it and what to do.

    ``stopped``: somebody ended the job, and no rank said before that it waited: a hang would look
    the same.
    """
    claims, missing = context.trace.claims, context.trace.missing_ranks
    standing, met = places_of_stacks(context), rendezvous_advice(context.trace.claims)
    fix = met or (_COMPARE if standing else undecided(context).fix)
    if context.trace.unranked_processes and not met:
        fix = how_to_identify(context)
    summary, why = signs(context), "the evidence does not show who is waited for"
    if stopped:
        summary = _STOPPED
        why = "waiting ranks log nothing until a timeout of theirs expires, and none had expired"
        fix = met or _BEFORE_STOPPING
    said = _own_words(context)
    if said and is_text_alone(context.trace):
        # Without any other sign, that is all there is.
        before = f"HangScope had said before: {said[0]}"
        summary = before if summary == NO_MORE else f"{summary}; {before}"
        why, fix = _REPORTED
    own = (f"HangScope said in this log: {text}" for text in said if text not in summary)
    logged = (f"log: {shortened(c.text)}" for c in claims[:8] if c.text and c.kind != OWN_REPORT)
    return nobody(
        summary,
        why,
        fix,
        evidence=(*places_of_waits(context), *standing, *own, *logged),
        unknowns=(f"{rank_s(missing)} left no record",) if missing else (),
    )


def _own_words(context: Context) -> tuple[str, ...]:
    """What HangScope's own reports in a log say: not evidence, but worth repeating."""
    return tuple(c.text for c in context.trace.claims if c.kind == OWN_REPORT)[:4]


def ended_unseen(context: Context, status: str = "") -> Finding:
    """Every process is gone without a message: killed from outside, or by the first of them.

    ``status``: the exit status that all had at one moment.
    """
    missing, ranks = context.trace.missing_ranks, [*context.processes]
    fix = undecided(context).fix
    if missing:
        why = "nothing on record says whether one followed from the other"
        summary = f"Only rank {ranks[0]} left anything, and nothing on record says how it ended"
        if len(ranks) > 1:
            summary = f"All ranks on record were ended from outside; {rank_s(missing)} left nothing"
    elif status:
        summary = f"Every rank left at one moment with {status}, and nothing on record says why"
        why = (
            "some were in a collective, which no program leaves on its own: whoever started them "
            "ended them, as Ray does when one of its tasks has failed or the driver is gone"
        )
        fix = "read the log of whoever started the ranks: the first error is there"
    else:
        summary = "Every rank ended at about the same time, and nothing on record says how"
        why = "no exit status, signal or exception was seen of any of them"
    stood = {r: where(innermost(h.stack)) for r, h in context.processes.items() if h.stack}
    return nobody(
        summary,
        why,
        fix,
        victims=ranks,
        evidence=tuple(f"rank {r}: last seen at {at}" for r, at in sorted(stood.items())[:8]),
        unknowns=("the launcher's log and the kernel's (dmesg) may tell which one ended first",),
    )


def unearned(context: Context, *, moved: bool) -> Finding | None:
    """The finding that nothing shows how some ranks are; None if all are known to be well.

    Health is a claim: it needs progress or a clean end of every rank that is known to exist. Of a
    job that ``moved``, members of a collective that others have finished have taken part in it. A
    job that runs is looked at again.
    """
    trace, front, unread = context.trace, context.front, context.unreadable
    own = recorders(trace) - unread.keys()
    if (trace.live and trace.current) or not (own or unread):
        return None
    finished = set(front.group[front.completed > 0].tolist()) if moved else ()
    seen = {rank for group in finished for rank in trace.groups[group].ranks}
    silent = [
        rank for rank in sorted(context.known_ranks - own - seen) if not _ended_well(context, rank)
    ]
    if not silent:
        return None
    who = rank_s(silent)
    said = "; ".join(sorted({unread[r] for r in silent if r in unread}))
    why = f"cannot be read ({shortened(said, 120)})" if said else "is missing"
    return nobody(
        f"Nothing is found to wait, and nothing shows what {who} did",
        f"what {who} should have left {why}",
        f"collect the ring or dump of {who}, its log and its launcher's: which rank ended, and how",
        unknowns=(f"whether {who} ended well, hangs or failed",),
    )


def _ended_well(context: Context, rank: int) -> bool:
    process, facts = context.processes.get(rank), context.trace.ranks.get(rank)
    clean = process is not None and process.end is End.CLEAN
    return clean or (facts is not None and bool(facts.finalized))
