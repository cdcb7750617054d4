"""Ranks with contradictory places in the job: their rendezvous can never succeed.

This is a launch mistake, on record from the first moment: it needs neither a timeout nor waiting
ranks, and whatever the ranks fail in afterwards is its consequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import of_text
from hangscope.diagnosis.wording.phrases import capital, rank_s
from hangscope.trace.facts import tcp_address
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks
from hangscope.trace.model import NONE, Flag, State, flagged

_SHOWN_PLACES = 4
"""Kinds of sources that state what a rank was told, rather than what a reader inferred."""


@dataclass(frozen=True, slots=True)
class _Contradiction:
    """Contradictory places in the job, and whose are wrong."""

    culprits: Iterable[int]
    conflict: str
    summary: str
    why: str
    decided: bool = True
    """Whether it is known who is wrong."""
    unknowns: tuple[str, ...] = ()


def world_conflict(context: Context, ranks: Iterable[int], cause: Cause) -> Cause:
    """``cause`` as one of contradictory places, if those of ``ranks`` are.

    World sizes may differ, a rank may be outside its own world, two processes may have the same
    rank, or ranks may wait for the others at different addresses.
    """
    ranks = sorted(ranks)
    for contradiction in (_sizes, _outside, _twice, _apart):
        found = contradiction(context, ranks)
        if found is not None:
            return replace(
                cause,
                verdict=Verdict.ARGUMENT_MISMATCH,
                culprits=tuple(sorted(found.culprits)),
                confidence=Confidence.CERTAIN if found.decided else Confidence.AMBIGUOUS,
                conflict=found.conflict,
                words=Words(found.summary, found.why),
            ).doubted(*found.unknowns)
    return cause


def _sizes(context: Context, ranks: Sequence[int]) -> _Contradiction | None:
    worlds: dict[int, list[int]] = defaultdict(list)
    for rank, size in _world_sizes(context, ranks).items():
        worlds[size].append(rank)
    if len(worlds) < 2:
        return None
    culprits, decided = _outvoted(worlds.values())
    conflict = " and ".join(
        f"{rank_s(side)} expect{'s' if len(side) == 1 else ''} {size} ranks"
        for size, side in sorted(worlds.items(), key=lambda item: len(item[1]))
    )
    return _Contradiction(
        culprits,
        conflict,
        f"The ranks disagree on the world size: {conflict}",
        "ranks that expect different numbers of ranks never meet in init_process_group, or fail in "
        "their first collective",
        decided=decided,
    )


def _outvoted(sides: Collection[list[int]]) -> tuple[list[int], bool]:
    """The ranks of all sides but the largest, and True; all ranks, and False, if none is."""
    most = max(map(len, sides))
    largest = [side for side in sides if len(side) == most]
    decided = len(largest) == 1
    return [r for side in sides if not decided or side is not largest[0] for r in side], decided


def _world_sizes(context: Context, ranks: Iterable[int]) -> dict[int, int]:
    """The world size as each rank was told.

    What the job itself passed takes precedence over its launcher's variables: a program may change
    those, and one that has not got that far may still do so.
    """
    known = {rank: context.trace.ranks[rank] for rank in ranks if rank in context.trace.ranks}
    stating = {rank: facts for rank, facts in known.items() if facts.world_size}
    declared = {rank: facts for rank, facts in stating.items() if facts.declared is not False}
    return {rank: facts.world_size or 0 for rank, facts in (declared or stating).items()}


def _outside(context: Context, ranks: Sequence[int]) -> _Contradiction | None:
    worlds = _world_sizes(context, ranks)
    outside = [rank for rank, size in worlds.items() if rank >= size]
    if not outside:
        return None
    size = worlds[outside[0]]
    conflict = f"there {'is' if len(outside) == 1 else 'are'} no {rank_s(outside)} of {size}"
    return _Contradiction(
        outside,
        conflict,
        f"{capital(conflict)} ranks: they are numbered from 0 to {size - 1}",
        f"{rank_s(outside)} cannot take part, and the others wait in vain for a rank that should "
        "have had a smaller number",
    )


def _twice(context: Context, ranks: Sequence[int]) -> _Contradiction | None:
    twice = duplicate_ranks(context.trace)
    if not twice:
        return None
    absent = context.trace.missing_ranks
    spelled = "; ".join(text.partition(";")[0] for _, text in sorted(twice.items()))
    nobody = f", and nobody is {rank_s(absent)}" if 0 < len(absent) <= len(twice) else ""
    return _Contradiction(
        sorted(twice),
        spelled,
        f"{capital(spelled)}{nobody}",
        "messages for a rank reach one of its processes, and the other one is waited for, or "
        "waits, in vain",
        decided=len(twice) * 2 <= (context.trace.world_size or 0),
    )


def _apart(context: Context, ranks: Sequence[int]) -> _Contradiction | None:
    where: dict[str, list[int]] = defaultdict(list)
    names: dict[str, str] = {}
    known = [context.trace.ranks[rank] for rank in ranks if rank in context.trace.ranks]
    home = known[0].host if known else None  # the lowest rank's, which should host the store
    on_own_host = False
    for facts in known:
        if address := facts.rendezvous:
            key, name = _rendezvous(address, facts.rank), address
            if facts.host != home and is_loopback(address):
                key, name = f"{key} of {facts.host}", f"{address} of host {facts.host}"
                on_own_host = True
            names.setdefault(key, name)
            where[key].append(facts.rank)
    if len(where) < 2:
        return None
    culprits, decided = _outvoted(where.values())
    shown = sorted(where.items(), key=lambda item: (len(item[1]), item[1]))[:_SHOWN_PLACES]
    unknowns = []
    if any("://" in name and not name.startswith("tcp") for name in names.values()):
        unknowns.append("one file may have several names")
    if on_own_host:
        unknowns.append(
            "whether hosts of other names are this one: containers may share an address"
        )
    conflict = " and ".join(f"{rank_s(here)} at {names[key]}" for key, here in shown)
    return _Contradiction(
        culprits,
        conflict,
        f"The ranks use different rendezvous addresses: {conflict}",
        "init_process_group meets the other ranks in a store, and these are different stores",
        decided=decided,
        unknowns=tuple(unknowns),
    )


def is_loopback(meeting: str) -> bool:
    """Whether an address reaches no other host: ``tcp://localhost:29500``, ``tcp://127.0.0.1:1``."""
    host, _ = tcp_address(meeting) or ("", "")
    return host in ("localhost", "::1") or host.startswith("127.")


def note_loopback(context: Context, cause: Cause) -> Cause:
    """Point out ranks that wait at a loopback address for a rank 0 on another host.

    Rank 0 hosts the store. Which ranks are on a host is shown by their local ranks.
    """
    if all(place.phase != INIT for place in context.waits.at(cause.places)) or cause.conflict:
        return cause
    ranks = context.trace.ranks
    waiters = sorted(context.waits.waiters_at(cause.places))
    if 0 in ranks or not waiters:
        return cause
    facts = [ranks[r] for r in waiters]
    elsewhere = all(f.local_rank is not None and 0 <= f.local_rank < f.rank for f in facts)
    meetings = sorted({f.rendezvous or "" for f in facts})
    if not elsewhere or not all(map(is_loopback, meetings)):
        return cause
    return cause.with_evidence(
        f"{rank_s(waiters)} meet the others at {meetings[0]}, which is an address of their own "
        "host, and rank 0 seems to be on another one: MASTER_ADDR must be that host's"
    )


def _rendezvous(told: str, rank: int) -> str:
    """The part that must be equal: hosts have many names, ports have one."""
    if address := tcp_address(told):
        return f"port {address[1]}"
    return told if "://" in told else f"{told} of rank {rank}"


def world_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Contradictory places that no place in the graph has shown already.

    Only a job that never finished any collective is certain never to have met.
    """
    trace = context.trace
    if any(c.conflict for c in causes) or not trace.ranks:
        return []
    if of_text(trace):
        return []  # what they print does not say what they were told themselves
    pairs = flagged(trace.records["flags"], Flag.P2P)
    if ((trace.records["state"] == int(State.COMPLETED)) & ~pairs).any():
        return []
    if all(facts.finalized for facts in trace.ranks.values()):
        return []
    cause = world_conflict(context, trace.ranks, Cause(Verdict.INCONCLUSIVE, ()))
    if cause.verdict is Verdict.INCONCLUSIVE:
        return []
    if len(trace.missing_ranks) > len(duplicate_ranks(trace)) and cause.is_certain:
        cause = replace(cause, confidence=Confidence.LIKELY)
    ranks = tuple(sorted(trace.ranks))
    place = context.waits.add(Place(NONE, NONE, (), members=ranks, phase=INIT))
    return [replace(cause, places=(place,)).with_victims(ranks)]
