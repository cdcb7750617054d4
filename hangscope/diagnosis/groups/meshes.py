"""Regular meshes: infers all members of groups from the places some ranks state.

A log's labels give a rank's place in a group (``Rank 2`` of a tensor group). The groups of a mesh
dimension have one stride and one size, tile the world and start at multiples, so a few places
determine the rest. Nothing is guessed: only members that every possible size includes are filled
in.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isqrt

from hangscope.trace.model import Trace

_WIDER = 64
_LARGEST = 1 << 17
"""Larger worlds are a damaged number."""
_COMBINED = re.compile(r"_AND_|EMBEDDING|^MODEL_PARALLEL|MODEL_PIPELINE|PARTIAL", re.I)
"""Groups over several dimensions, or over the ends of one: their strides are not even."""
Alike = Mapping[str, Sequence[int]]
Places = dict[int, dict[int, int]]
"""Per group the rank at each known place."""


def places_of(trace: Trace) -> Places:
    """Places stated by the labels of a log."""
    found: Places = defaultdict(dict)
    for claim in trace.claims:
        place = claim.details.get("place")
        if type(place) is int and claim.reporter is not None and claim.group >= 0:
            found[claim.group][place] = claim.reporter
    return found


def block(rank: int, stride: int, size: int, world: int) -> tuple[int, ...]:
    """The members of a rank's group in a regular mesh, given the group's stride and size."""
    if stride < 1 or size < 1 or world % (stride * size):
        return ()
    first = rank // (stride * size) * (stride * size) + rank % stride
    return tuple(range(first, first + stride * size, stride))


def world_of(trace: Trace, alike: Alike) -> int | None:
    """The world size: as stated, else the smallest one that the known places allow.

    The highest ranks may have left nothing: seven ranks cannot hold tensor groups that start at 4
    and have a place 2, eight can.
    """
    world = trace.world_size
    if world is None or world > _LARGEST or any(f.world_size for f in trace.ranks.values()):
        return world
    dimensions = _dimensions(trace, alike)
    for wider in range(world, min(2 * world, world + _WIDER) + 1):
        if all(_shapes(places, wider, set()) for places in dimensions):
            return wider
    return world


def by_places(trace: Trace, alike: Alike, sizes: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Members per group, as far as the places of one mesh dimension determine them.

    A group without missing members is listed only if its shape is unambiguous.
    """
    world = trace.world_size or 0
    if not 0 < world <= _LARGEST:
        return {}
    found: dict[int, tuple[int, ...]] = {}
    for groups in _dimensions(trace, alike):
        stated = {sizes[i] for i in groups if i in sizes}
        shapes = _shapes(groups, world, stated)
        for index, places in groups.items():
            rank = next(iter(places.values()))
            blocks = [block(rank, stride, size, world) for stride, size in shapes]
            if not blocks:
                continue
            common = set(blocks[0]).intersection(*blocks[1:])
            if len(blocks) == 1 or len(common) > len(places):
                found[index] = tuple(sorted(common))
    return found


def _dimensions(trace: Trace, alike: Alike) -> list[Places]:
    """The known places for every description that can be one mesh dimension."""
    known = places_of(trace)
    found = []
    for desc, indexes in alike.items():
        places = {i: known[i] for i in indexes if i in known}
        if places and not _COMBINED.search(desc):
            found.append(places)
    return found


def _shapes(groups: Places, world: int, stated: set[int]) -> list[tuple[int, int]]:
    """Every (stride, size) that puts each known place where it should be."""
    least = 1 + max(place for places in groups.values() for place in places)
    fitting = []
    for size in divisors(world):
        if size < max(least, 2) or (stated and size not in stated) or len(groups) * size > world:
            continue
        fitting += [
            (stride, size) for stride in divisors(world // size) if _fits(groups, stride, size)
        ]
    return fitting


@functools.lru_cache(4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, smallest first."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _fits(groups: Places, stride: int, size: int) -> bool:
    """Whether the groups are distinct blocks of such a mesh with every rank at its place."""
    firsts = set()
    for places in groups.values():
        for place, rank in places.items():
            first = rank - place * stride
            if first < 0 or first != rank // (stride * size) * (stride * size) + rank % stride:
                return False
        firsts.add(first)
    return len(firsts) == len(groups)
