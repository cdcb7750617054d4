"""Interprets statements of a log that need other lines to be understood.

A single line seldom names the missing rank: for whom a barrier, a store or an address wait was
follows from the lines of all ranks. Some statements count for less in context, such as an exception
raised while another was handled, or a rank that printed only half of what its peers did.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import LoggedException, RankNotes
from hangscope.trace.job_log.rows.gloo import is_wait_failure
from hangscope.trace.model import Claim

_OF_THE_CALLER = frozenset(
    {"ValueError", "TypeError", "AttributeError", "KeyError", "IndexError", "AssertionError"}
    | {"PicklingError", "UnpicklingError", "OSError", "EOFError", "MemoryError", "RecursionError"}
)
"""Exceptions that torch.distributed calls raise before they communicate."""
_REFUSED = re.compile(
    r"ProcessGroup\w*::\w+: |^(?:invalid|incorrect|tensors? (?:must|should|list))|"
    r"(?:must|should) (?:be|have|match)|pickle",
    re.IGNORECASE,
)
_LARGEST = 1 << 14
_OWN_FAILURES = ("device_error", "oom", "shared_device")
_GRACE_NS = 20 * 10**9
"""For this long after the first rank gives up, others are busy giving up, too."""


def resolve_exception_chains(evidence: Evidence) -> None:
    """Choose which exception of each rank counts if one was raised while another was handled.

    A clean-up that communicates (a barrier in ``finally``) makes all ranks fail in that barrier. If
    exactly one rank's first exception did not come from communication, the first exceptions of all
    ranks count. So does the first failed wait on a rank: the job stood there, not where its
    handlers waited.
    """
    ends = {r: n.exceptions[-1] for r, n in evidence.ranks.items() if n.exceptions}
    first = {r: t.during or t for r, t in ends.items()}
    own = [r for r, t in first.items() if not in_communication(t)]
    cleaned_up = len(own) == 1 and ends[own[0]].during and in_communication(ends[own[0]])
    if cleaned_up and len(first) > 2 and first[own[0]].frames:
        for rank, trouble in first.items():
            trouble.uncaught = trouble.chained = True
            evidence.ranks[rank].exceptions = [trouble]
        return
    for rank, trouble in first.items():
        if trouble is not ends[rank] and in_communication(trouble):
            trouble.uncaught = trouble.chained = True
            evidence.ranks[rank].exceptions[-1] = trouble


def in_communication(trouble: LoggedException) -> bool:
    """Whether an exception came from waiting for others; refused arguments are no wait."""
    if is_wait_failure(trouble.message):  # the backward pass has no frame of torch.distributed
        return True
    if not any(f.filename.endswith("distributed_c10d.py") for f in trouble.frames):
        return False
    kind = trouble.type_name.rpartition(".")[2]
    return kind not in _OF_THE_CALLER and not _REFUSED.search(trouble.message)


def resolve_barriers(evidence: Evidence) -> None:
    """Find whom a monitored barrier waited for if no line names them.

    Rank 0 coordinates: either it lists who came, or it did not come itself. A rank that waited in a
    smaller group instead is not named: one of those who came may be a member that skipped that.
    """
    for place, (claim, group) in enumerate(evidence.claims):
        if claim.kind == "monitored_barrier" and claim.accused:
            late = tuple(r for r in claim.accused if not _waits_in_a_group(evidence, r))
            evidence.claims[place] = (replace(claim, accused=late), group)
    said = [
        (place, claim)
        for place, (claim, _) in enumerate(evidence.claims)
        if claim.kind == "monitored_barrier"
    ]
    if not said or any(claim.accused or claim.details.get("places") for _, claim in said):
        return
    listed = [(place, c) for place, c in said if "processed" in c.details]
    came = {rank for _, c in said for rank in (*c.details.get("processed", ()), c.reporter)}
    accused: tuple[int, ...] = ()
    if any(c.details["processed"] for _, c in listed) and evidence.world_size:
        accused = tuple(r for r in range(1, evidence.world_size) if r not in came)
    elif not listed and 0 not in evidence.ranks:
        others = range(1, max(evidence.world_size or 0, *(r + 1 for r in evidence.ranks), 3))
        accused = (0,) if came >= set(others) else ()
    if accused:
        place, claim = (listed or said)[-1]
        group = evidence.claims[place][1]
        evidence.claims[place] = (replace(claim, accused=accused, certain=bool(listed)), group)


def _waits_in_a_group(evidence: Evidence, rank: int) -> bool:
    """Whether a rank's last exception shows that it waited in a call that was passed a group.

    It did not come because of a member of that group, which may be one of those that did.
    """
    notes = evidence.ranks.get(rank)
    last = notes.exceptions[-1] if notes is not None and notes.exceptions else None
    return last is not None and last.in_group and in_communication(last)


def resolve_addresses(evidence: Evidence) -> None:
    """A rank whose address in the default group was waited for in vain never came there.

    An address beyond the world is waited for by a rank with another world size. Rank 0 hosts the
    store: if that was itself waiting for clients, rank 0's address arrived no later than theirs.
    The same applies to a silent rank that has not published its NCCL id.
    """
    world = evidence.world_size or max(evidence.ranks, default=-1) + 1
    served = any(0 < c.details.get("joined", 0) < _expected(c) for c, _ in evidence.claims)
    for index, (claim, group) in enumerate(evidence.claims):
        absent = claim.details.get("waits_for_address_of", _silent_first(claim, evidence))
        if isinstance(absent, int) and absent < world and not (served and absent == 0):
            accusing = replace(claim, kind="missing_ranks", accused=(absent,), certain=True)
            evidence.claims[index] = (accusing, group)


def _silent_first(claim: Claim, evidence: Evidence) -> int | None:
    """The silent rank whose NCCL id a member of its group waits for, if its rank is known.

    Groups list their members in ascending order: if one rank equals its group rank, so do all
    before it. Output of a single rank says nothing about the others.
    """
    first, place = claim.details.get("waits_for_group_rank"), claim.details.get("place")
    if not (isinstance(first, int) and isinstance(place, int)) or claim.reporter != place:
        return None
    silent = first < place and first not in evidence.ranks and len(evidence.ranks) > 1
    return first if silent else None


_TRAPPED = re.compile(r"CUDA error: (?:unspecified launch failure|trap|an illegal instruction)")
_IN_A_KERNEL = "a kernel ended itself because it had waited too long for a peer"


def resolve_traps(evidence: Evidence) -> None:
    """Reclassify the launch failures that CUDA reports after a kernel has given up waiting.

    Such a kernel ends itself with a trap, which is a fault of neither the device nor the rank.
    """
    if not evidence.trapped:
        return
    for notes in evidence.ranks.values():
        for trouble in notes.exceptions:
            if _TRAPPED.search(trouble.message):
                trouble.message = f"{trouble.message.partition(chr(10))[0]} ({_IN_A_KERNEL})"
    for place, (claim, group) in enumerate(evidence.claims):
        if claim.kind == "device_error" and _TRAPPED.search(claim.text):
            timeout = replace(claim, kind="timeout", accused=(), certain=False)
            evidence.claims[place] = (timeout, group)


def resolve_store_barrier(evidence: Evidence) -> None:
    """Find the ranks that did not come to the store's barrier at which a log ends."""
    if evidence.meeting is None:
        return
    joined, world, came = evidence.meeting.joined, evidence.meeting.world, evidence.meeting.said_by
    absent = tuple(sorted(set(range(world)) - came)) if world <= _LARGEST else ()
    if len(came) != joined or len(absent) * 2 >= world:
        return
    for place, (claim, group) in enumerate(evidence.claims):
        if claim.kind == "rendezvous" and claim.details.get("clients") == world:
            not_come = ", ".join(map(str, absent[:20]))
            words = f"{joined} of {world} ranks came to the barrier of a store, not {not_come}"
            accusing = replace(claim, accused=absent, certain=len(absent) == 1, reporter=None)
            evidence.claims[place] = (replace(accusing, text=words), group)


def _expected(claim: Claim) -> int:
    """How many clients a store waited for; 0 for other statements."""
    size = claim.details.get("clients")
    return size if isinstance(size, int) else 0


def resolve_partly_recorded(evidence: Evidence) -> None:
    """Decide which ranks the log covers only partially (`RankNotes.partly_recorded`).

    A rank accused of a failure of its own is not one of them: it did not merely wait. If some ranks
    do not appear at all, the log is an excerpt. Then ranks that are merely mentioned are partially
    covered as well, unless many more ranks have said that they gave up waiting.
    """
    own = {r for c, _ in evidence.claims if c.kind in _OWN_FAILURES for r in c.accused}
    for rank in own & evidence.ranks.keys():
        evidence.ranks[rank].partly_recorded = False
    gave_up = sum(any(o.timed_out for o in n.operations) for n in evidence.ranks.values())
    mute = [n for n in evidence.ranks.values() if not n.tells()]
    world = evidence.world_at_least
    if gave_up and gave_up <= 2 * len(mute) and world > len(evidence.ranks):
        for notes in mute:
            notes.partly_recorded = True


def resolve_stuck_watchdogs(evidence: Evidence) -> None:
    """A watchdog that got stuck after others had given up got stuck in giving up.

    One that was stuck before shows a process held by its own device or interpreter.
    """
    given_up = [o.at_ns for n in evidence.ranks.values() for o in n.operations if o.timed_out]
    first = min(given_up, default=None)
    for claim, _ in evidence.claims:
        if first is None or claim.reporter is None or not claim.details.get("watchdog_stuck"):
            continue
        since = claim.at_ns - int(claim.details.get("stuck_for_s", 0)) * 10**9
        if not (claim.at_ns and first) or since >= first - _GRACE_NS:
            evidence.of(claim.reporter).partly_recorded = True


def _has_a_hole(notes: RankNotes) -> bool:
    """Whether the overdue collectives under one bare number are from several groups: watchdogs of
    those versions print all overdue work of a group, without gaps.
    """
    seqs = {
        o.seq
        for o in notes.operations
        if o.bare and o.seq and not operations.is_p2p(o.signature.op)
    }
    return bool(seqs) and max(seqs) - min(seqs) >= len(seqs)


def resolve_shared_places(evidence: Evidence) -> None:
    """If two processes used the same number for themselves, such numbers are not ranks.

    Then nothing shows which process is which rank; only the fact that they waited is left.
    """
    if not (evidence.shared_places or any(map(_has_a_hole, evidence.ranks.values()))):
        return
    for rank, notes in list(evidence.ranks.items()):
        bare = [o for o in notes.operations if o.bare]
        for told in bare:
            words = Claim("timeout", seq=told.seq, op=told.signature.op, text=told.text)
            words = replace(words, at_ns=told.at_ns, certain=False)
            evidence.claims.append((words, None))
        notes.operations = [o for o in notes.operations if not o.bare]
        known = (notes.pid, notes.host, notes.local_rank, notes.exit_code, notes.exit_signal)
        if bare and not (notes.operations or notes.exceptions or notes.counters or any(known)):
            del evidence.ranks[rank]
