"""The rank table: one row per rank."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, RankReport
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import user_frames


def rank_reports(context: Context, findings: tuple[Finding, ...]) -> tuple[RankReport, ...]:
    """Every rank of the job, dumped or not, in rank order."""
    culprits = {r for f in findings for r in f.culprits}
    victims = {r for f in findings for r in f.victims}
    everybody = sorted(set(context.trace.ranks) | set(context.trace.missing_ranks))
    return tuple(_report(context, r, culprits, victims, bool(findings)) for r in everybody)


def _report(
    context: Context, rank: int, culprits: set[int], victims: set[int], hung: bool
) -> RankReport:
    facts = context.trace.ranks.get(rank)
    process = context.processes.get(rank)
    places = context.waits.at(context.waits.out(rank)) if hung else []
    role = (
        "culprit"
        if rank in culprits
        else "victim"
        if rank in victims
        else "bystander"
        if facts is not None
        else "unknown"
    )
    if facts is None or process is None:
        return RankReport(rank, role, "lost")
    state = process.state
    if places and process.end in (End.ALIVE, End.UNKNOWN) and not process.cannot_run:
        state = "waiting"
    exception = facts.exception
    stack = process.stack or (exception.stack if exception is not None else ())
    began = min((p.began_ns for p in places if p.began_ns), default=0)
    if not stack and places:
        stack = context.stack(places[0].row)
    return RankReport(
        rank=rank,
        role=role,
        state=state,
        host=facts.host,
        pid=facts.pid,
        waiting_for=tuple(sorted({r for p in places for r in p.targets if r != rank}))[:64],
        waiting_s=context.shown_age_s(rank, began) if began else None,
        last=context.last_operation(rank),
        stack=user_frames(stack),
        phase=process.phase,
        exit=process.end_text or None,
    )
