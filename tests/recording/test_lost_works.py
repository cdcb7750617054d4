"""When a Work counts as one for which nobody can wait any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from hangscope.recording.lost_works import LostWorks
from hangscope.recording.session import Session
from hangscope.ring.layout import SlotFlag
from hangscope.trace.rings.read import read_ring


class Work:
    """Anything."""


def on_another_thread(lost: LostWorks, entry: list[Any]) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lost.is_lost(entry)))
    thread.start()
    thread.join()
    return found[0]


def test_issuing_thread_knows_at_once() -> None:
    lost, work = LostWorks(), Work()
    entry = [1, work, 1, 0, None]
    lost.watch(entry)
    assert not lost.is_lost(entry)
    del work
    assert lost.is_lost(entry)


def test_other_threads_look_twice() -> None:
    """At the first look the operator may not have returned to the job."""
    lost = LostWorks()
    entry = [1, Work(), 1, 0, None]
    lost.watch(entry)
    assert not on_another_thread(lost, entry)
    assert on_another_thread(lost, entry)


def test_forgotten_work_leaves_no_mark() -> None:
    lost, work = LostWorks(), Work()
    lost.watch([1, work, 1, 0, None])
    lost.forget(work)
    assert not lost.is_lost([1, work, 1, 0, None])
    assert lost._issued_by == {}


def test_dropped_receives_are_not_observed(recording_gloo: Session) -> None:
    """Kept ones are, however many there are."""
    completions = recording_gloo.recorder.completions
    kept = [dist.irecv(torch.ones(1), tag=tag) for tag in range(3)]
    for tag in range(3, 60):
        dist.irecv(torch.ones(1), tag=tag)
        assert len(completions.unwaited) <= len(kept) + 2
    recording_gloo.recorder.catch_up()
    recording_gloo.recorder.catch_up()
    flags = read_ring(recording_gloo.ring.path).records["flags"]
    unseen = [bool(flag & int(SlotFlag.UNOBSERVED)) for flag in flags.tolist()]
    assert unseen == [False] * len(kept) + [True] * 57
