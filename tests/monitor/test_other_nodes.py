"""A node's report is sent when it has changed, not at every look."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hangscope.monitor import other_nodes
from hangscope.monitor.node_reports import Heard, Reports, Told
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import Node
from hangscope.trace.digests.make import digest_of
from hangscope.trace.digests.tables import Tables
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.model import MEMBER_DTYPE, RankFacts, Trace
from tests.live_rings import RingRank

HERE = Node("node0", ranks=(0, 1), addresses=("10.0.0.1",))


class Carrier:
    """Replaces the relay process and keeps what it is given."""

    failed = False
    has_contact = False
    verdict = finding = ""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.stills = 0
        self.is_awake = False
        self.reports = Reports()

    def publish(self, report: bytes) -> None:
        self.sent.append(report)

    def publish_still(self) -> None:
        self.stills += 1

    def wake(self, awake: bool) -> None:
        self.is_awake = awake

    def told(self) -> Told:
        return Told(self.verdict)

    def found(self) -> str:
        return self.finding

    def receive(self) -> None: ...

    def hosts(self) -> None:
        return None

    def lost(self) -> None:
        return None


def _raw(trace: Trace, ranks: range = range(2), newest: int = 16) -> bytes:
    return encode(digest_of(trace, ranks, HERE, newest=newest))


def test_unchanged_report_is_not_resent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [RingRank(tmp_path, rank, 4) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(4)) for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        rank.issue(group)
    run = LiveRun(tmp_path)
    others = other_nodes.OtherNodes(5.0)
    carrier = Carrier()
    monkeypatch.setattr(others, "_relay", carrier)
    others.publish_report(run.look(), range(2))
    assert not carrier.sent, "of a job that moves nothing is sent"
    others.stalled(3.0, run.look(), first=False)
    for _ in range(20):
        ranks[0].ring.beat()
        others.publish_report(run.look(), range(2))
    assert (len(carrier.sent), carrier.stills) == (1, 0)
    ranks[1].issue(groups[1])
    others.publish_report(run.look(), range(2))
    assert len(carrier.sent) == 2
    told = decode(carrier.sent[-1], Tables())
    assert {p.facts.rank: len(p.records) for p in told.parts} == {0: 1, 1: 2}
    monkeypatch.setattr(other_nodes, "REPEAT_S", 0.0)  # long enough ago
    others.publish_report(run.look(), range(2))
    assert (len(carrier.sent), carrier.stills) == (2, 1), "a few bytes say that nothing changed"
    others.settled()
    for _ in range(5):
        others.publish_report(run.look(), range(2))
    assert (len(carrier.sent), carrier.stills) == (2, 1), "after the verdict all is quiet"


@pytest.mark.parametrize("deep", [True, False])
def test_many_nodes_do_not_send_each_new_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    rank = RingRank(tmp_path, 0, 4)
    group, run = rank.join("0", "default_pg", range(4)), LiveRun(tmp_path)
    rank.issue(group)
    others, carrier = other_nodes.OtherNodes(5.0), Carrier()
    monkeypatch.setattr(others, "_relay", carrier)
    monkeypatch.setattr(carrier, "told", lambda: Told(deep=deep))
    others.stalled(3.0, run.look(), first=False)
    for line in range(5):
        rank.sample(10 + line)
        others.publish_report(run.look(), range(1))
    assert len(carrier.sent) == (5 if deep else 1)
    monkeypatch.setattr(other_nodes, "SHOW_AGAIN_S", 0.0)  # long enough ago
    others.publish_report(run.look(), range(1))
    assert len(carrier.sent) == (5 if deep else 2)
    rank.issue(group)
    others.publish_report(run.look(), range(1))
    assert len(carrier.sent) == (6 if deep else 3)


@pytest.mark.parametrize(("first", "patience_s"), [(True, 10.0), (False, 25.0)])
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
    monkeypatch.setattr(other_nodes, "RelayProcess", lambda store, **how: carrier)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "1234")

    def patient(now_s: float, stalled_s: float) -> bool:
        clock.now_s = now_s
        others.stalled(stalled_s, trace, first=first)
        return others.is_awaiting_reports()

    assert patient(100.0, stalled_s=3.0)
    assert carrier.is_awake
    assert patient(159.0, stalled_s=62.0), "the others are only importing torch"
    assert not patient(161.0, stalled_s=64.0), "nobody comes"
    assert not patient(162.0, stalled_s=0.1), "it goes on"
    assert not carrier.is_awake
    carrier.has_contact = True
    assert patient(200.0, stalled_s=6.0)
    assert patient(199.0 + patience_s, stalled_s=6.0)
    assert not patient(201.0 + patience_s, stalled_s=6.0)


@pytest.mark.parametrize("ahead_s", [0, -3, 7200])
def test_report_time_is_corrected_for_clock_offset(tmp_path: Path, ahead_s: int) -> None:
    rank = RingRank(tmp_path, 0, 4)
    rank.issue(rank.join("0", "default_pg", range(4)))
    trace = LiveRun(tmp_path).look()
    skew_ns = ahead_s * 10**9
    records = trace.records.copy()
    records["created_ns"] += skew_ns
    facts = replace(trace.ranks[0], observed_ns=trace.ranks[0].observed_ns + skew_ns)
    theirs = replace(trace, records=records, ranks={0: facts})
    reports = Reports()
    reports.put("node_1", _raw(theirs, range(1)))
    heard = {1: Heard(facts.observed_ns, skew_ns)}
    assert not reports.fragments(trace.observed_ns + 10**9, heard), "older than that"
    (found,) = reports.fragments(trace.observed_ns - 10**9, heard)
    shown_ns = int(found.records["created_ns"][0]) - int(trace.records["created_ns"][0])
    assert abs(shown_ns - (0 if abs(ahead_s) > 10 else skew_ns)) <= 1000


@pytest.mark.parametrize("first", [True, False])
def test_what_another_node_has_found_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    RingRank(tmp_path, 0, 4)
    carrier = Carrier()
    monkeypatch.setattr(other_nodes, "RelayProcess", lambda store, **how: carrier)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "1234")
    others = other_nodes.OtherNodes(5.0)
    others.stalled(6.0, LiveRun(tmp_path).look(), first=first)
    assert (others.has_verdict, others.take_verdict()) == (False, None)
    carrier.finding = "Rank 3 crashed (the report is in the log of host node1)"
    assert others.has_verdict, "a look is due"
    assert others.take_verdict() == carrier.finding
    assert (others.has_verdict, others.take_verdict()) == (False, None)


def test_report_holds_what_was_recorded(tmp_path: Path) -> None:
    ranks = [RingRank(tmp_path, rank, 4) for rank in range(2)]
    for rank in ranks:
        world = rank.join("0", "default_pg", range(4))
        other = rank.join("7", "pair", [rank.rank, rank.rank + 2])
        for step in range(30):
            rank.finish(rank.issue(world, line=step % 3))
        rank.issue(other, "send", peer=rank.rank + 2)
        rank.ring.note_destroyed(world)
        rank.sample(5)
    trace = LiveRun(tmp_path).look()
    tables = Tables()
    digest = decode(_raw(trace), tables)
    for part in digest.parts:
        own = trace.records[trace.records["rank"] == part.facts.rank][-16:]
        assert part.facts.oldest_record_id == own["record_id"][0]
        for name in ("record_id", "collective_seq", "p2p_seq", "peer", "state", "flags", "thread"):
            assert part.records[name].tolist() == own[name].tolist()
        stacks = [tables.stacks[at] for at in part.records["stack"]]
        assert stacks == [trace.stacks[at] for at in own["stack"]]
        kinds = [tables.signatures[at] for at in part.records["signature"]]
        assert kinds == [trace.signatures[at] for at in own["signature"]]
        told = {tables.groups[m["group"]].ranks: int(m["enqueued"]) for m in part.members}
        assert told[0, 1, 2, 3] == 30
        own_members = trace.members[trace.members["rank"] == part.facts.rank]
        assert (own_members["left_ns"] > 0).any()
        for name in MEMBER_DTYPE.names or ():
            scale = 1000 if name.endswith("_ns") else 1  # microseconds travel
            assert name == "group" or {*(part.members[name] // scale).tolist()} == {
                *(own_members[name] // scale).tolist()
            }
        facts = trace.ranks[part.facts.rank]
        assert part.facts.main_stack == facts.main_stack
        assert (part.facts.pid, part.facts.host) == (facts.pid, facts.host)
    whole = decode(_raw(trace, newest=256), Tables())
    assert [len(part.records) for part in whole.parts] == [31, 31]


def test_world_of_a_large_job_takes_few_bytes(tmp_path: Path) -> None:
    for rank in range(8):
        one = RingRank(tmp_path, rank, 16_384, values_bytes=1 << 20)
        group = one.join("0", "default_pg", range(16_384))
        for step in range(20):
            one.finish(one.issue(group, line=step % 5))
        one.issue(group)
    trace = LiveRun(tmp_path).look()
    raw = _raw(trace, range(8))
    assert len(raw) < 4000
    assert decode(raw, Tables()).tables.groups[0].ranks == tuple(range(16_384))


def test_report_tells_of_ranks_that_are_still_starting(tmp_path: Path) -> None:
    RingRank(tmp_path, 0, 4)
    trace = LiveRun(tmp_path).look()
    starting = RankFacts(1, host="node7", pid=12, alive=True, initialized=False)
    awaited = replace(trace, ranks={**trace.ranks, 1: starting})
    found = {p.facts.rank: p.facts for p in decode(_raw(awaited), Tables()).parts}
    assert (found[1].host, found[1].pid, found[1].initialized) == ("node7", 12, False)


def test_damaged_report_is_ignored(tmp_path: Path) -> None:
    rank = RingRank(tmp_path, 0, 4)
    group = rank.join("0", "default_pg", range(4))
    for _ in range(3):
        rank.issue(group)
    whole = _raw(LiveRun(tmp_path).look(), range(1))
    random = np.random.default_rng(7)
    damaged = [b"", whole[:-3], whole[3:], b"\x78\x9c" + bytes(30)]
    for _ in range(200):
        altered = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            altered[at] ^= int(random.integers(1, 256))
        damaged.append(bytes(altered))
    for number, raw in enumerate(damaged):
        reports = Reports()
        reports.put(f"node_{number}", raw)
        assert not reports.fragments(0, {})


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
