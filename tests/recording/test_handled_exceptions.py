"""The exception that is being handled when an operation is issued is kept in the ring."""

from __future__ import annotations

import _thread
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hangscope.recording.handled_exceptions import MOST_KEPT
from hangscope.recording.session import Session
from hangscope.replay.compact import compact_ring
from hangscope.trace.model import Flag
from hangscope.trace.rings.read import read_ring


def clean_up() -> None:
    dist.barrier()


def train(error: str) -> None:
    if error:
        raise ValueError(error)


def program(error: str) -> None:
    try:
        train(error)
    finally:
        clean_up()


def fail(error: str) -> None:
    try:
        program(error)
    except ValueError:
        pass


def test_newest_handled_exception_is_kept(recording_gloo: Session, tmp_path: Path) -> None:
    for error in ("", "first sample", "second sample"):
        fail(error)
    dist.all_reduce(torch.ones(1))
    ring, small = recording_gloo.ring.path, tmp_path / "small.ring"
    compact_ring(ring, small)
    for path in (ring, small):
        fragment = read_ring(path)
        marked = (fragment.records["flags"] & Flag.HANDLING) != 0
        assert marked.tolist() == [False, True, True, False]
        kept = fragment.facts.handled
        assert kept is not None
        assert (kept.type_name, kept.message) == ("ValueError", "second sample")
        assert [frame.name for frame in kept.stack] == ["train", "program"]
        created = fragment.records["created_ns"]
        assert created[1] < kept.at_ns <= created[2]
        assert fragment.facts.exception is None, "it was handled"


def test_long_handled_exception_keeps_its_first_time(recording_gloo: Session) -> None:
    try:
        train("from the first step to the last")
    except ValueError:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
    fragment = read_ring(recording_gloo.ring.path)
    assert (fragment.records["flags"] & Flag.HANDLING).all()
    assert fragment.facts.handled is not None
    assert fragment.facts.handled.at_ns <= fragment.records["created_ns"][0]


def test_short_stack_without_exception(recording_gloo: Session) -> None:
    """As in the first lines of a script, or in a thread started by C."""
    done = threading.Event()

    def shallow() -> None:
        dist.group.WORLD.allreduce([torch.ones(1)]).wait()
        done.set()

    for _ in range(2):
        _thread.start_new_thread(shallow, ())
        assert done.wait(60)
        done.clear()
    fragment = read_ring(recording_gloo.ring.path)
    stacks = [fragment.stacks[row["stack"]] for row in fragment.records]
    assert [[frame.name for frame in stack] for stack in stacks] == [["shallow"]] * 2
    assert not (fragment.records["flags"] & Flag.HANDLING).any()


def test_main_thread_is_known_after_fork(
    recording_gloo: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.current_thread(), "_native_id", 1)
    fail("first sample")
    fragment = read_ring(recording_gloo.ring.path)
    assert fragment.facts.handled is not None
    assert fragment.facts.handled.native_id == int(fragment.records["thread"][0])


def test_beyond_the_limit_no_stale_exception_is_shown(recording_gloo: Session) -> None:
    for number in range(MOST_KEPT):
        fail(f"sample {number}")
    handled = read_ring(recording_gloo.ring.path).facts.handled
    assert handled is not None
    assert handled.message == f"sample {MOST_KEPT - 1}"
    fail("one more")
    assert read_ring(recording_gloo.ring.path).facts.handled is None
    fail("sample 3")
    assert read_ring(recording_gloo.ring.path).facts.handled is not None


def test_innermost_frames_of_a_deep_exception_are_kept(recording_gloo: Session) -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError("x" * 5000)

    try:
        deeper(100)
    except ValueError:
        dist.barrier()
    handled = read_ring(recording_gloo.ring.path).facts.handled
    assert handled is not None
    assert [frame.name for frame in handled.stack] == ["deeper"] * 16
    assert len(handled.message) == 1000


class TalkativeError(Exception):
    """Its ``__str__`` is the job's code, which might do anything."""

    asked = 0

    def __str__(self) -> str:
        TalkativeError.asked += 1
        return "no more samples"


def test_str_of_an_exception_is_called_once(recording_gloo: Session) -> None:
    """Not for every operation that is issued while it is being handled."""
    try:
        raise TalkativeError
    except TalkativeError:
        for _ in range(5):
            dist.all_reduce(torch.ones(1))
    assert TalkativeError.asked == 1
    handled = read_ring(recording_gloo.ring.path).facts.handled
    assert handled is not None
    assert handled.message == "no more samples"
