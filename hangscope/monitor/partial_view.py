"""A monitor that sees only some of a job's ranks must not accuse the ones it cannot see."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hangscope.diagnosis.model import ENDED, Confidence, Diagnosis, Verdict
from hangscope.diagnosis.wording.phrases import capital, in_operation, rank_s
from hangscope.monitor.host_evidence import HostEvidence
from hangscope.trace.digests.hosts import Host, hosts_s

_FIX = (
    "see whether the host of those ranks is up, can be reached from here and has the same "
    "HangScope switched on, and look at the log of its node; or run `hangscope analyze` over the "
    "run directories of all nodes"
)


def needs_other_nodes(diagnosis: Diagnosis) -> bool:
    """Whether ranks on other nodes may change this verdict.

    A mismatch is decided by the majority, and a waiting rank may wait for one on another node.
    """
    return bool(diagnosis.findings) and diagnosis.findings[0].verdict not in ENDED


def unexplained_end(
    diagnosis: Diagnosis,
    where: str,
    known: HostEvidence,
    *,
    stopped: bool = False,
    closed: Sequence[str] = (),
) -> str:
    """The line to print if all ranks here ended and nothing on this node explains why.

    ``stopped``: they were told to stop, as at the end of a job or of a node elsewhere; ``closed``:
    addresses to which they lost the first connections.
    """
    begin = f"{diagnosis.headline}. " if diagnosis.findings else ""
    line = f"{begin}All ranks of this node have ended, and nothing on it explains why"
    if stopped:
        line = "All ranks of this node were stopped from outside"
    host, lost = known.store_host, known.store
    if host is not None and lost is not None and known.here.isdisjoint(host.ranks):
        line += f"; {hosts_s([host])}, which holds the job's store, does not answer ({lost.error})"
    elif closed:
        line += f"; connections to {', '.join(closed)} were closed"
    return (
        f"{line}: look at the logs of the other nodes, or run `hangscope analyze` over the run "
        f"directories of all of them (this node's: {where})"
    )


def stopped_host(host: Host) -> str:
    """What the other nodes are told if all ranks of a host were told to stop."""
    return f"All ranks of {hosts_s([host])} were stopped from outside"


def restricted_to_seen(diagnosis: Diagnosis, seen: Collection[int]) -> Diagnosis:
    """The diagnosis, or `inconclusive` if it accuses ranks that were not observed.

    Parameters
    ----------
    diagnosis:
        Diagnosis of a trace that holds only some of the job's ranks.
    seen:
        Ranks whose rings or reports were read.
    """
    first = diagnosis.findings[0] if diagnosis.findings else None
    accused = set(first.culprits) if first is not None else set()
    if first is not None and first.verdict is Verdict.INCONCLUSIVE and not accused:
        accused = {e.on for e in diagnosis.wait_for if e.waiter in first.victims}
    if first is None or accused <= set(seen):
        return diagnosis
    waiting = sorted(set(first.victims) & set(seen))
    unheard = sorted(accused - set(seen))
    who = f"{capital(rank_s(waiting))} wait" if waiting else "The job waits"
    who += "s" if len(waiting) == 1 else ""
    who += in_operation(first)
    summary = f"{who} for {rank_s(unheard)} on other nodes, of which nothing is heard"
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
