"""Sampling the stacks of all threads must leave nothing behind."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from hangscope.recording.stack_samples import sample_threads


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
