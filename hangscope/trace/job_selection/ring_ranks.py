"""Which rank each process of a job is, where some have not said it yet.

A ring begins with what the launcher's variables say. Programs may use other numbers, and tell them
with ``init_process_group``; until then a process only seems to be a rank, and another one that has
told it that it is that rank knows better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hangscope.trace import formats
from hangscope.trace.facts import tcp_address
from hangscope.trace.job_selection.duplicate_ranks import are_together
from hangscope.trace.job_selection.incarnations import Start
from hangscope.trace.model import NONE, Fragment, Records


@dataclass(frozen=True, slots=True)
class Presence:
    """One ring: what it says of its process."""

    start: Start
    """With the rank that stands in the ring."""
    parent: int
    """Process id of the parent, on the same host."""
    world_size: int
    declared: bool
    """Whether the job itself has said that rank."""
    over: bool = False
    """Whether it has ended in order."""
    met: bool = False
    """Whether it has met the others: ``init_process_group`` has returned."""
    again: bool = False
    """Whether it has been in another world before, and has called ``init_process_group`` again."""


def ranks_of(
    present: Sequence[Presence], living: Iterable[tuple[str, int]] = ()
) -> list[int | None]:
    """The rank of each ring; None for a process that is none.

    A process whose child has declared a rank, and that has declared none, only starts ranks. A rank
    that only the launcher's variables speak of is not believed where another process of the same
    time has declared it. Where as many numbers are free as processes are left, they are theirs;
    else nobody knows which rank they are, if any.

    Parameters
    ----------
    present:
        All rings of one run and attempt.
    living:
        Processes (machine, process id) that are known to live just now.
    """
    ranks: list[int | None] = [one.start.rank for one in present]
    job = world_followed(present, living)
    if job:
        return _of_world(present, job)
    if len({one.declared for one in present}) <= 1:
        return ranks
    parents = {(one.start.process[0], one.parent) for one in present if one.declared}
    for place, one in enumerate(present):
        if not one.declared and one.start.process in parents:
            ranks[place] = None
    refuted = _refuted(present, ranks, set(living))
    taken = {rank for place, rank in enumerate(ranks) if place not in refuted}
    world = max(one.world_size for one in present if one.declared)
    free: list[int] = []
    if refuted and world - len(taken) <= len(refuted):
        free = sorted(set(range(world)) - taken)
    for place in refuted:
        ranks[place] = None
    if len(free) == len(refuted):
        left = sorted(refuted, key=lambda place: present[place].start.rank)
        for place, rank in zip(left, free, strict=True):
            ranks[place] = rank
    return ranks


def world_followed(
    present: Sequence[Presence], living: Iterable[tuple[str, int]] = ()
) -> list[int]:
    """Places of the rings of the job that is followed, where one launcher has started several.

    Each of them meets at an address of its own, and numbers its ranks from 0 on. They are told from
    ranks that were given wrong addresses by having met, or by their sizes: all of them together
    have no more ranks than there are processes. One that has not ended in order is followed before
    one that has, then one whose ranks no other's have started (a checkpoint is written by helpers
    that make a world of their own), one for which ranks are missing, the largest, the newest.

    Parameters
    ----------
    present:
        All rings of one run and attempt.
    living:
        Processes (machine, process id) that are known to live just now.
    """
    worlds: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(present):
        if one.declared and one.start.meets_at:
            worlds[one.start.meets_at].append(place)
    worlds = _by_any_name(present, worlds)
    if len(worlds) < 2:
        return []
    alive = set(living)
    newest = max(worlds.values(), key=lambda places: max(map(_created(present), places)))
    together = [w for w in worlds.values() if _at_once(present, [*w, *newest], alive)]
    processes = {one.start.process for one in present}
    helpers = [w for w in together if _are_helpers([present[p] for p in w], processes)]
    own = [w for w in together if w not in helpers] or together
    sizes = [present[places[0]].world_size for places in own]
    alike = all(
        {present[p].world_size for p in places} == {size}
        and len({present[p].start.rank for p in places}) == len(places)
        for places, size in zip(own, sizes, strict=True)
    )
    have_met = all(present[p].met for places in own for p in places)
    if any(present[p].again for places in together for p in places):
        return []  # one job that meets anew, and not all of it
    if len(together) < 2 or not alike or (sum(sizes) > len(processes) and not have_met):
        return []
    return max(
        together,
        key=lambda places: (
            not all(present[p].over for p in places),
            places not in helpers,
            len(places) < present[places[0]].world_size,
            present[places[0]].world_size,
            max(map(_created(present), places)),
        ),
    )


def _are_helpers(ranks: Iterable[Presence], processes: Collection[tuple[str, int]]) -> bool:
    """Whether some of these processes, which have a ring each, have started all of the ranks."""
    return all(one.parent and (one.start.process[0], one.parent) in processes for one in ranks)


def _by_any_name(
    present: Sequence[Presence], worlds: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """The worlds, without those that are only another name of the host at which one meets.

    Ports have one name. Ranks that are strangers to a world have a rank 0 of their own.
    """
    found: dict[str, list[int]] = {}
    for meeting, places in sorted(worlds.items(), key=lambda item: (-len(item[1]), item[0])):
        for other, known in found.items():
            if _is_part(present, known, places) and _port(meeting) == _port(other) != "":
                known.extend(places)
                break
        else:
            found[meeting] = list(places)
    return found


def _is_part(present: Sequence[Presence], known: list[int], places: list[int]) -> bool:
    taken = {present[p].start.rank for p in known}
    sizes = {present[p].world_size for p in (*known, *places)}
    return len(sizes) == 1 and taken.isdisjoint(present[p].start.rank for p in places)


def _port(meeting: str) -> str:
    return (tcp_address(meeting) or ("", ""))[1]


def _of_world(present: Sequence[Presence], job: Sequence[int]) -> list[int | None]:
    """Ranks of the declared rings of one job; those that are left over are its free ranks."""
    ranks: list[int | None] = [None] * len(present)
    for place in job:
        ranks[place] = present[place].start.rank
    free = sorted(set(range(present[job[0]].world_size)) - set(ranks))
    left = sorted(
        (p for p, one in enumerate(present) if not one.declared),
        key=lambda p: present[p].start.rank,
    )
    for place, rank in zip(left, free, strict=True) if len(left) == len(free) else ():
        ranks[place] = rank
    return ranks


def other_world(meeting: str, ranks: int, helpers: str = "") -> str:
    """What is said of a job that is not followed.

    Parameters
    ----------
    meeting:
        Where its ranks meet.
    ranks:
        How many they are.
    helpers:
        The name of a ring of theirs, where ranks of the job that is followed have started them.
    """
    if helpers:
        return (
            f"also holds {ranks} process{'es' if ranks > 1 else ''} that the ranks have started, "
            f"which meet at {meeting}; ignored: `hangscope analyze` over their rings alone "
            f"({helpers}, ...) judges them"
        )
    return (
        f"also holds another job of the same launch, {ranks} rank{'s' if ranks > 1 else ''} that "
        f"meet at {meeting}; ignored: give each job a HANGSCOPE_DIR of its own"
    )


def _created(present: Sequence[Presence]) -> Callable[[int], int]:
    return lambda place: present[place].start.created_ns


def _at_once(
    present: Sequence[Presence], places: Iterable[int], living: set[tuple[str, int]]
) -> bool:
    """Whether there was a moment at which all these processes lived."""
    starts = [present[place].start for place in places]
    ends = [s.last_sign_ns for s in starts if s.process not in living]
    return max(s.created_ns for s in starts) < min(ends, default=1 << 63)


def _refuted(
    present: Sequence[Presence], ranks: Sequence[int | None], living: set[tuple[str, int]]
) -> set[int]:
    """Places of rings whose rank another process of the same time has declared."""
    declared: dict[int, list[Start]] = defaultdict(list)
    for one in present:
        if one.declared:
            declared[one.start.rank].append(one.start)
    return {
        place
        for place, one in enumerate(present)
        if ranks[place] is not None
        and not one.declared
        and any(
            other.process != one.start.process and are_together(other, one.start, living)
            for other in declared[one.start.rank]
        )
    }


def with_ranks_of_rings(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments, each under the rank that its process is; those of no rank are left out.

    Journals name processes as their monitor knew them: their ranks are those of the rings.
    """
    out: list[Fragment | None] = list(fragments)
    lives: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    for place, fragment in enumerate(fragments):
        if fragment.source.format == formats.RING:
            lives[fragment.facts.run_id, fragment.facts.attempt].append(place)
    known: dict[tuple[str, int], int | None] = {}
    for places in lives.values():
        rings = [fragments[place] for place in places]
        for place, rank in zip(places, _ranks_of(rings), strict=True):
            facts = fragments[place].facts
            known[facts.process] = rank
            out[place] = None if rank is None else as_rank(fragments[place], rank)
    return [
        found
        for fragment in out
        if fragment is not None and (found := with_rank_of_process(fragment, known)) is not None
    ]


def _ranks_of(rings: Sequence[Fragment]) -> list[int | None]:
    said = {bool(ring.facts.declared) for ring in rings}
    if len(said) <= 1 and len({ring.facts.rendezvous for ring in rings}) <= 1:
        return [ring.facts.rank for ring in rings]  # nobody knows better than anybody else
    present = [
        Presence(
            start_of(ring),
            ring.facts.parent_pid or 0,
            ring.facts.world_size or 0,
            bool(ring.facts.declared),
            ring.facts.exit is not None and ring.facts.exit.kind == "clean",
            bool(ring.facts.initialized or ring.facts.finalized),
            _meets_again(ring),
        )
        for ring in rings
    ]
    return ranks_of(present, [start_of(ring).process for ring in rings if ring.facts.alive])


def _meets_again(ring: Fragment) -> bool:
    """Whether a process has left a world and calls ``init_process_group`` again, or has been in a
    group that is larger than its world."""
    facts = ring.facts
    calling = any(p.name == "init_process_group" for p in facts.phases[-1:])
    larger = any(len(g.ranks) > (facts.world_size or len(g.ranks)) for g in ring.groups)
    return larger or bool(facts.finalized and calling)


def with_rank_of_process(
    fragment: Fragment, ranks: Mapping[tuple[str, int], int | None]
) -> Fragment | None:
    """A journal's fragment under the rank that its process (machine, process id) is by its ring.

    None where that process is no rank.
    """
    facts = fragment.facts
    if fragment.source.format != formats.JOURNAL or not facts.pid or facts.rank == NONE:
        return fragment
    rank = ranks.get(facts.process, facts.rank)
    return None if rank is None else as_rank(fragment, rank)


def as_rank(fragment: Fragment, rank: int) -> Fragment:
    """The fragment of one process as that of another rank; its rows are changed where they lie."""
    if fragment.facts.rank == rank:
        return fragment
    fragment.records["rank"] = rank
    return replace(
        fragment,
        facts=replace(fragment.facts, rank=rank),
        source=replace(fragment.source, rank=rank),
        members=_of_rank(fragment.members, rank),
        implied=None if fragment.implied is None else _of_rank(fragment.implied, rank),
    )


def _of_rank(members: Records, rank: int) -> Records:
    copy: Records = np.array(members)
    copy["rank"] = rank
    return copy


def start_of(fragment: Fragment) -> Start:
    """When a ring's process began, and when it was last heard of."""
    facts = fragment.facts
    return Start(
        facts.rank,
        facts.started_ns,
        facts.process,
        last_sign(fragment) if not facts.alive else facts.observed_ns,
        facts.rendezvous or "",
    )


def last_sign(fragment: Fragment) -> int:
    """The latest moment (ns since the epoch) of which the fragment speaks."""
    facts = fragment.facts
    latest = facts.heartbeat_ns
    if facts.exit is not None:
        latest = max(latest, facts.exit.at_ns)
    if len(fragment.records):
        latest = max(latest, int(fragment.records["created_ns"].max()))
    if len(fragment.members):
        latest = max(latest, int(fragment.members["enqueued_ns"].max()))
    return latest or facts.observed_ns
