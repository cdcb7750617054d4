"""Ranks whose places in the job contradict each other: they never get to know each other.

A mistake of the launch, on record from the first moment on: it needs neither a timeout nor anybody
who waits, and whatever the ranks fail in afterwards is its consequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.words.phrases import capital, rank_s
from hangscope.trace import formats
from hangscope.trace.attempts.twins import doubled
from hangscope.trace.facts import tcp_address
from hangscope.trace.model import NONE, Flag, State, flagged

_SHOWN_PLACES = 4
_OWN_WORD = (formats.RING, formats.JOURNAL, *formats.DUMPS)
"""Kinds of sources that tell what a rank was told, rather than what a reader concluded."""


def different_worlds(context: Context, ranks: Iterable[int], cause: Cause) -> None:
    """Make ``cause`` one of places that contradict each other, if those of ``ranks`` do.

    Their sizes may differ, a rank may lie outside of its own world, two processes be one rank, or
    ranks wait for the others at different addresses.
    """
    ranks = sorted(ranks)
    for contradiction in (_sizes, _outside, _twice, _apart):
        if contradiction(context, ranks, cause):
            return


def _sizes(context: Context, ranks: Sequence[int], cause: Cause) -> bool:
    worlds: dict[int, list[int]] = defaultdict(list)
    for rank, size in _told(context, ranks).items():
        worlds[size].append(rank)
    if len(worlds) < 2:
        return False
    most = max(len(told) for told in worlds.values())
    usual = [told for told in worlds.values() if len(told) == most]
    decided = len(usual) == 1
    culprits = [r for told in worlds.values() if not decided or told is not usual[0] for r in told]
    conflict = " and ".join(
        f"{rank_s(told)} expect{'s' if len(told) == 1 else ''} {size} ranks"
        for size, told in sorted(worlds.items(), key=lambda item: len(item[1]))
    )
    _contradict(
        cause,
        culprits,
        conflict,
        f"The ranks do not agree how many they are: {conflict}",
        "ranks that expect different numbers of ranks never meet in init_process_group, or fail in "
        "their first collective",
        decided=decided,
    )
    return True


def _told(context: Context, ranks: Iterable[int]) -> dict[int, int]:
    """How many ranks there are, as each rank was told.

    What the job itself has said counts before what its launcher's variables were: a program may
    change those, and one that has not come so far may yet do so.
    """
    known = {rank: context.trace.ranks[rank] for rank in ranks if rank in context.trace.ranks}
    told = {rank: facts for rank, facts in known.items() if facts.world_size}
    said = {rank: facts for rank, facts in told.items() if facts.declared is not False}
    return {rank: facts.world_size or 0 for rank, facts in (said or told).items()}


def _outside(context: Context, ranks: Sequence[int], cause: Cause) -> bool:
    worlds = _told(context, ranks)
    outside = [rank for rank, size in worlds.items() if rank >= size]
    if not outside:
        return False
    size = worlds[outside[0]]
    conflict = f"there {'is' if len(outside) == 1 else 'are'} no {rank_s(outside)} of {size}"
    _contradict(
        cause,
        outside,
        conflict,
        f"{capital(conflict)} ranks: they are numbered from 0 to {size - 1}",
        f"{rank_s(outside)} cannot take part, and whoever should have had a smaller number is "
        "waited for in vain",
    )
    return True


def _twice(context: Context, ranks: Sequence[int], cause: Cause) -> bool:
    twice = doubled(context.trace)
    if not twice:
        return False
    absent = context.trace.missing_ranks
    spelled = "; ".join(text.partition(";")[0] for _, text in sorted(twice.items()))
    nobody = f", and nobody is {rank_s(absent)}" if 0 < len(absent) <= len(twice) else ""
    _contradict(
        cause,
        sorted(twice),
        spelled,
        f"{capital(spelled)}{nobody}",
        "what is meant for a rank reaches one of its processes, and the other is waited for, or "
        "waits, in vain",
        decided=len(twice) * 2 <= (context.trace.world_size or 0),
    )
    return True


def _apart(context: Context, ranks: Sequence[int], cause: Cause) -> bool:
    where: dict[str, list[int]] = defaultdict(list)
    names: dict[str, str] = {}
    known = [context.trace.ranks[rank] for rank in ranks if rank in context.trace.ranks]
    home = known[0].host if known else None  # the lowest rank's: there the store should be
    on_own_host = False
    for facts in known:
        if told := facts.rendezvous:
            key, name = _meeting(told, facts.rank), told
            if facts.host != home and is_loopback(told):
                key, name = f"{key} of {facts.host}", f"{told} of host {facts.host}"
                on_own_host = True
            names.setdefault(key, name)
            where[key].append(facts.rank)
    if len(where) < 2:
        return False
    most = max(len(here) for here in where.values())
    usual = [here for here in where.values() if len(here) == most]
    decided = len(usual) == 1
    shown = sorted(where.items(), key=lambda item: (len(item[1]), item[1]))[:_SHOWN_PLACES]
    conflict = " and ".join(f"{rank_s(here)} at {names[key]}" for key, here in shown)
    _contradict(
        cause,
        [r for here in where.values() if not decided or here is not usual[0] for r in here],
        conflict,
        f"The ranks wait for each other in different places: {conflict}",
        "init_process_group meets the other ranks in a store, and these are different stores",
        decided=decided,
    )
    if any("://" in name and not name.startswith("tcp") for name in names.values()):
        cause.doubt("one file may have several names")
    if on_own_host:
        cause.doubt("whether hosts of other names are this one: containers may share an address")
    return True


def is_loopback(meeting: str) -> bool:
    """Whether an address reaches no other host: ``tcp://localhost:29500``, ``tcp://127.0.0.1:1``."""
    host, _ = tcp_address(meeting) or ("", "")
    return host in ("localhost", "::1") or host.startswith("127.")


def note_loopback(context: Context, cause: Cause) -> None:
    """Say so where ranks wait at an address of their own host for a rank 0 that is not on it.

    Rank 0 hosts the store. Which ranks a host has is told by the numbers that they have on it.
    """
    if all(context.waits.places[i].phase != INIT for i in cause.places) or cause.conflict:
        return
    ranks = context.trace.ranks
    waiters = sorted({w for i in cause.places for w in context.waits.places[i].waiters})
    if 0 in ranks or not waiters:
        return
    facts = [ranks[r] for r in waiters]
    elsewhere = all(f.local_rank is not None and 0 <= f.local_rank < f.rank for f in facts)
    meetings = sorted({f.rendezvous or "" for f in facts})
    if elsewhere and all(map(is_loopback, meetings)):
        cause.evidence.append(
            f"{rank_s(waiters)} meet the others at {meetings[0]}, which is an address of their own "
            "host, and rank 0 seems to be on another one: MASTER_ADDR must be that host's"
        )


def _meeting(told: str, rank: int) -> str:
    """What must be the same: hosts have many names, ports have one."""
    if address := tcp_address(told):
        return f"port {address[1]}"
    return told if "://" in told else f"{told} of rank {rank}"


def _contradict(
    cause: Cause,
    culprits: Iterable[int],
    conflict: str,
    summary: str,
    why: str,
    *,
    decided: bool = True,
) -> None:
    cause.verdict = Verdict.ARGUMENT_MISMATCH
    cause.culprits = tuple(sorted(culprits))
    cause.confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
    cause.conflict = conflict
    cause.words = Words(summary, why)


def world_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Places that contradict each other, where no place of the graph has shown it already.

    Only a job in which no collective was ever finished is sure to be one that never met.
    """
    trace = context.trace
    if any(c.conflict for c in causes) or not trace.ranks:
        return []
    if any(s.format not in _OWN_WORD for s in trace.sources):
        return []
    pairs = flagged(trace.records["flags"], Flag.P2P)
    if ((trace.records["state"] == int(State.COMPLETED)) & ~pairs).any():
        return []
    if all(facts.finalized for facts in trace.ranks.values()):
        return []
    cause = Cause(Verdict.INCONCLUSIVE, ())
    different_worlds(context, sorted(trace.ranks), cause)
    if cause.verdict is Verdict.INCONCLUSIVE:
        return []
    if len(trace.missing_ranks) > len(doubled(trace)) and cause.confidence is Confidence.CERTAIN:
        cause.confidence = Confidence.LIKELY
    context.waits.places.append(
        Place(NONE, NONE, (), members=tuple(sorted(trace.ranks)), phase=INIT)
    )
    cause.places = [len(context.waits.places) - 1]
    cause.victims = set(trace.ranks) - set(cause.culprits)
    return [cause]
