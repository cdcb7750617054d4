"""What a monitor that sees only part of a job may say: nothing of ranks it cannot see."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hangscope.diagnosis.model import MISMATCHES, Confidence, Diagnosis, Verdict
from hangscope.diagnosis.words.phrases import capital, rank_s

_FIX = (
    "see whether the host of those ranks is up, and look at the log of its node; or run `hangscope "
    "analyze` over the run directories of all nodes"
)


def is_for_all_to_tell(diagnosis: Diagnosis, seen: Collection[int]) -> bool:
    """Whether members that cannot be seen may turn a mismatch: the larger side is right."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first is None or first.verdict not in MISMATCHES or first.group is None:
        return False
    return not set(first.group.ranks) <= set(seen)


def in_one_line(diagnosis: Diagnosis, where: str) -> str:
    """Of ranks that ended with the rest of their job, where nothing here explains why."""
    return (
        f"{diagnosis.summary}. The job has ended, and nothing on this node explains why: look at "
        f"the logs of the other nodes, or run `hangscope analyze` over the run directories of all "
        f"of them (this node's: {where})"
    )


def only_what_is_seen(diagnosis: Diagnosis, seen: Collection[int]) -> Diagnosis:
    """The diagnosis, or `inconclusive` where it accuses ranks of which nothing was seen.

    Parameters
    ----------
    diagnosis:
        Of a trace that holds only some of the job's ranks.
    seen:
        Ranks whose rings or reports were read.
    """
    hidden = [f for f in diagnosis.findings if not set(f.culprits) <= set(seen)]
    if not hidden or hidden[0] is not diagnosis.findings[0]:
        return diagnosis
    first = hidden[0]
    waiting = sorted(set(first.victims) & set(seen))
    unheard = sorted(set(first.culprits) - set(seen))
    where = f" in {first.op} #{first.seq}" if first.op and first.seq is not None else ""
    who = f"{capital(rank_s(waiting))} wait" if waiting else "The job waits"
    who += "s" if len(waiting) == 1 else ""
    summary = f"{who}{where} for {rank_s(unheard)} on other nodes, of which nothing is heard"
    finding = replace(
        first,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        confidence=Confidence.AMBIGUOUS,
        summary=summary,
        why=f"no report of {rank_s(unheard)} has come from the monitor of another node",
        fix=_FIX,
    )
    return replace(
        diagnosis,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        confidence=Confidence.AMBIGUOUS,
        summary=summary,
        findings=(finding,),
        ranks=tuple(
            replace(row, role="bystander") if row.rank not in seen else row
            for row in diagnosis.ranks
        ),
    )
