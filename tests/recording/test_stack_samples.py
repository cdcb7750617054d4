"""Sampling the stacks of all threads must leave nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from hangscope.recording.stack_samples import (
    MAX_INNER,
    MAX_OUTER,
    MAX_WALKED,
    sample_threads,
)
from hangscope.trace.model import Stack
from hangscope.trace.stack_dump import parse_sample


class Held:
    """Stands for an object that a function holds: a tensor, a process group."""


@pytest.mark.parametrize("skip_own", [True, False])
def test_sample_keeps_nothing_alive_without_a_garbage_collector(skip_own: bool) -> None:
    seen: list[weakref.ref[Held]] = []
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        inside.set()
        leave.wait()

    thread = threading.Thread(target=work)
    gc.disable()  # as in jobs that collect garbage at chosen moments
    try:
        thread.start()
        inside.wait()
        sample = sample_threads(skip=threading.get_ident() if skip_own else None)
        leave.set()
        thread.join()
        assert seen[0]() is None
    finally:
        gc.enable()
    assert b"\x00work\x00" in sample


def sampled_at_depth(depth: int) -> Stack:
    """The stack of a thread that samples itself that many calls below ``outermost``."""
    samples: list[bytes] = []

    def down(left: int) -> None:
        if left:
            down(left - 1)
        else:
            samples.append(sample_threads())

    def outermost() -> None:
        down(depth)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 1000)
    try:
        thread = threading.Thread(target=outermost, name="deep")
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
    (found,) = [one for one in parse_sample(samples[0].decode(), 0) if one.name == "deep"]
    return found.stack


def test_deep_stack_keeps_both_ends() -> None:
    names = [frame.name for frame in sampled_at_depth(500)]
    assert len(names) == MAX_INNER + 1 + MAX_OUTER
    assert names[MAX_INNER - 1] == "down"
    assert "frames left out" in names[MAX_INNER]
    assert "outermost" in names[MAX_INNER:]


def test_stack_that_just_fits_is_whole() -> None:
    names = [frame.name for frame in sampled_at_depth(40)]
    assert names.count("down") == 41
    assert not any("left out" in name for name in names)


def test_endless_stack_is_not_walked_to_its_end() -> None:
    names = [frame.name for frame in sampled_at_depth(MAX_WALKED + 100)]
    assert len(names) == MAX_INNER + 1
    assert "frames left out" in names[-1]
