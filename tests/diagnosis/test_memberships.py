"""Members that no source lists are completed only where the mesh leaves one way to do so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hangscope.diagnosis.groups.memberships import with_credible_members
from hangscope.trace import formats
from hangscope.trace.model import MEMBER_DTYPE, RECORD_DTYPE, Group, RankFacts, Source, Trace


def trace_of(world: int, seen: Sequence[Sequence[int]], desc: str = "tp") -> Trace:
    """Dumps that list no members; ``seen``: the ranks that appear in each of the groups."""
    ranks = sorted({rank for group in seen for rank in group})
    members = np.zeros(sum(map(len, seen)), MEMBER_DTYPE)
    members["rank"] = [rank for group in seen for rank in group]
    members["group"] = [1 + number for number, group in enumerate(seen) for _ in group]
    return Trace(
        records=np.zeros(0, RECORD_DTYPE),
        members=members,
        groups=(
            Group("0", "default_pg", tuple(range(world))),
            *(
                Group(str(1 + number), desc, tuple(group), listed=False)
                for number, group in enumerate(seen)
            ),
        ),
        signatures=(),
        stacks=(),
        ranks={rank: RankFacts(rank) for rank in ranks},
        sources=tuple(Source(f"rank_{r}", formats.DUMPS[0], "2.2", r) for r in ranks),
        world_size=world,
    )


def completed(trace: Trace) -> list[tuple[int, ...]]:
    settled, _ = with_credible_members(trace)
    return [group.ranks for group in settled.groups[1:]]


@pytest.mark.parametrize(
    ("world", "seen", "members"),
    [
        pytest.param(
            8, [[0, 1], [2, 3], [4, 5], [6]], [(0, 1), (2, 3), (4, 5), (6, 7)],
            id="neighbours",
        ),
        pytest.param(
            8, [[0, 4], [1, 5], [2, 6], [3]], [(0, 4), (1, 5), (2, 6), (3, 7)],
            id="at a distance",
        ),
        pytest.param(
            8, [[0, 1, 2, 3], [4, 5]], [(0, 1, 2, 3), (4, 5, 6, 7)],
            id="two of one group are missing",
        ),
        pytest.param(
            8, [[0, 1], [2, 3], [4], [6]], [(0, 1), (2, 3), (4, 5), (6, 7)],
            id="one of each of two groups is missing",
        ),
        pytest.param(
            8, [[0, 2, 3, 5], [1, 4, 6]], [(0, 2, 3, 5), (1, 4, 6, 7)],
            id="without a pattern, but only one group has room",
        ),
        pytest.param(
            6, [[0, 1], [2, 4], [3]], [(0, 1), (2, 4), (3, 5)],
            id="with two patterns, but only one group has room",
        ),
        pytest.param(
            6, [[0, 1, 2], [3, 4]], [(0, 1, 2), (3, 4, 5)],
            id="the highest rank is missing",
        ),
    ],
)  # fmt: skip
def test_missing_rank_belongs_where_the_mesh_has_room_for_it(
    world: int, seen: list[list[int]], members: list[tuple[int, ...]]
) -> None:
    assert completed(trace_of(world, seen)) == members


@pytest.mark.parametrize(
    ("world", "seen"),
    [
        pytest.param(9, [[0, 4, 5], [1, 3], [2, 6]], id="no pattern, and room in two groups"),
        pytest.param(6, [[0, 1], [2], [3]], id="the pattern would put one rank in two groups"),
        pytest.param(8, [[0, 2], [1, 4], [3], [5]], id="the groups have no common distance"),
    ],
)
def test_list_of_those_who_appeared_is_dropped_where_several_could_be_missing(
    world: int, seen: list[list[int]]
) -> None:
    """A group that is complete keeps its list."""
    size = max(map(len, seen))
    whole = [tuple(group) if len(group) == size else () for group in seen]
    assert completed(trace_of(world, seen)) == whole


def test_groups_without_a_description_are_no_mesh() -> None:
    """Nothing tells which of them share the world out."""
    assert completed(trace_of(8, [[0, 1, 2, 3], [4, 5]], desc="undefined")) == [(), ()]


def test_list_is_kept_if_nobody_is_missing() -> None:
    assert completed(trace_of(6, [[0, 1, 2], [3, 4, 5]])) == [(0, 1, 2), (3, 4, 5)]


def test_one_rank_in_two_groups_of_a_description_is_in_several_meshes() -> None:
    assert completed(trace_of(8, [[0, 1, 2, 3], [3, 4, 5, 6]])) == [(), ()]


def test_described_group_that_nobody_has_used_stays_without_members() -> None:
    trace = trace_of(8, [[0, 1, 2, 3], [4, 5]])
    unused = replace(trace, groups=(*trace.groups, Group("9", "unused", (), listed=False)))
    assert completed(unused) == [(0, 1, 2, 3), (4, 5, 6, 7), ()]
