"""A recorder in the test's own process, on a process group that goes nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from hangscope.recording import api  # noqa: E402
from hangscope.recording.session import Session  # noqa: E402


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A running recording of this process as rank 0 of 4, on the fake backend."""
    yield from _recording(tmp_path, monkeypatch, "fake", FakeStore(), 4)


@pytest.fixture
def recording_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The same on Gloo, whose Works are watched; alone in the world."""
    yield from _recording(tmp_path, monkeypatch, "gloo", dist.HashStore(), 1)


def _recording(
    directory: Path, monkeypatch: pytest.MonkeyPatch, backend: str, store: dist.Store, world: int
) -> Iterator[Session]:
    for name, value in {
        "RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(world),
        "HANGSCOPE_DIR": str(directory / "run"), "HANGSCOPE_MONITOR": "0", "HANGSCOPE_FAKE": "1",
        "HANGSCOPE_BUFFER": "1000",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    dist.init_process_group(backend, store=store, rank=0, world_size=world)
    assert api.start()
    session = api.current_session()
    assert session is not None
    yield session
    api.stop()
    dist.destroy_process_group()
