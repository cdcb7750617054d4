"""Operations issued during shutdown are marked, and not taken for steps of the program."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hangscope.diagnosis import diagnose
from hangscope.recording.session import Session
from hangscope.recording.shutdown import frame_places, interrupted_stack
from hangscope.replay.compact import compact_ring
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag
from hangscope.trace.rings.read import read_ring
from tests.recording.launcher import ranks, recording

Names = list[str] | None


def names(frame: FrameType | None) -> Names:
    left = interrupted_stack(frame_places(frame))
    return None if left is None else [code.co_name for code, _ in left]


@pytest.fixture
def alarm() -> Iterator[Callable[[Any], None]]:
    """Installs a handler of SIGALRM, and removes it afterwards."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGALRM, before)


class Handlers:
    """A signal handler in each form that Python accepts."""

    def __init__(self) -> None:
        self.seen: list[Names] = []

    def method(self, number: int, frame: FrameType | None) -> None:
        self.deeper()

    def with_more(self, more: int, number: int, frame: FrameType | None) -> None:
        self.deeper()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.deeper()

    def deeper(self) -> None:
        self.seen.append(names(sys._getframe()))


@pytest.mark.parametrize("form", ["method", "partial", "object", "function"])
def test_signal_handler_is_a_shutdown(form: str, alarm: Callable[[Any], None]) -> None:
    handlers = Handlers()
    chosen = {
        "method": handlers.method,
        "partial": functools.partial(handlers.with_more, 1),
        "object": handlers,
        "function": lambda number, frame: handlers.deeper(),
    }[form]
    alarm(chosen)

    def where_it_was() -> None:
        signal.raise_signal(signal.SIGALRM)

    where_it_was()
    assert handlers.seen[0] is not None
    assert handlers.seen[0][:2] == ["where_it_was", "test_signal_handler_is_a_shutdown"]
    assert names(sys._getframe()) is None, "the handler is installed, and does not run"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_propagating_exit_exception_is_a_shutdown(kind: type[BaseException]) -> None:
    seen: list[Names] = []

    def where_it_was() -> None:
        raise kind

    def program(fails: bool) -> None:
        try:
            if fails:
                where_it_was()
        finally:
            seen.append(names(sys._getframe()))

    program(False)
    with pytest.raises(kind):
        program(True)
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1][:3] == [
        "where_it_was", "program", "test_propagating_exit_exception_is_a_shutdown",
    ]  # fmt: skip


def test_handled_error_is_no_shutdown() -> None:
    try:
        raise ValueError
    except ValueError:
        assert names(sys._getframe()) is None


def test_error_during_shutdown_is_part_of_it() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            raise ValueError
        except ValueError:
            assert names(sys._getframe()) is not None


def test_operations_during_shutdown_are_marked(recording_gloo: Session, tmp_path: Path) -> None:
    def clean_up() -> None:
        dist.barrier()

    def where_it_was(fails: bool) -> None:
        if fails:
            raise SystemExit

    def program(fails: bool) -> None:
        try:
            where_it_was(fails)
        finally:
            clean_up()

    for fails in (False, True, True):
        try:
            program(fails)
        except SystemExit:
            pass
    dist.all_reduce(torch.ones(1))
    ring = recording_gloo.ring.path
    small = tmp_path / "small.ring"
    compact_ring(ring, small)
    for path in (ring, small):
        fragment = read_ring(path)
        marked = (fragment.records["flags"] & Flag.LEAVING) != 0
        assert marked.tolist() == [False, True, True, False]
        stacks = {fragment.stacks[row] for row in fragment.records["stack"][:3]}
        assert len(stacks) == 1, "the same lines"
        (left,) = [t for t in fragment.facts.threads if t.source == "left"]
        assert left.is_main
        assert [frame.name for frame in left.stack[:2]] == ["where_it_was", "program"]
        created = fragment.records["created_ns"]
        assert created[0] < left.sampled_ns <= created[1]


@pytest.mark.xdist_group("leaving")
@pytest.mark.parametrize("manner", ["handler", "finally", "interrupt", "exit"])
def test_hang_is_diagnosed_as_before_the_shutdown(manner: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = ranks("leaving_job", 3, recording(run), arguments=(manner, str(tmp_path)), timeout_s=90)
    assert job.returncode != 0
    trace = load_trace([run])
    marked = trace.records[(trace.records["flags"] & Flag.LEAVING) != 0]
    assert np.unique(marked["rank"]).tolist() == [1], job.output[-3000:]
    diagnosis = diagnose(trace)
    assert (diagnosis.verdict.value, diagnosis.culprits) == ("missing_rank", (1,))
    finding = diagnosis.findings[0]
    assert (finding.op, finding.seq) == ("all_reduce", 31)
    if manner != "exit":  # there the interrupted stack is gone
        (side,) = [side for side in finding.sides if side.ranks == (1,)]
        assert "load_batch" in [frame.name for frame in side.stack]
