"""Ranks that left nothing and that others wait for: at fault, or victims like the rest?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import (
    cut_short,
    is_text_alone,
    merely_named,
    named_locally,
)
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.coverage import could_not_be_recorded, lacks_last_rank
from hangscope.diagnosis.wording.phrases import capital, rank_s, title_of


def lost_ranks(
    context: Context,
    candidates: list[int],
    waited_for: Mapping[int, list[int]],
    explained: set[int],
) -> list[Cause]:
    """The cause of waits for ranks without a dump, if there is one.

    ``waited_for``: the places that wait for a rank; ``explained``: ranks whose waiting leads to a
    cause already found.
    """
    lost = tuple(sorted(_accused(context, candidates, waited_for, explained)))
    if not lost:
        return []
    places = tuple(sorted({i for r in lost for i in waited_for[r]}))
    cause = Cause(Verdict.RANK_LOST, lost, places, began_ns=began(context, places))
    if untold := _not_collected(context, lost):
        victims = frozenset(context.waits.waiters_at(places))
        nobody = replace(cause, verdict=Verdict.INCONCLUSIVE, culprits=(), victims=victims)
        return [replace(nobody, confidence=Confidence.LIKELY).with_unknown(untold)]
    alone = len(lost) == 1 and not _presumed_beyond(context)
    return [replace(cause, confidence=Confidence.LIKELY if alone else Confidence.AMBIGUOUS)]


def _accused(
    context: Context,
    candidates: Collection[int],
    waited_for: Mapping[int, list[int]],
    explained: set[int],
) -> list[int]:
    """Lost ranks with a waiter whose wait nothing else explains."""
    places = context.waits.places
    # A rank that shares a group with a known cause may well be waiting for it too.
    excused = {
        r
        for place in places
        if explained.intersection(place.waiters)
        for r in place.unknown
        if place.absent or place.behind
    }
    accused = [
        rank
        for rank in candidates
        if rank not in excused
        and not explained.issuperset(w for i in waited_for[rank] for w in places[i].waiters)
    ]
    unread = context.unreadable
    mute = unread.keys() | could_not_be_recorded(context.trace).keys()
    all_unread = mute >= set(accused)
    if not all_unread:
        accused = [r for r in accused if r not in mute]  # those lived to write something
    made_up = any(not g.ranks for g in context.trace.groups)
    if made_up and explained:
        return []  # not listed who shares a group with the known cause
    nameless = made_up or named_locally(context.trace)
    return [] if nameless and all_unread else accused


def _not_collected(context: Context, lost: tuple[int, ...]) -> str:
    """Why it says nothing about these ranks that they left nothing; empty if it does.

    They may have reported that they cannot be recorded. If half of the world left no record, the
    collection failed, or it is one node's log: then a wait for one of the missing ranks says
    nothing about what the other missing ranks do. And an excerpt of a log leaves ranks out.
    """
    said = could_not_be_recorded(context.trace)
    if unable := [rank for rank in lost if rank in said]:
        why = "; ".join(sorted({said[rank] for rank in unable}))
        return f"what {rank_s(unable)} did, of which nothing is recorded ({why})"
    beyond = _presumed_beyond(context)
    untold = context.unrecorded | merely_named(context.trace)
    untold -= {r for r in untold if context.processes[r].end is End.CLEAN}
    silent = max(len(lost), len({*context.gaps, *untold})) + beyond
    total = len(context.known_ranks) + beyond
    # All input may be one rank's output, which says nothing about the others.
    alone = len(context.trace.ranks) < 2 and is_text_alone(context.trace)
    if silent * 2 >= total and (silent > 1 or alone):
        # A log need not state how many ranks there are.
        whose = "most ranks" if is_text_alone(context.trace) else f"{silent} of {total} ranks"
        return f"{whose} left no record"
    if cut_short(context.trace):
        return f"{rank_s(lost)} may have spoken in what is left out of this log"
    return ""


def _presumed_beyond(context: Context) -> int:
    """How many ranks there must be beyond the last one that a log mentions: it is silent as
    well."""
    return int(is_text_alone(context.trace) and lacks_last_rank(context.trace))


def accuse_unseen(context: Context, cause: Cause) -> Cause:
    """Of two ranks without a record, accuse the one without any sign of life.

    The other's process is seen to live: its record was just not collected.
    """
    ranks, accused = context.trace.ranks, cause.culprits
    if cause.verdict is not Verdict.MISSING_RANK or not context.unrecorded.issuperset(accused):
        return cause
    never = {r for p in context.waits.at(cause.places) for r in p.unknown if r not in ranks}
    if not accused or not 0 < len(never) * 2 < len(ranks) + len(never):
        return cause  # if half the world shows no sign of life, the collection failed
    named = cause.accusing(tuple(sorted(never)), cause.confidence)
    untold = f"what {rank_s(accused)} issued is not on record"
    return replace(named, verdict=Verdict.RANK_LOST, unknowns=()).doubted(untold)


def or_lost(context: Context, cause: Cause) -> Cause:
    """A device that alone cannot finish what several have, beside a member that left nothing.

    Either that device is stuck, or the member has ended since and passes nothing on to it. A device
    that never began needs nothing passed on: no other member explains that.
    """
    places = context.waits.at(cause.places)
    if any(place.not_begun for place in places):
        return cause
    members = {rank for place in places for rank in place.members}
    lost = tuple(r for r in context.gaps if r in members and r not in context.unreadable)
    if not lost or not cause.culprits or cause.verdict is not Verdict.STUCK_COLLECTIVE:
        return cause
    stuck = rank_s(cause.culprits)
    words = Words(
        f"{capital(stuck)} cannot finish {title_of(context, places[0])}, which has completed on "
        f"peers, and {rank_s(lost)}, due there as well, left nothing",
        f"either the device of {stuck}, or the link to it, is stuck, or nothing comes from "
        f"{rank_s(lost)} any more",
        f"look for the process and the host of {rank_s(lost)} first (its log, the kernel's), then "
        f"at the device of {stuck}",
    )
    both = tuple(sorted((*cause.culprits, *lost)))
    return replace(cause.accusing(both, Confidence.AMBIGUOUS), words=words)
