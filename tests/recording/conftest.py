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
    for name, value in {
        "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4",
        "HANGSCOPE_DIR": str(tmp_path / "run"), "HANGSCOPE_MONITOR": "0", "HANGSCOPE_FAKE": "1",
        "HANGSCOPE_BUFFER": "1000",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    assert api.start()
    session = api.current_session()
    assert session is not None
    yield session
    api.stop()
    dist.destroy_process_group()
