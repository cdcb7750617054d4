"""Groups built by hand, as rings list them: one known group rank each, the others unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.load import load_trace
from hangscope.trace.model import Group


def _groups(folder: Path, places: dict[int, int], size: int) -> tuple[Group, ...]:
    for rank, place in places.items():
        identity = RingIdentity(run_id="a", rank=rank, world_size=4, host="node0", pid=1 + rank)
        ring = RingWriter(folder / f"rank_{rank}.ring", identity, 16)
        ranks = [rank if at == place else -1 for at in range(size)]
        ring.add_group("weights@h:1", "weights", ranks, "gloo", 0, place, observable=True)
    return load_trace([folder]).groups


def test_ranks_that_fill_all_places_are_the_members(tmp_path: Path) -> None:
    (group,) = _groups(tmp_path, {0: 1, 1: 0, 3: 2}, 3)
    assert (group.ranks, group.size, group.place, group.outsiders) == ((1, 0, 3), 3, None, 0)


@pytest.mark.parametrize("places", [{0: 0, 1: 0}, {0: 0, 1: 1, 2: 1}, {2: 1}])
def test_members_are_unknown_if_places_are_missing(tmp_path: Path, places: dict[int, int]) -> None:
    groups = _groups(tmp_path, places, 2)
    assert {(g.ranks, g.place, g.outsiders) for g in groups} == {
        ((rank,), place, 1) for rank, place in places.items()
    }
