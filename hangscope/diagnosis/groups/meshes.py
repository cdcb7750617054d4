"""Regular meshes: infers all members of groups from some of them, and from their places.

The groups of a mesh dimension have one stride and one size, tile the world and start at multiples,
so a few members, or places in a group (``Rank 2`` of a tensor group, as a log's labels say),
determine the rest. Nothing is guessed: only members that every possible mesh includes are filled
in.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isqrt

from hangscope.trace.model import Trace

_WIDER = 64
_LARGEST = 1 << 17
"""Larger worlds are a damaged number."""
_COMBINED = re.compile(r"_AND_|EMBEDDING|^MODEL_PARALLEL|MODEL_PIPELINE|PARTIAL", re.I)
"""Groups over several dimensions, or over the ends of one: their strides are not even."""
Places = dict[int, dict[int, int]]
"""Per group the rank at each known place."""


def places_of(trace: Trace) -> Places:
    """Places stated by the labels of a log."""
    found: Places = defaultdict(dict)
    for claim in trace.claims:
        place = claim.details.place
        if type(place) is int and claim.reporter is not None and claim.group >= 0:
            found[claim.group][place] = claim.reporter
    return found


def block(rank: int, stride: int, size: int, world: int) -> tuple[int, ...]:
    """The members of a rank's group in a regular mesh, given the group's stride and size."""
    if stride < 1 or size < 1 or world % (stride * size):
        return ()
    first = rank // (stride * size) * (stride * size) + rank % stride
    return tuple(range(first, first + stride * size, stride))


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one group: its members, those at known places, and how many it has."""

    ranks: Collection[int]
    places: Mapping[int, int]
    """The rank at each known place."""
    least: int
    """It has at least so many members."""
    size: int = 0
    """As its operations show it; 0: unknown."""

    def fits(self, stride: int, size: int, world: int) -> bool:
        """Whether it can be a block of such a mesh, with every rank at its place."""
        own = block(min(self.ranks), stride, size, world)
        return set(own) >= set(self.ranks) and all(
            place < size and own[place] == rank for place, rank in self.places.items()
        )


Dimension = Mapping[int, Seen]
"""The groups of one mesh dimension."""


def world_of(dimensions: Iterable[Dimension], world: int) -> int:
    """The smallest world size, from that of the known ranks on, that every dimension allows.

    The highest ranks may have left nothing: seven ranks cannot hold tensor groups that start at 4
    and have a place 2, eight can. Nor can they share groups of four out.
    """
    found = list(dimensions)
    for wider in range(world, min(2 * world, world + _WIDER) + 1 if world <= _LARGEST else world):
        if all(_shapes(dimension, wider, _smallest(dimension)) for dimension in found):
            return wider
    return world


def _smallest(dimension: Dimension) -> int:
    """The smallest size of its groups: who states a place in a group waits there for another."""
    return 2 if any(seen.places for seen in dimension.values()) else 1


def members_of(dimension: Dimension, world: int) -> dict[int, tuple[int, ...]]:
    """Members per group, as far as the meshes that fit determine them.

    Every mesh that fits counts, unless the largest groups as they were seen share the world out.
    Where none fits, groups that do may still have only one with room.
    """
    if not 0 < world <= _LARGEST:
        return {}
    shapes = _shapes(dimension, world)
    size = max(max(seen.least, len(seen.ranks)) for seen in dimension.values())
    if size * len(dimension) == world:
        shapes = [shape for shape in shapes if shape[1] == size]
    elif not all(seen.size or len(seen.places) == len(seen.ranks) for seen in dimension.values()):
        return {}  # how large the groups are is not known
    found: dict[int, tuple[int, ...]] = {}
    for index, seen in dimension.items():
        blocks = [block(min(seen.ranks), stride, size, world) for stride, size in shapes]
        common = set(blocks[0]).intersection(*blocks[1:]) if blocks else set()
        if len(blocks) == 1 or len(common) > len(seen.ranks):
            found[index] = tuple(sorted(common))
    return found if shapes else _with_room(dimension, world)


def _with_room(dimension: Dimension, world: int) -> dict[int, tuple[int, ...]]:
    """The members, if equal groups without a pattern share the world out: those of full groups, and
    the ranks of no group in the only one with room."""
    size = max(max(seen.size, seen.least, len(seen.ranks)) for seen in dimension.values())
    if size < 2 or size * len(dimension) != world:
        return {}
    full = {i: tuple(sorted(s.ranks)) for i, s in dimension.items() if len(s.ranks) == size}
    rest = set(range(world)).difference(*full.values())
    short = [index for index in dimension if index not in full]
    return full | ({short[0]: tuple(sorted(rest))} if len(short) == 1 else {})


def _shapes(dimension: Dimension, world: int, smallest: int = 2) -> list[tuple[int, int]]:
    """Every (stride, size) of a mesh in which the groups are distinct blocks."""
    groups = dimension.values()
    least = max(max(seen.least, len(seen.ranks), *seen.places, 1) for seen in groups)
    stated = {seen.size for seen in groups if seen.size}
    return [
        (stride, size)
        for size in divisors(world)
        if size >= max(least, smallest) and stated <= {size} and len(groups) * size <= world
        for stride in divisors(world // size)
        if all(seen.fits(stride, size, world) for seen in groups)
        and len({block(min(s.ranks), stride, size, world) for s in groups}) == len(groups)
    ]


def is_dimension(desc: str) -> bool:
    """Whether groups of this description may be those of one mesh dimension."""
    return not _COMBINED.search(desc)


@functools.lru_cache(4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, smallest first."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))
