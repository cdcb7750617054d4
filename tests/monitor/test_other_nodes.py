"""A node's report is sent when it has changed, not at every look."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangscope.monitor import other_nodes
from hangscope.monitor.node_reports import pack, report_of, unpack
from hangscope.trace.clocks import shift_fragment
from hangscope.trace.formats import JOURNAL
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.model import RankFacts
from tests.live_rings import RingRank


class Carrier:
    """Replaces the relay process and keeps what it is given."""

    failed = False
    has_contact = False

    def __init__(self) -> None:
        self.reports: list[bytes] = []

    def publish(self, report: bytes) -> None:
        self.reports.append(report)


def test_unchanged_report_is_not_resent_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [RingRank(tmp_path, rank, 4) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(4)) for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        rank.issue(group)
    run = LiveRun(tmp_path)
    rings = [(rank, tmp_path / f"rank_{rank}.ring") for rank in range(2)]
    others = other_nodes.OtherNodes(5.0)
    carrier = Carrier()
    monkeypatch.setattr(others, "_relay", carrier)
    others.publish_report(run.look(), rings)
    assert not carrier.reports, "of a job that moves nothing is sent"
    others.stalled(3.0, run.look(), first=False)
    for _ in range(20):
        ranks[0].ring.beat()
        others.publish_report(run.look(), rings)
    assert len(carrier.reports) == 1
    ranks[1].issue(groups[1])
    others.publish_report(run.look(), rings)
    assert len(carrier.reports) == 2
    told = unpack(carrier.reports[-1], tmp_path / "opened")
    assert {f.facts.rank: len(f.records) for f in told if len(f.records)} == {0: 1, 1: 2}
    monkeypatch.setattr(other_nodes, "REPEAT_S", 0.0)  # long enough ago
    others.publish_report(run.look(), rings)
    assert len(carrier.reports) == 3


@pytest.mark.parametrize(("first", "patience_s"), [(True, 10.0), (False, 20.0)])
def test_each_stall_waits_anew_for_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, patience_s: float
) -> None:
    RingRank(tmp_path, 0, 4)
    trace = LiveRun(tmp_path).look()
    clock, carrier = SimpleNamespace(now_s=100.0), Carrier()
    monkeypatch.setattr(
        other_nodes, "time", SimpleNamespace(monotonic=lambda: clock.now_s, time_ns=time.time_ns)
    )
    others = other_nodes.OtherNodes(5.0)
    monkeypatch.setattr(other_nodes, "Relay", lambda store, **how: carrier)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "1234")

    def patient(now_s: float, stalled_s: float) -> bool:
        clock.now_s = now_s
        others.stalled(stalled_s, trace, first=first)
        return others.is_awaiting_reports()

    assert patient(100.0, stalled_s=3.0)
    assert patient(159.0, stalled_s=62.0), "the others are only importing torch"
    assert not patient(161.0, stalled_s=64.0), "nobody comes"
    assert not patient(162.0, stalled_s=0.1), "it goes on"
    carrier.has_contact = True
    assert patient(200.0, stalled_s=6.0)
    assert patient(199.0 + patience_s, stalled_s=6.0)
    assert not patient(201.0 + patience_s, stalled_s=6.0)


@pytest.mark.parametrize("ahead_s", [0, -3, 7200])
def test_report_time_is_corrected_for_clock_offset(tmp_path: Path, ahead_s: int) -> None:
    rank = RingRank(tmp_path, 0, 4)
    rank.issue(rank.join("0", "default_pg", range(4)))
    trace = LiveRun(tmp_path).look()
    said = unpack(pack(trace, [(0, tmp_path / "rank_0.ring")]), tmp_path / "opened")
    issued_ns = trace.records["created_ns"][0]
    report = report_of([shift_fragment(f, ahead_s * 10**9) for f in said], ahead_s * 10**9)
    assert abs(report.moment_ns - trace.observed_ns) < 10**9
    (record,) = (r for f in report.fragments for r in f.records)
    shown_ns = int(record["created_ns"]) - issued_ns
    assert shown_ns == (0 if abs(ahead_s) > 10 else ahead_s * 10**9)


def test_report_tells_of_ranks_that_are_still_starting(tmp_path: Path) -> None:
    RingRank(tmp_path, 0, 4)
    trace = LiveRun(tmp_path).look()
    starting = RankFacts(1, host="node7", pid=12, alive=True, initialized=False)
    awaited = replace(trace, ranks={**trace.ranks, 1: starting, 2: RankFacts(2, alive=True)})
    said = unpack(pack(awaited, [(0, tmp_path / "rank_0.ring")]), tmp_path / "opened")
    found = {f.facts.rank: f.facts for f in said if f.source.format == JOURNAL}
    assert found.keys() == {1}, "of rank 2 it is not known whether it takes part unrecorded"
    assert (found[1].host, found[1].pid, found[1].initialized) == ("node7", 12, False)


def test_damaged_report_is_ignored(tmp_path: Path) -> None:
    RingRank(tmp_path, 0, 4)
    whole = pack(LiveRun(tmp_path).look(), [(0, tmp_path / "rank_0.ring")])
    assert [f.facts.rank for f in unpack(whole, tmp_path / "whole")] == [0]
    at = whole.index(b"rank_0.ring") + len(b"rank_0.ring")
    altered = whole[:at] + bytes(64) + whole[at + 64 :]
    for number, damaged in enumerate((altered, whole[:-30], b"", b"PK\5\6" + bytes(18))):
        assert unpack(damaged, tmp_path / f"damaged_{number}") == []


@pytest.mark.parametrize(
    ("met_at", "expected"),
    [
        ("tcp://10.0.0.7:29500", ("10.0.0.7", "29500")),
        ("tcp://[fd00::7]:29500", ("fd00::7", "29500")),
        ("tcp://fd00::7:29500", ("fd00::7", "29500")),
        ("file:///scratch/meet", ("node0", "1234")),
        ("HashStore", ("node0", "1234")),
        (None, ("node0", "1234")),
    ],
)
def test_address_of_the_jobs_store(
    met_at: str | None, expected: tuple[str, str], tmp_path: Path
) -> None:
    RingRank(tmp_path, 0, 4)
    trace = LiveRun(tmp_path).look()
    ranks = {r: replace(f, rendezvous=met_at) for r, f in trace.ranks.items()}
    variables = {"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
    assert other_nodes.store_of(replace(trace, ranks=ranks), variables) == expected
    assert met_at is not None or other_nodes.store_of(replace(trace, ranks=ranks), {}) is None
