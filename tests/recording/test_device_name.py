"""A ring says on which device its rank computes, as the kernel's log names it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hangscope.recording.device_name import DeviceName
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.load import load_trace


@pytest.mark.parametrize("known", [True, False])
def test_the_address_of_the_first_operations_device(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: place if known else SimpleNamespace()
    )
    ring = RingWriter(tmp_path / "rank_0.ring", RingIdentity("run", 0, 1), 10)
    index = -1
    name = DeviceName(ring, lambda: index)
    name.note()
    assert RingReader(ring.path).header().device == 0
    index = 2
    name.note()
    assert load_trace([tmp_path]).ranks[0].device == ("0001:3b:00" if known else "")
