"""Untrusted files in a run directory must not block, crash or control the monitor."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.monitor.corruption import Corruptions
from hangscope.monitor.early_pidfds import EarlyWatch
from hangscope.monitor.log_output import print_line
from hangscope.ring import layout
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import Node, fragments_of
from hangscope.trace.digests.make import digest_of
from hangscope.trace.digests.tables import Tables
from hangscope.trace.external_reports.journal import MAX_BYTES, read_journal
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import load_trace
from tests.live_rings import RingRank

HEAD = b'{"hangscope":"journal/1","run_id":"live","attempt":0,"host":"node0"}\n'
END = b'{"event":"exit","rank":1,"pid":7,"signal":9,"at_ns":5}\n'


@pytest.fixture
def ranks(tmp_path: Path) -> list[RingRank]:
    made = [RingRank(tmp_path, rank, 2) for rank in range(2)]
    for rank in made:
        group = rank.join("0", "default_pg", range(2))
        for _ in range(4):
            rank.finish(rank.issue(group, "all_reduce"))
    return made


def _overwrite(path: Path, field: str, value: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(layout.header_offset(field))
        file.write(value)


def test_pipes_and_dangling_links_are_ignored(tmp_path: Path, ranks: list[RingRank]) -> None:
    for name in ("rank_7.ring", "monitor_x.journal", "reduction_rank_7.jsonl"):
        os.mkfifo(tmp_path / name)
    os.symlink("nowhere", tmp_path / "dead.journal")
    os.symlink("nowhere", tmp_path / "dead.ring")
    EarlyWatch(tmp_path).take()
    run = LiveRun(tmp_path)
    assert sorted(run.look().ranks) == [0, 1]
    assert list(Corruptions().new(run.findings)) == []


@pytest.mark.parametrize("size", [0, 100, layout.HEADER_BYTES, 20_000])
def test_ring_truncated_while_mapped(tmp_path: Path, ranks: list[RingRank], size: int) -> None:
    run = LiveRun(tmp_path)
    run.look()
    whole = (tmp_path / "rank_1.ring").read_bytes()
    os.truncate(tmp_path / "rank_1.ring", size)
    trace = run.look()
    assert sorted(trace.ranks) == [0]
    assert any("rank_1.ring" in line for line in trace.warnings)
    (tmp_path / "rank_1.ring").write_bytes(whole)
    assert sorted(run.look().ranks) == [0, 1], "whole again"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", struct.pack("<i", 2**31 - 1)),
        ("rank", struct.pack("<i", -7)),
        ("rank", struct.pack("<i", 65537)),
        ("last_record_id", struct.pack("<Q", 2**63)),
        ("slot_count", struct.pack("<I", 2**31)),
        ("timeout_s", struct.pack("<d", float("inf"))),
        ("timeout_s", struct.pack("<d", float("nan"))),
        ("heartbeat_interval_s", struct.pack("<d", float("inf"))),
        ("heartbeat_interval_s", struct.pack("<d", float("nan"))),
        ("heartbeat_interval_s", struct.pack("<d", -1e300)),
        ("heartbeat_ns", struct.pack("<q", 2**63 - 1)),
        ("heartbeat_ns", struct.pack("<q", -(2**63))),
        ("last_record_id", struct.pack("<Q", 1)),
    ],
)
def test_overwritten_header_makes_no_rank_up(
    tmp_path: Path, ranks: list[RingRank], field: str, value: bytes
) -> None:
    run = LiveRun(tmp_path)
    for _ in range(2):
        trace = run.look()
        diagnose(trace)
        assert max(trace.ranks) <= 1
        assert trace.world_size == 2
        assert trace.timeout_s < 1e8
        _overwrite(tmp_path / "rank_1.ring", field, value)
    diagnose(LiveRun(tmp_path).look())


def test_implausibly_large_tables(tmp_path: Path, ranks: list[RingRank]) -> None:
    for field, value in (
        ("slot_count", struct.pack("<I", 10**9)),
        ("group_count", struct.pack("<I", 10**9)),
        ("values_bytes", struct.pack("<Q", 200 << 30)),
        ("sample_bytes", struct.pack("<Q", 200 << 30)),
    ):
        path = tmp_path / f"large_{field}.ring"
        path.write_bytes((tmp_path / "rank_1.ring").read_bytes())
        _overwrite(path, field, value)
        os.truncate(path, 1 << 40)
    trace = LiveRun(tmp_path).look()
    assert sorted(trace.ranks) == [0, 1]
    assert sum("larger than any recorder makes" in line for line in trace.warnings) == 4


def test_endless_journal_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "monitor.journal"
    path.write_bytes(HEAD + END)
    os.truncate(path, MAX_BYTES * 100)
    (fragment,) = read_journal(path)
    assert fragment.facts.rank == 1


def test_untrusted_text_becomes_one_printable_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reduction_rank_0.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n" + b'{"text":"a\\n[hangscope] b\\u001b[31m"}\n')
    for sentence in Corruptions().new([str(path)]):
        print_line(sentence)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("[hangscope] silent corruption: a [hangscope] b")
    assert "\x1b" not in said


_ODD = (None, -1, 2**70, 1.5, "x", [], {}, [[]], [None], [[1, 2]], [{}], True)


def test_made_up_digest_is_void(tmp_path: Path, ranks: list[RingRank]) -> None:
    node = Node("node0", ranks=(0, 1))
    whole = encode(digest_of(LiveRun(tmp_path).look(), range(2), node))
    data = zlib.decompress(whole)
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    made = []
    for name in header:
        for odd in _ODD:
            made.append({**header, name: odd})
            if isinstance(header[name], list) and header[name]:
                made.append({**header, name: [odd, *header[name][1:]]})
        made.append({key: value for key, value in header.items() if key != name})
    for name in header["kinds"][0]:
        made += [{**header, "kinds": [{**header["kinds"][0], name: odd}]} for odd in _ODD]
    made += [[], None, 7]
    void = 0
    for said in made:
        head = json.dumps(said).encode()
        raw = zlib.compress(struct.pack("<I", len(head)) + head + data[4 + length :])
        try:
            digest = decode(raw, Tables())
        except ValueError:
            void += 1
            continue
        assert {part.facts.rank for part in digest.parts} <= {0, 1}
        list(fragments_of(digest))
    assert void > len(made) / 2


def test_digest_that_inflates_too_far_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangscope.trace.digests.codec.MAX_BYTES", 1 << 20)
    for raw in (zlib.compress(bytes(2 << 20)), zlib.compress(b"\xff" * 100)[:-3], b"", b"x"):
        with pytest.raises(ValueError):
            decode(raw, Tables())


@pytest.mark.parametrize("interval_s", [float("inf"), float("nan"), 1e300, -1.0])
def test_heartbeats_that_never_come_are_no_overflow(tmp_path: Path, interval_s: float) -> None:
    """A host that sends nothing any more is looked for by the times of heartbeats."""
    for rank in range(4):
        ring = RingRank(
            tmp_path, rank, 4, boot_id=f"host{rank // 2}", pid_namespace=1, pid=7 + rank
        )
        group = ring.join("0", "default_pg", range(4))
        ring.finish(ring.issue(group))
        ring.issue(group)
        ring.ring.put_i8("heartbeat_ns", time.time_ns() - (10**12 if rank > 1 else 0))
        _overwrite(
            tmp_path / f"rank_{rank}.ring", "heartbeat_interval_s", struct.pack("<d", interval_s)
        )
    for facts in LiveRun(tmp_path).look().ranks.values():
        assert facts.heartbeat_interval_s == 1.0
    diagnose(LiveRun(tmp_path).look())
    diagnose(load_trace([str(tmp_path)]))
