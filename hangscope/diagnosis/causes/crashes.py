"""Failures that the wait-for graph does not show, and who went first of ranks that lost a peer.

Ranks that lose a peer over the network end, and their own peers lose them in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.consequences import is_of_waiting
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.lost_peers import LostPeers, lost_peers
from hangscope.diagnosis.exits.primary_failures import (
    aborted_alone,
    had_destroyed_groups,
    known_by_status,
    may_have_given_up,
    primary_crashes,
    same_failure,
)
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import cut_short, is_text_alone
from hangscope.diagnosis.processes.process_state import End, ProcessState, is_unseen
from hangscope.diagnosis.records.coverage import lacks_last_rank
from hangscope.diagnosis.wording.phrases import capital, rank_s, verb


def crash_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Primary failures not covered by a graph cause: all other ranks were torn down."""
    waits = context.waits
    crashed = [r for r, h in context.processes.items() if h.end is End.CRASHED]
    waits_on = {r: {t for place in waits.of(r) for t in place.targets} for r in crashed}
    found = primary_crashes(context.processes, waits_on)
    blamed = {r for c in causes for r in c.culprits}
    rest = [
        h
        for h in found
        if h.rank not in blamed and not had_destroyed_groups(context.trace.ranks[h.rank])
    ]
    if any(_left_its_groups(context, c) for c in causes):
        rest = [h for h in rest if not _only_a_status(context, h.rank)]
    gave_up = may_have_given_up(context.trace)
    rest = [h for h in rest if h.rank not in gave_up]
    if not rest:
        return []
    accused = {h.rank for h in rest}
    shared = {r for c in context.trace.claims if c.kind == "shared_device" for r in c.accused}
    ambiguous = not shared.isdisjoint(accused)
    if ambiguous:  # the device chosen by either rank is the wrong one
        accused |= shared & context.processes.keys()
    bare = len(rest) > 1 and all(h.failure.by_status for h in rest)
    # Nothing distinguishes the first failure from its echo.
    ambiguous |= bare or not same_failure(rest)
    cause = Cause(
        Verdict.RANK_CRASHED,
        tuple(sorted(accused)),
        confidence=Confidence.AMBIGUOUS if ambiguous else Confidence.CERTAIN,
        began_ns=min((h.end_ns for h in rest if h.end_ns), default=0),
        victims=frozenset(
            rank
            for rank, process in context.processes.items()
            if rank not in accused
            and (process.end in (End.TORN_DOWN, End.CRASHED) or process.secondary)
        ),
    )
    return [cause.doubted(*_doubts(context, rest))]


def _doubts(context: Context, rest: list[ProcessState]) -> Iterator[str]:
    """What is unknown about how these ended."""
    if all(is_unseen(context.trace.ranks[h.rank]) for h in rest):
        yield "nobody saw how the accused ended"
    alone = aborted_alone(context.trace)
    if all(h.rank == alone and h.rank in context.of_text for h in rest):
        yield "of what the accused aborted itself is not told"
    if all(_ended_without_a_word(context, h.rank) for h in rest):
        yield "others gave up waiting for somebody, and of what the accused failed is not told"


def _left_its_groups(context: Context, cause: Cause) -> bool:
    """Whether the accused had destroyed their groups, which breaks everybody's connections."""
    ranks = context.trace.ranks
    left = all(r in ranks and ranks[r].finalized for r in cause.culprits)
    return bool(cause.culprits) and cause.verdict is Verdict.MISSING_RANK and left


def _ended_without_a_word(context: Context, rank: int) -> bool:
    """Whether a log gives only the rank's status while others had waited until a timeout."""
    trace = context.trace
    waited = any(c.kind == "timeout" and c.reporter not in (None, rank) for c in trace.claims)
    return waited and known_by_status(trace, rank)


def _only_a_status(context: Context, rank: int) -> bool:
    """Whether nothing shows why a rank failed."""
    exit_ = context.trace.ranks[rank].exit
    return rank in context.unrecorded and exit_ is not None and exit_.kind == "code"


_FEWEST = 2
"""What one rank says of itself accuses no silent one: it may be all there is of the log."""
_MOST = 2
"""Of more ranks that say nothing, most are only missing from the log."""
_WHY = (
    "a rank that loses a peer is ended by its watchdog, and then its own peers lose it; who has "
    "lost nobody went first"
)


def accuse_first_gone(context: Context, causes: list[Cause]) -> list[Cause]:
    """If ranks lost their peers, accuse whoever lost nobody, and drop what only shows how far each
    rank had come by then.

    The job moved until its connections broke. Counters in the log of the ranks are of the moments
    at which each of them noticed.
    """
    found = lost_peers(context)
    if found is None:
        return causes
    recorded = not is_text_alone(context.trace)
    kept = [
        cause
        for cause in causes
        if (not is_of_waiting(cause) and not _is_echo(context, cause, found))
        or (recorded and _names_some_of(cause, found.first))
    ]
    if any(c.culprits for c in kept) or _accuses_others(context, found):
        return kept
    if _is_told(context, found):
        return [_first_gone(context, found)]
    return [c for c in causes if recorded and not c.culprits]


def _is_echo(context: Context, cause: Cause, found: LostPeers) -> bool:
    """Whether it names only ranks that ended because they had lost a peer."""
    failed = {r for r in cause.culprits if r in context.processes and context.processes[r].failed}
    return bool(cause.culprits) and found.lost_ns.keys() - failed >= set(cause.culprits)


def _names_some_of(cause: Cause, ranks: tuple[int, ...]) -> bool:
    return bool(cause.culprits) and set(cause.culprits) <= set(ranks)


def _accuses_others(context: Context, found: LostPeers) -> bool:
    """Whether a log says of another rank that it failed, without how its process ended."""
    return any(set(claim.accused) - found.lost_ns.keys() for claim in context.trace.claims)


def _is_told(context: Context, found: LostPeers) -> bool:
    """Whether enough ranks speak to accuse those that do not. If half of them do not even appear,
    the log is that of one of several nodes; if one beyond the last one heard of does not either, it
    may be that one."""
    speak = len(found.lost_ns) + len(found.outlived)
    absent = set(found.first).intersection(context.gaps)
    if 2 * len(absent) >= len(context.known_ranks) or (absent and lacks_last_rank(context.trace)):
        return False
    aborted = any(context.processes[r].aborted for r in found.first if r in context.processes)
    if aborted and cut_short(context.trace):
        return False  # why it did may be in the missing part
    return 0 < len(found.first) <= min(_MOST, speak) and speak >= _FEWEST


def _first_gone(context: Context, found: LostPeers) -> Cause:
    first = found.first
    verdicts = {_verdict(context, rank) for rank in first}
    words = Words(
        f"{capital(rank_s(first))} {_end(context, first)} without a word, and "
        f"{rank_s(found.lost_ns)} lost connections to other ranks",
        _WHY,
    )
    return Cause(
        verdicts.pop() if len(verdicts) == 1 else Verdict.RANK_LOST,
        first,
        confidence=Confidence.LIKELY if len(first) == 1 else Confidence.AMBIGUOUS,
        began_ns=found.began_ns,
        victims=found.outlived.union(found.lost_ns),
        words=words,
        evidence=_said(found),
    )


def _verdict(context: Context, rank: int) -> Verdict:
    process = context.processes.get(rank)
    if process is None or not process.gone:
        return Verdict.RANK_LOST
    return Verdict.RANK_EXITED if process.end is End.CLEAN else Verdict.RANK_CRASHED


def _end(context: Context, ranks: tuple[int, ...]) -> str:
    """How they ended, as a predicate."""
    ends = [context.processes[r].end_text if r in context.processes else "" for r in ranks]
    return f"ended ({ends[0]})" if ends[0] and len(set(ends)) == 1 else f"{verb(ranks, 'is')} gone"


def _said(found: LostPeers) -> tuple[str, ...]:
    ordered = sorted(found.lost_ns, key=lambda rank: (found.lost_ns[rank] or 1 << 62, rank))
    return tuple(f"log: rank {rank} lost a connection to another rank" for rank in ordered[:8])
