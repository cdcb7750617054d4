"""What the records of the accused do not show, and who is accused instead."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.faults.contest import seen_to_depart
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import NEVER_CAME, Confidence, Verdict
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.wording.phrases import capital, rank_s

_ENDED = (End.CRASHED, End.CLEAN)


def accuse_unseen(context: Context, cause: Cause) -> Cause:
    """Of two ranks without a record, accuse the one without any sign of life.

    The other's process is seen to live: its record was just not collected.
    """
    trace = context.trace
    if not _is_unrecorded(context, cause, Verdict.MISSING_RANK):
        return cause
    places = context.waits.at(cause.places)
    never = {r for place in places for r in place.unknown if r not in trace.ranks}
    if not 0 < len(never) * 2 < len(trace.ranks) + len(never):
        return cause  # if half the world shows no sign of life, the collection failed
    named = cause.accusing(tuple(sorted(never)), cause.confidence)
    untold = f"what {rank_s(cause.culprits)} issued is not on record"
    return replace(named, verdict=Verdict.RANK_LOST, unknowns=()).doubted(untold)


def _is_unrecorded(context: Context, cause: Cause, *verdicts: Verdict) -> bool:
    """Whether it has one of these verdicts and names only ranks known from a journal alone."""
    named = cause.verdict in verdicts and bool(cause.culprits)
    return named and context.unrecorded.issuperset(cause.culprits)


def blame_missing_receive(context: Context, cause: Cause) -> Cause:
    """Consider that the accused waits for a rank that never received its send, or not in time.

    Either the accused went elsewhere after sending, or the other left the receive out and went on.
    A rank that alone deviated is the likelier one; overwritten records show no pattern.
    """
    if cause.verdict not in NEVER_CAME or cause.crossed:
        return cause
    if len(cause.culprits) != 1 or context.is_observed(*cause.culprits):
        return cause
    (accused,) = cause.culprits
    sent = [place for place in context.waits.places if _is_unfinished_send(context, place, accused)]
    waiting = context.waits.waiters_at(cause.places)
    waiting |= {
        p.half.rank
        for p in context.waits.places
        if p.half is not None and p.half.matched is False and p.half.rank in cause.victims
    }
    partners = {p.half.peer for p in sent if p.half is not None} & waiting
    both = tuple(sorted({accused, *partners}))
    if not partners or not context.partly_recorded.isdisjoint(both):
        return cause
    overwritten = not context.hidden.isdisjoint(both)
    odd = () if overwritten else seen_to_depart(context, both, sent)
    if not odd and all(p.half is not None and p.half.matched for p in sent):
        return cause  # the receive was issued as well, so something before it hangs
    confidence = Confidence.LIKELY if odd else Confidence.AMBIGUOUS
    found = cause.accusing(odd or both, confidence).with_victims(partners)
    if found.culprits == cause.culprits:
        return found
    to = rank_s(sorted(partners))
    words = Words(
        f"What rank {accused} sent to {to} was never received there, and others wait for rank "
        f"{accused}",
        f"{to} skipped a receive, or rank {accused} sent once too often or went elsewhere after "
        "sending",
        "compare how often each rank reaches its send and its receive",
    )
    sides = tuple((rank,) for rank in both)
    return replace(found, verdict=Verdict.P2P_UNMATCHED, words=words, sides=sides)


def blame_missing_send(context: Context, cause: Cause) -> Cause:
    """Consider that the accused waits, in a way that leaves no record (it polls), for a send that a
    rank at the place where others wait for it has left out.

    Many programs post receives early. So this counts only if that rank alone left its pattern.
    """
    if cause.verdict is not Verdict.MISSING_RANK or len(cause.culprits) != 1:
        return cause
    (accused,) = cause.culprits
    waiting = context.waits.waiters_at(cause.places)
    receives = [
        half
        for half in context.pending_halves
        if half.rank == accused and not half.is_send
        if half.matched is False and half.peer in waiting
    ]
    partners = {half.peer for half in receives}
    process = context.processes.get(accused)
    if not partners or process is None or process.cannot_run or process.end in _ENDED:
        return cause
    both = tuple(sorted({accused, *partners}))
    odd = seen_to_depart(context, both, context.waits.at(cause.places), surely=False)
    if not odd or accused in odd:
        return cause
    sources, wait = capital(rank_s(odd)), "wait" if len(odd) > 1 else "waits"
    words = Words(
        f"{sources} never sent what rank {accused} is to receive, and {wait} for rank {accused}",
        f"a send of every earlier step was left out; rank {accused} may be asking for it again and "
        "again, or be held up by something else",
        f"compare this step of {rank_s(odd)} with those before; wait() instead of polling "
        "is_completed() shows what is waited for",
    )
    named = cause.accusing(tuple(sorted({accused, *odd})), Confidence.AMBIGUOUS)
    return replace(named, verdict=Verdict.P2P_UNMATCHED, words=words)


def _is_unfinished_send(context: Context, place: Place, rank: int) -> bool:
    """Whether it is an unfinished send of the rank on a device.

    Among active entries alone, a made-up list of members may lack the rank that it went to.
    """
    half = place.half
    if half is None or half.rank != rank or not half.is_send:
        return False
    if rank in context.unfinished_alone and not context.trace.groups[half.group].listed:
        return False
    signature = context.signature(half.row)
    return signature is not None and not is_on_host(signature)
