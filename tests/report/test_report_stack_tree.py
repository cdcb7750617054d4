"""Stacks merged over ranks."""

from __future__ import annotations

from hangscope.report.stack_tree import merge
from hangscope.report.wait_bundles import bundles
from hangscope.trace.model import Frame
from tests import view_samples as samples


def test_one_place_is_one_branch() -> None:
    [root] = merge([((r,), samples.BACKWARD) for r in range(8192)])
    assert root.children == []
    assert len(root.ranks) == 8192
    assert root.frames == tuple(reversed(samples.BACKWARD))


def test_fork_where_ranks_diverge() -> None:
    [root] = merge([((0, 1, 3), samples.BACKWARD), ((2,), samples.LOADER)])
    assert root.frames == (samples.MAIN,)
    assert [c.ranks for c in root.children] == [(0, 1, 3), (2,)]
    assert root.children[1].frames[-1].name == "load_batch"
    assert [b.depth for b in root.walk()] == [0, 1, 1]


def test_stack_that_is_the_beginning_of_another() -> None:
    [root] = merge([((0,), samples.BACKWARD[1:]), ((1,), samples.BACKWARD)])
    assert root.ranks == (0, 1)
    assert [c.ranks for c in root.children] == [(1,)]


def test_stacks_with_nothing_in_common() -> None:
    other = (Frame("f", "g.py", 1),)
    assert [b.ranks for b in merge([((0,), other), ((1, 2), samples.BACKWARD), ((3,), ())])] == [
        (1, 2),
        (0,),
    ]


def test_very_deep_stacks_keep_every_frame() -> None:
    deep = tuple(Frame("f", "g.py", i) for i in range(20_000))
    roots = merge([((r,), deep[r:]) for r in range(3)])
    assert sum(len(b.frames) for root in roots for b in root.walk()) == 20_000


def test_bundles_join_equal_waits() -> None:
    [bundle] = bundles(samples.hang(64, culprit=5, steps=1).diagnosis.wait_for)
    assert len(bundle.waiters) == 63
    assert bundle.on == (5,)
    first, second = bundles(samples.deadlock().diagnosis.wait_for)
    assert (first.waiters, first.on) == ((0, 2, 3), (1,))
    assert (second.waiters, second.on) == ((1,), (0,))
