"""Signs of a hang that name nobody: what they show, and what to collect."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.no_cause.final_tracebacks import places_of_waits
from hangscope.diagnosis.no_cause.log_symptoms import NO_MORE, rendezvous_advice, signs
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.logs import undecided
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import say
from hangscope.diagnosis.wording.stack_summary import (
    how_to_identify,
    places_of_stacks,
    places_of_unranked,
)
from hangscope.trace import formats
from hangscope.trace.job_log.hangscope_output import OWN_REPORT
from hangscope.trace.model import Claim

_REPORTED = (
    "the evidence for that report is in the run directory, not in this log",
    "read that report in the log; the command at its end (more: hangscope analyze ...) reads the "
    "run directory with the evidence",
)
"""Why HangScope's own report in a log is no verdict, and what to do."""


def inconclusive(context: Context) -> Finding:
    """The finding that something hangs or failed, with everything known about it and what to do."""
    advice = undecided(context)
    fix, missing = advice.fix, context.trace.missing_ranks
    standing = places_of_stacks(context)
    unranked = places_of_unranked(context)
    if unranked:
        fix = how_to_identify(context)
    elif standing:
        fix = (
            "compare where the ranks are: one that is not communicating may be the one the others "
            "wait for; stacks of more ranks, dumps or the job's log would tell more"
        )
    fix = rendezvous_advice(context.trace.claims) or fix
    summary, why = signs(context), "the evidence does not show who is waited for"
    said = _own_words(context.trace.claims)
    if said and context.trace.only_logs:
        # Without any other sign, that is all there is.
        summary = "" if summary == NO_MORE else f"{summary}; "
        summary = f"{summary}HangScope had said before: {said[0]}"
        why, fix = _REPORTED
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        (),
        Confidence.LIKELY,
        summary,
        why,
        fix,
        advice.playbook,
        unknowns=(f"{rank_s(missing)} left no record",) if missing else (),
        evidence=places_of_waits(context)
        + standing
        + unranked
        + tuple(f"HangScope said in this log: {text}" for text in said)
        + tuple(
            f"log: {shortened(c.text)}"
            for c in context.trace.claims[:8]
            if c.text and c.kind != OWN_REPORT
        ),
    )


def stopped_on_request(context: Context, words: str) -> Finding:
    """Somebody ended the job, and no rank said before that it waited: a hang would look the
    same."""
    said = _own_words(context.trace.claims)
    if said:
        before = f"HangScope had said before: {said[0]}"
        why, fix = _REPORTED
    else:
        before = "nothing in this log shows whether it was hanging, or why"
        why = "waiting ranks log nothing until a timeout of theirs expires, and none had expired"
        fix = (
            "if its last step came long before, it hung: run it with HANGSCOPE=1, or take the "
            "stacks of all ranks (py-spy dump) before stopping it"
        )
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        tuple(sorted(context.processes)),
        Confidence.LIKELY,
        f"The job was told to stop from outside, and {before}",
        why,
        fix,
        say(Verdict.INCONCLUSIVE).playbook,
        evidence=(f"log: {shortened(words)}",),
    )


def _own_words(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """What HangScope's own reports in a log say: not evidence, but worth repeating."""
    return tuple(c.text for c in claims if c.kind == OWN_REPORT)[:4]


def ended_unseen(context: Context, status: str = "") -> Finding:
    """Every process is gone without a message: killed from outside, or by the first of them.

    ``status``: the exit status that all had at one moment.
    """
    advice = undecided(context)
    missing = context.trace.missing_ranks
    stood = {r: where(innermost(h.stack)) for r, h in context.processes.items() if h.stack}
    if missing:
        summary = (
            f"The ranks on record were all ended from outside, and {rank_s(missing)} left nothing"
        )
        if len(context.processes) == 1:
            only = next(iter(context.processes))
            summary = f"Only rank {only} left anything, and nothing on record says how it ended"
        why = "nothing on record says whether one followed from the other"
    elif status:
        summary = f"Every rank left at one moment with {status}, and nothing on record says why"
        why = (
            "some were in a collective, which no program leaves on its own: whoever started them "
            "ended them, as Ray does when one of its tasks has failed or the driver is gone"
        )
    else:
        summary = "Every rank ended at about the same time, and nothing on record says how"
        why = "no exit status, signal or exception was seen of any of them"
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        tuple(sorted(context.processes)),
        Confidence.LIKELY,
        summary,
        why,
        "read the log of whoever started the ranks: the first error is there"
        if status and not missing
        else advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {r}: last seen at {at}" for r, at in sorted(stood.items())[:8]),
        unknowns=("the launcher's log and the kernel's (dmesg) may tell which one ended first",),
    )


def unearned(context: Context, *, moved: bool) -> Finding | None:
    """The finding that nothing shows how some ranks are; None if all are known to be well.

    Health is a claim: it needs progress or a clean end of every rank that is known to exist. Of a
    job that ``moved``, members of a collective that others have finished have taken part in it. A
    job that runs is looked at again.
    """
    trace = context.trace
    own = {s.rank for s in trace.sources if s.format in formats.RECORDS}
    if (trace.live and trace.current) or not (own or context.unreadable):
        return None
    silent = sorted(
        rank
        for rank in context.known_ranks
        if (rank in context.unreadable or rank not in own) and not _ended_well(context, rank)
    )
    if moved:
        front = context.front
        finished = set(front.group[front.completed > 0].tolist())
        seen = {r for group in finished for r in trace.groups[group].ranks}
        silent = [rank for rank in silent if rank not in seen]
    if not silent:
        return None
    who = rank_s(silent)
    unread = {context.unreadable[r] for r in silent if r in context.unreadable}
    why = (
        f"cannot be read ({shortened('; '.join(sorted(unread)), 120)})" if unread else "is missing"
    )
    advice = say(Verdict.INCONCLUSIVE)
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        (),
        Confidence.AMBIGUOUS,
        f"Nothing is found to wait, and nothing shows what {who} did",
        f"what {who} should have left {why}",
        f"collect the ring or dump of {who}, its log and its launcher's: which rank ended, and how",
        advice.playbook,
        unknowns=(f"whether {who} ended well, hangs or failed",),
    )


def _ended_well(context: Context, rank: int) -> bool:
    process, facts = context.processes.get(rank), context.trace.ranks.get(rank)
    clean = process is not None and process.end is End.CLEAN
    return clean or (facts is not None and bool(facts.finalized))
