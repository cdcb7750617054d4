"""Works out the rank of each process where some have not called ``init_process_group`` yet.

A ring first holds the rank from the launcher's environment variables. A program may use other
ranks, which it declares with ``init_process_group``. Until then a process's rank is provisional,
and a process that has declared the same rank takes precedence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hangscope.trace import formats
from hangscope.trace.facts import tcp_address
from hangscope.trace.job_selection.duplicate_ranks import overlap_in_time
from hangscope.trace.job_selection.incarnations import Lifetime
from hangscope.trace.model import NONE, Fragment, Records


@dataclass(frozen=True, slots=True)
class RingProcess:
    """What one ring says of its process."""

    start: Lifetime
    """With the rank stated in the ring."""
    parent: int
    """Process id of the parent, on the same host."""
    world_size: int
    declared: bool
    """Whether the job itself has stated that rank."""
    exited: bool = False
    """Whether it has exited cleanly."""
    initialized: bool = False
    """Whether ``init_process_group`` has returned."""
    reinitialized: bool = False
    """Whether it left an earlier world and has called ``init_process_group`` again."""


def assign_ranks(
    present: Sequence[RingProcess], living: Iterable[tuple[str, int]] = ()
) -> list[int | None]:
    """The rank of each ring; None for a process that is not a rank.

    A process that has declared no rank, but whose child has, is only a launcher. A rank that comes
    only from environment variables is rejected if another process of the same time has declared it.
    If there are as many free ranks as processes left over, those processes get them; otherwise
    their ranks are unknown, if they are ranks at all.

    Parameters
    ----------
    present:
        All rings of one run and attempt.
    living:
        Processes (machine, process id) known to be running now.
    """
    ranks: list[int | None] = [one.start.rank for one in present]
    job = select_world(present, living)
    if job:
        return _assign_in_world(present, job)
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


def select_world(
    present: Sequence[RingProcess], living: Iterable[tuple[str, int]] = ()
) -> list[int]:
    """Indexes of the rings of the job to follow, where one launch has started several jobs.

    Each job has its own rendezvous and numbers its ranks from 0. Separate jobs are distinguished
    from ranks that were given wrong addresses by having completed rendezvous, or by their sizes:
    together they need no more ranks than there are processes. Preferred are, in this order: a job
    that has not exited cleanly; one that was not started by another job's ranks (a checkpoint may
    be written by helpers that form their own world); one with missing ranks; the largest; the
    newest.

    Parameters
    ----------
    present:
        All rings of one run and attempt.
    living:
        Processes (machine, process id) known to be running now.
    """
    worlds: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(present):
        if one.declared and one.start.rendezvous:
            worlds[one.start.rendezvous].append(place)
    worlds = _merge_aliases(present, worlds)
    if len(worlds) < 2:
        return []
    alive = set(living)
    newest = max(worlds.values(), key=lambda places: max(map(_created(present), places)))
    together = [w for w in worlds.values() if _all_overlap(present, [*w, *newest], alive)]
    processes = {one.start.process for one in present}
    helpers = [w for w in together if _are_helpers([present[p] for p in w], processes)]
    own = [w for w in together if w not in helpers] or together
    sizes = [present[places[0]].world_size for places in own]
    alike = all(
        {present[p].world_size for p in places} == {size}
        and len({present[p].start.rank for p in places}) == len(places)
        for places, size in zip(own, sizes, strict=True)
    )
    have_met = all(present[p].initialized for places in own for p in places)
    if any(present[p].reinitialized for places in together for p in places):
        return []  # one job of which only a part has reinitialized
    if len(together) < 2 or not alike or (sum(sizes) > len(processes) and not have_met):
        return []
    return max(
        together,
        key=lambda places: (
            not all(present[p].exited for p in places),
            places not in helpers,
            len(places) < present[places[0]].world_size,
            present[places[0]].world_size,
            max(map(_created(present), places)),
        ),
    )


def _are_helpers(ranks: Iterable[RingProcess], processes: Collection[tuple[str, int]]) -> bool:
    """Whether all of these ranks were started by some of ``processes``, which have rings too."""
    return all(one.parent and (one.start.process[0], one.parent) in processes for one in ranks)


def _merge_aliases(
    present: Sequence[RingProcess], worlds: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """The worlds by rendezvous, merging those that name the same host differently.

    Aliases share the port. Ranks of a separate world have their own rank 0.
    """
    found: dict[str, list[int]] = {}
    for meeting, places in sorted(worlds.items(), key=lambda item: (-len(item[1]), item[0])):
        for other, known in found.items():
            if _may_be_one_world(present, known, places) and _port(meeting) == _port(other) != "":
                known.extend(places)
                break
        else:
            found[meeting] = list(places)
    return found


def _may_be_one_world(present: Sequence[RingProcess], known: list[int], places: list[int]) -> bool:
    taken = {present[p].start.rank for p in known}
    sizes = {present[p].world_size for p in (*known, *places)}
    return len(sizes) == 1 and taken.isdisjoint(present[p].start.rank for p in places)


def _port(meeting: str) -> str:
    return (tcp_address(meeting) or ("", ""))[1]


def _assign_in_world(present: Sequence[RingProcess], job: Sequence[int]) -> list[int | None]:
    """The declared ranks of one job; processes left over get its free ranks."""
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


def other_world_note(meeting: str, ranks: int, helpers: str = "") -> str:
    """The note on a job that is not followed.

    Parameters
    ----------
    meeting:
        Its rendezvous.
    ranks:
        How many ranks it has.
    helpers:
        The name of one of its rings, if ranks of the followed job have started it.
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


def _created(present: Sequence[RingProcess]) -> Callable[[int], int]:
    return lambda place: present[place].start.created_ns


def _all_overlap(
    present: Sequence[RingProcess], places: Iterable[int], living: set[tuple[str, int]]
) -> bool:
    """Whether there was a moment at which all these processes were alive."""
    starts = [present[place].start for place in places]
    ends = [s.last_seen_ns for s in starts if s.process not in living]
    return max(s.created_ns for s in starts) < min(ends, default=1 << 63)


def _refuted(
    present: Sequence[RingProcess], ranks: Sequence[int | None], living: set[tuple[str, int]]
) -> set[int]:
    """Indexes of rings whose rank another process of the same time has declared."""
    declared: dict[int, list[Lifetime]] = defaultdict(list)
    for one in present:
        if one.declared:
            declared[one.start.rank].append(one.start)
    return {
        place
        for place, one in enumerate(present)
        if ranks[place] is not None
        and not one.declared
        and any(
            other.process != one.start.process and overlap_in_time(other, one.start, living)
            for other in declared[one.start.rank]
        )
    }


def with_assigned_ranks(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments with their processes' assigned ranks; fragments of non-ranks are dropped.

    Journals use the ranks that their monitor knew; these are replaced by those of the rings.
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
            out[place] = None if rank is None else with_rank(fragments[place], rank)
    return [
        found
        for fragment in out
        if fragment is not None and (found := with_process_rank(fragment, known)) is not None
    ]


def _ranks_of(rings: Sequence[Fragment]) -> list[int | None]:
    said = {bool(ring.facts.declared) for ring in rings}
    if len(said) <= 1 and len({ring.facts.rendezvous for ring in rings}) <= 1:
        return [ring.facts.rank for ring in rings]  # no ring takes precedence over another
    present = [
        RingProcess(
            lifetime_of(ring),
            ring.facts.parent_pid or 0,
            ring.facts.world_size or 0,
            bool(ring.facts.declared),
            ring.facts.exit is not None and ring.facts.exit.kind == "clean",
            bool(ring.facts.initialized or ring.facts.finalized),
            _is_reinitialized(ring),
        )
        for ring in rings
    ]
    return assign_ranks(present, [lifetime_of(ring).process for ring in rings if ring.facts.alive])


def _is_reinitialized(ring: Fragment) -> bool:
    """Whether a process left a world and is calling ``init_process_group`` again, or belonged to a
    group larger than its current world.
    """
    facts = ring.facts
    calling = any(p.name == "init_process_group" for p in facts.phases[-1:])
    larger = any(len(g.ranks) > (facts.world_size or len(g.ranks)) for g in ring.groups)
    return larger or bool(facts.finalized and calling)


def with_process_rank(
    fragment: Fragment, ranks: Mapping[tuple[str, int], int | None]
) -> Fragment | None:
    """A journal's fragment with the rank that the ring of its process (machine, process id) has.

    None if that process is not a rank.
    """
    facts = fragment.facts
    if fragment.source.format != formats.JOURNAL or not facts.pid or facts.rank == NONE:
        return fragment
    rank = ranks.get(facts.process, facts.rank)
    return None if rank is None else with_rank(fragment, rank)


def with_rank(fragment: Fragment, rank: int) -> Fragment:
    """The fragment under another rank; its records are changed in place."""
    if fragment.facts.rank == rank:
        return fragment
    fragment.records["rank"] = rank
    return replace(
        fragment,
        facts=replace(fragment.facts, rank=rank),
        source=replace(fragment.source, rank=rank),
        members=_members_with_rank(fragment.members, rank),
        implied=None if fragment.implied is None else _members_with_rank(fragment.implied, rank),
    )


def _members_with_rank(members: Records, rank: int) -> Records:
    copy: Records = np.array(members)
    copy["rank"] = rank
    return copy


def lifetime_of(fragment: Fragment) -> Lifetime:
    """When a ring's process began recording, and when it was last seen alive."""
    facts = fragment.facts
    return Lifetime(
        facts.rank,
        facts.started_ns,
        facts.process,
        last_seen_ns(fragment) if not facts.alive else facts.observed_ns,
        facts.rendezvous or "",
    )


def last_seen_ns(fragment: Fragment) -> int:
    """The latest moment (ns since the epoch) that the fragment mentions."""
    facts = fragment.facts
    latest = facts.heartbeat_ns
    if facts.exit is not None:
        latest = max(latest, facts.exit.at_ns)
    if len(fragment.records):
        latest = max(latest, int(fragment.records["created_ns"].max()))
    if len(fragment.members):
        latest = max(latest, int(fragment.members["enqueued_ns"].max()))
    return latest or facts.observed_ns
