"""Works out the rank of each process where some have not called ``init_process_group`` yet.

A ring first holds the rank from the launcher's environment variables. A program may use other
ranks, which it declares with ``init_process_group``. Until then a process's rank is provisional,
and a process that has declared the same rank takes precedence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from hangscope.trace import formats
from hangscope.trace.facts import tcp_address
from hangscope.trace.job_selection.processes import (
    Key,
    RankProcess,
    process_of,
    with_process_rank,
    with_rank,
)
from hangscope.trace.model import Fragment


def assign_ranks(present: Sequence[RankProcess]) -> list[int | None]:
    """The rank of each process of one run and attempt; None for one that is not a rank.

    A process that has declared no rank, but whose child has, is only a launcher. A rank that comes
    only from environment variables is rejected if another process of the same time has declared it.
    If there are as many free ranks as processes left over, those processes get them; otherwise
    their ranks are unknown, if they are ranks at all.
    """
    ranks: list[int | None] = [one.rank for one in present]
    job = _selected_world(present)
    if job:
        return _assign_in_world(present, job)
    if len({one.declared for one in present}) <= 1:
        return ranks
    parents = {one.launcher for one in present if one.declared}
    for place, one in enumerate(present):
        if not one.declared and one.key in parents:
            ranks[place] = None
    refuted = _refuted(present, ranks)
    taken = {rank for place, rank in enumerate(ranks) if place not in refuted}
    world = max(one.world_size for one in present if one.declared)
    free: list[int] = []
    if refuted and world - len(taken) <= len(refuted):
        free = sorted(set(range(world)) - taken)
    for place in refuted:
        ranks[place] = None
    if len(free) == len(refuted):
        left = sorted(refuted, key=lambda place: present[place].rank)
        for place, rank in zip(left, free, strict=True):
            ranks[place] = rank
    return ranks


def _selected_world(present: Sequence[RankProcess]) -> list[int]:
    """Indexes of the job to follow, where one launch has started several jobs.

    Each job has its own rendezvous and numbers its ranks from 0. Separate jobs are distinguished
    from ranks that were given wrong addresses by having completed rendezvous, or by their sizes:
    together they need no more ranks than there are processes. Preferred are, in this order: a job
    that has not exited cleanly; one that was not started by another job's ranks (a checkpoint may
    be written by helpers that form their own world); one with missing ranks; the largest; the
    newest.
    """
    worlds: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(present):
        if one.declared and one.rendezvous:
            worlds[one.rendezvous].append(place)
    worlds = _merge_aliases(present, worlds)
    if len(worlds) < 2:
        return []
    newest = max(worlds.values(), key=lambda places: _newest_ns(present, places))
    together = [w for w in worlds.values() if _all_overlap(present, [*w, *newest])]
    processes = {one.key for one in present}
    helpers = [w for w in together if _are_helpers([present[p] for p in w], processes)]
    own = [w for w in together if w not in helpers] or together
    sizes = [present[places[0]].world_size for places in own]
    alike = all(
        {present[p].world_size for p in places} == {size}
        and len({present[p].rank for p in places}) == len(places)
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
            _newest_ns(present, places),
        ),
    )


def _are_helpers(ranks: Iterable[RankProcess], processes: Collection[Key]) -> bool:
    """Whether all of these ranks were started by some of ``processes``, which have rings too."""
    return all(one.parent and one.launcher in processes for one in ranks)


def _merge_aliases(
    present: Sequence[RankProcess], worlds: Mapping[str, list[int]]
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


def _may_be_one_world(present: Sequence[RankProcess], known: list[int], places: list[int]) -> bool:
    taken = {present[p].rank for p in known}
    sizes = {present[p].world_size for p in (*known, *places)}
    return len(sizes) == 1 and taken.isdisjoint(present[p].rank for p in places)


def _port(meeting: str) -> str:
    return (tcp_address(meeting) or ("", ""))[1]


def _assign_in_world(present: Sequence[RankProcess], job: Sequence[int]) -> list[int | None]:
    """The declared ranks of one job; processes left over get its free ranks."""
    ranks: list[int | None] = [None] * len(present)
    for place in job:
        ranks[place] = present[place].rank
    free = sorted(set(range(present[job[0]].world_size)) - set(ranks))
    left = sorted(
        (p for p, one in enumerate(present) if not one.declared),
        key=lambda p: present[p].rank,
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


def _newest_ns(present: Sequence[RankProcess], places: Iterable[int]) -> int:
    return max(present[place].created_ns for place in places)


def _all_overlap(present: Sequence[RankProcess], places: Iterable[int]) -> bool:
    """Whether there was a moment at which all these processes were alive."""
    those = [present[place] for place in places]
    ends = [one.last_seen_ns for one in those if not one.alive]
    return max(one.created_ns for one in those) < min(ends, default=1 << 63)


def _refuted(present: Sequence[RankProcess], ranks: Sequence[int | None]) -> set[int]:
    """Indexes of processes whose rank another one of the same time has declared."""
    declared: dict[int, list[RankProcess]] = defaultdict(list)
    for one in present:
        if one.declared:
            declared[one.rank].append(one)
    return {
        place
        for place, one in enumerate(present)
        if ranks[place] is not None
        and not one.declared
        and any(other.key != one.key and other.overlaps(one) for other in declared[one.rank])
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
    known: dict[Key, int | None] = {}
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
    return assign_ranks([process_of(ring) for ring in rings])
