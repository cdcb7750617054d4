"""Keeps a monitor that sees only part of a job from accusing ranks it cannot see."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict

_FIX = (
    "run `hangscope analyze` over the run directories of all nodes, or look at the log of the node "
    "that has those ranks"
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
    where = f" in {first.op} #{first.seq}" if first.op and first.seq is not None else ""
    summary = (
        f"{len(waiting)} ranks of this node wait{where} for ranks on other nodes, which cannot be "
        "seen from here"
    )
    finding = replace(
        first,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        confidence=Confidence.AMBIGUOUS,
        summary=summary,
        why="the ranks they wait for are not in this node's run directory",
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
