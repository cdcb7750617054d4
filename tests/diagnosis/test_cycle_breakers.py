"""Which ranks break a cycle of waiting, on hand-written graphs."""

from __future__ import annotations

import random

from hangscope.diagnosis.graph.components import cycles_without
from hangscope.diagnosis.graph.cycle_graph import CycleGraph
from hangscope.diagnosis.graph.places import Place, Waits


def place(waiters: tuple[int, ...], absent: tuple[int, ...], behind: tuple[int, ...] = ()) -> Place:
    return Place(0, 1, waiters, absent=absent, behind=behind)


def waits(places: list[Place]) -> Waits:
    places_of: dict[int, list[int]] = {}
    for index, here in enumerate(places):
        for rank in here.waiters:
            places_of.setdefault(rank, []).append(index)
    return Waits(places, places_of, {})


def goes_round(places: list[Place], ranks: set[int]) -> bool:
    """Whether anybody is left once all ranks that wait for nobody have gone."""
    left = set(ranks)
    while gone := {
        r for r in left if not any(r in p.waiters and left.intersection(p.targets) for p in places)
    }:
        left -= gone
    return bool(left)


def test_rank_that_breaks_a_cycle_is_on_every_path() -> None:
    rng = random.Random(1)
    found = set()
    for _ in range(2000):
        ranks = set(range(rng.randint(2, 7)))
        places = [
            place(tuple(rng.sample(sorted(ranks), 1)), tuple(rng.sample(sorted(ranks), 1)))
            for _ in range(rng.randint(2, 9))
        ]
        expected = [r for r in sorted(ranks) if not goes_round(places, ranks - {r})]
        assert sorted(CycleGraph(places, ranks).breakers) == expected
        found.add(len(expected))
    assert found >= {0, 1, 2, 3}


def test_every_member_of_a_ring_breaks_the_cycle() -> None:
    size = 3000  # checking the whole ring once per rank would take minutes
    ring = [place((rank,), ((rank + 1) % size,)) for rank in range(size)]
    assert sorted(CycleGraph(ring, set(range(size))).breakers) == list(range(size))
    assert CycleGraph(ring, set(range(size))).smallest_side == ()


def test_fewest_ranks_waiting_at_one_place_break_a_cycle_together() -> None:
    two = [place((0, 1), (2, 3, 4)), place((2, 3, 4), (0, 1))]
    assert sorted(CycleGraph(two, set(range(5))).breakers) == []
    assert CycleGraph(two, set(range(5))).smallest_side == (0, 1)


def test_cycle_is_found_although_other_ranks_proceed_late() -> None:
    # Rank 0 waits for nobody. So ranks 1 and 2 get on at the last place but one, rank 1 at the
    # third and rank 3 at the first: what is left are ranks 2 and 3, each absent where the other is.
    graph = waits(
        [
            place((0, 3), (1,), behind=(2,)),
            place((2,), (3,), behind=(1,)),
            place((1, 3), (0,), behind=(2,)),
            place((1, 2, 3), (), behind=(0,)),
            place((0, 3), (1, 2)),
        ]
    )
    graph.cut_off([0])
    assert cycles_without(graph, set()) == [({2, 3}, {1, 4})]


def test_chain_of_any_length_ends_at_the_lost_rank() -> None:
    size = 3000
    chain = [place((rank,), (rank - 1,)) for rank in range(1, size)]
    assert cycles_without(waits(chain), {0}) == []
    closed = [*chain, place((1,), (size - 1,))]
    ((ranks, _),) = cycles_without(waits(closed), {0})
    assert ranks == set(range(1, size))
