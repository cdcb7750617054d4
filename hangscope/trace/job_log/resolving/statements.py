"""Interprets statements of a log that need other lines to be understood.

A single line seldom names the missing rank: for whom a barrier, a store or an address wait was
follows from the lines of all ranks. Some statements count for less in context, such as those of a
rank that printed only half of what its peers did.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import RankNotes
from hangscope.trace.job_log.resolving.exceptions import in_communication
from hangscope.trace.job_log.rows.kernel_timeouts import KernelWaits
from hangscope.trace.job_log.rows.overdue import SharedPlaces
from hangscope.trace.job_log.rows.rendezvous import StoreBarrier
from hangscope.trace.model import Claim

_LARGEST = 1 << 14
_OWN_FAILURES = ("device_error", "oom", "shared_device")
_GRACE_NS = 20 * 10**9
"""For this long after the first rank gives up, others are busy giving up, too."""
_TRAPPED = re.compile(r"CUDA error: (?:unspecified launch failure|trap|an illegal instruction)")
_IN_A_KERNEL = "a kernel ended itself because it had waited too long for a peer"


def resolve_traps(attempt: Attempt) -> None:
    """Reclassify the launch failures that CUDA reports after a kernel has given up waiting.

    Such a kernel ends itself with a trap, which is a fault of neither the device nor the rank.
    """
    if not attempt.part(KernelWaits).trapped:
        return
    for trouble in [t for notes in attempt.ranks.values() for t in notes.exceptions]:
        if _TRAPPED.search(trouble.message):
            trouble.message = f"{trouble.message.partition(chr(10))[0]} ({_IN_A_KERNEL})"
    for said in attempt.stated:
        if said.claim.kind == "device_error" and _TRAPPED.search(said.claim.text):
            said.claim = replace(said.claim, kind="timeout", accused=(), certain=False)


def resolve_barriers(attempt: Attempt) -> None:
    """Find whom a monitored barrier waited for if no line names them.

    Rank 0 coordinates: either it lists who came, or it did not come itself. A rank that waited in a
    smaller group instead is not named: one of those who came may be a member that skipped that.
    """
    barriers = [said for said in attempt.stated if said.claim.kind == "monitored_barrier"]
    for said in barriers:
        late = tuple(r for r in said.claim.accused if not _waits_in_a_group(attempt, r))
        said.claim = replace(said.claim, accused=late)
    if any(said.claim.accused or said.claim.details.places for said in barriers):
        return
    listed = [said for said in barriers if said.claim.details.processed is not None]
    came = {s.claim.reporter for s in barriers}
    came |= {rank for s in listed for rank in s.claim.details.processed or ()}
    accused: tuple[int, ...] = ()
    if any(s.claim.details.processed for s in listed) and attempt.world_size:
        accused = tuple(r for r in range(1, attempt.world_size) if r not in came)
    elif barriers and not listed and 0 not in attempt.ranks:
        accused = (0,) if came >= set(range(1, max(attempt.world_at_least, 3))) else ()
    if accused:
        last = (listed or barriers)[-1]
        last.claim = replace(last.claim, accused=accused, certain=bool(listed))


def _waits_in_a_group(attempt: Attempt, rank: int) -> bool:
    """Whether a rank's last exception shows that it waited in a call that was passed a group.

    It did not come because of a member of that group, which may be one of those that did.
    """
    notes = attempt.ranks.get(rank)
    last = notes.exceptions[-1] if notes is not None and notes.exceptions else None
    return last is not None and last.in_group and in_communication(last)


def resolve_addresses(attempt: Attempt) -> None:
    """A rank whose address in the default group was waited for in vain never came there.

    An address beyond the world is waited for by a rank with another world size. Rank 0 hosts the
    store: if that was itself waiting for clients, rank 0's address arrived no later than theirs.
    The same applies to a silent rank that has not published its NCCL id.
    """
    world = attempt.world_size or max(attempt.ranks, default=-1) + 1
    details = [said.claim.details for said in attempt.stated]
    served = any(0 < d.joined < d.clients for d in details)
    for said in attempt.stated:
        absent = said.claim.details.waits_for_address_of
        if absent is None:
            absent = _silent_first(said.claim, attempt)
        if absent is not None and absent < world and not (served and absent == 0):
            kind = replace(said.claim, kind="missing_ranks")
            said.claim = replace(kind, accused=(absent,), certain=True)


def _silent_first(claim: Claim, attempt: Attempt) -> int | None:
    """The silent rank whose NCCL id a member of its group waits for, if its rank is known.

    Groups list their members in ascending order: if one rank equals its group rank, so do all
    before it. Output of a single rank says nothing about the others.
    """
    first, place = claim.details.waits_for_group_rank, claim.details.place
    if first is None or place is None or claim.reporter != place:
        return None
    silent = first < place and first not in attempt.ranks and len(attempt.ranks) > 1
    return first if silent else None


def resolve_store_barrier(attempt: Attempt) -> None:
    """Find the ranks that did not come to the store's barrier at which a log ends."""
    at = attempt.part(StoreBarrier)
    absent = tuple(sorted(set(range(at.world)) - at.said_by)) if at.world <= _LARGEST else ()
    if len(at.said_by) != at.joined or len(absent) * 2 >= at.world:
        return
    for said in attempt.stated:
        if said.claim.kind == "rendezvous" and said.claim.details.clients == at.world:
            not_come = ", ".join(map(str, absent[:20]))
            text = f"{at.joined} of {at.world} ranks came to the barrier of a store, not {not_come}"
            known = replace(said.claim, accused=absent, certain=len(absent) == 1)
            said.claim = replace(known, reporter=None, text=text)


def resolve_partly_recorded(attempt: Attempt) -> None:
    """Decide which ranks the log covers only partially (`RankNotes.partly_recorded`).

    A rank accused of a failure of its own is not one of them: it did not merely wait. If some ranks
    do not appear at all, the log is an excerpt. Then ranks that are merely mentioned are partially
    covered as well, unless many more ranks have said that they gave up waiting.
    """
    claims = [said.claim for said in attempt.stated]
    own = {r for c in claims if c.kind in _OWN_FAILURES for r in c.accused}
    for rank in own & attempt.ranks.keys():
        attempt.ranks[rank].partly_recorded = False
    gave_up = sum(bool(notes.overdue) for notes in attempt.ranks.values())
    mute = [notes for notes in attempt.ranks.values() if not notes.tells()]
    if gave_up and gave_up <= 2 * len(mute) and attempt.world_at_least > len(attempt.ranks):
        for notes in mute:
            notes.partly_recorded = True
    # A watchdog that got stuck after others had given up got stuck in giving up. One that was stuck
    # before shows a process held by its own device or interpreter.
    first = min((operation.at_ns for operation in attempt.overdue), default=None)
    for claim in claims:
        if first is None or claim.reporter is None or not claim.details.watchdog_stuck:
            continue
        since = claim.at_ns - int(claim.details.stuck_for_s) * 10**9
        if not (claim.at_ns and first) or since >= first - _GRACE_NS:
            attempt.of(claim.reporter).partly_recorded = True


def _has_a_hole(notes: RankNotes) -> bool:
    """Whether the overdue collectives under one bare number are from several groups: watchdogs of
    those versions print all overdue work of a group, without gaps.
    """
    bare = [o for o in notes.operations if o.bare and o.seq]
    seqs = {o.seq for o in bare if not operations.is_p2p(o.signature.op)}
    return bool(seqs) and max(seqs) - min(seqs) >= len(seqs)


def resolve_shared_places(attempt: Attempt) -> None:
    """If two processes used the same number for themselves, such numbers are not ranks.

    Then nothing shows which process is which rank; only the fact that they waited is left.
    """
    if not (attempt.part(SharedPlaces).seen or any(map(_has_a_hole, attempt.ranks.values()))):
        return
    for rank, notes in list(attempt.ranks.items()):
        bare = [o for o in notes.operations if o.bare]
        for told in bare:
            op = told.signature.op
            attempt.infer("timeout", told.text, told.at_ns, seq=told.seq, op=op)
        notes.operations = [o for o in notes.operations if not o.bare]
        known = (notes.pid, notes.host, notes.local_rank, notes.exit_code, notes.exit_signal)
        if bare and not (notes.operations or notes.exceptions or notes.counters or any(known)):
            del attempt.ranks[rank]
