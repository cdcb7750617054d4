"""Processes that end, stop or fall behind with operations in flight on their devices."""

from __future__ import annotations

import random
from math import inf

import pytest

from tools.simulator import score
from tools.simulator.device_faults import IN_FLIGHT
from tools.simulator.faults import draw
from tools.simulator.program import Op
from tools.simulator.relays import behind

RING, TREE = ((4096,),), ((1,),)


def waiting(op: Op, broken: int, members: tuple[int, ...] = (0, 1, 2, 3)) -> set[frozenset[int]]:
    """Who may never end an operation in which a member ceases to pass data on."""
    return {behind(op, members, broken, random.Random(seed)) for seed in range(50)}


def test_ring_holds_up_its_next_members() -> None:
    op = Op("coll", 0, "all_reduce", RING, RING)
    assert waiting(op, 2) == {frozenset({3}), frozenset({3, 0}), frozenset({3, 0, 1})}


def test_tree_holds_up_what_is_below() -> None:
    op = Op("coll", 0, "all_reduce", TREE, TREE)
    assert waiting(op, 1) == {frozenset({3})}
    assert waiting(op, 3) == {frozenset({0, 1, 2})}


def test_chain_holds_up_what_is_farther_from_the_root() -> None:
    op = Op("coll", 0, "broadcast", RING, RING, root=1)
    assert waiting(op, 3) == {frozenset({0})}
    assert waiting(op, 1) == {frozenset({2, 3, 0})}


def test_members_end_at_moments_of_their_own() -> None:
    """Some member has ended what another one never ends."""
    run = draw(3, 5, "died_in_flight").run
    ended, open_ = set(), set()
    for issued in run.issued:
        for item in issued:
            (open_ if item.completed == inf else ended).add((item.op.group, item.collective_seq))
    assert ended & open_
    (dead,) = run.died
    assert all(i.completed == inf or i.started <= run.died[dead] for i in run.issued[dead])


@pytest.mark.parametrize("fault", [f.__name__ for f in IN_FLIGHT])
def test_culprit_is_named(fault: str) -> None:
    outcomes = list(score.run(6, 91, with_stock=False, faults=[fault], dialects=["ring"]))
    assert [o.mine for o in outcomes] == ["exact"] * 6, [o.detail for o in outcomes]
