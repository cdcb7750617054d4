"""A node's report goes out when it says something new, not with every look."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.monitor import nodes
from hangscope.monitor.gather import unpack
from hangscope.trace.live import LiveRun
from hangscope.trace.live_rings import RunKey
from tests.live_rings import RingRank


class Carrier:
    """Stands where the relay process stands, and keeps what it is given."""

    failed = False

    def __init__(self) -> None:
        self.reports: list[bytes] = []

    def publish(self, report: bytes) -> None:
        self.reports.append(report)


def test_the_same_is_not_said_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [RingRank(tmp_path, rank, 4) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(4)) for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        rank.issue(group)
    run = LiveRun(tmp_path)
    rings = [(rank, tmp_path / f"rank_{rank}.ring") for rank in range(2)]
    others = nodes.OtherNodes(RunKey("live", 0), 1, 5.0)
    carrier = Carrier()
    monkeypatch.setattr(others, "_relay", carrier)
    for _ in range(20):
        ranks[0].ring.beat()
        others.tell(run.look(), rings)
    assert len(carrier.reports) == 1
    ranks[1].issue(groups[1])
    others.tell(run.look(), rings)
    assert len(carrier.reports) == 2
    told = unpack(carrier.reports[-1], tmp_path / "opened")
    assert {f.facts.rank: len(f.records) for f in told if len(f.records)} == {0: 1, 1: 2}
    monkeypatch.setattr(nodes, "REPEAT_S", 0.0)  # long enough ago
    others.tell(run.look(), rings)
    assert len(carrier.reports) == 3
