"""Repeated incremental looks give the same as one full look."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.report.formatting import scene
from hangscope.ring.layout import SlotFlag
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import load_trace
from hangscope.trace.model import RECORD_DTYPE, RankFacts, Records, Trace
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.process import _own_namespace, look_here
from tests.depth import examples
from tests.live_rings import RingRank

_TIMED = {
    "observed_ns",
    "cpu_busy",
    "wakeups_hz",
    "stack_moved",
    "wait",
    "helpers_busy",
    "oldest_record_id",
}


def content(trace: Trace) -> list[tuple[Any, ...]]:
    """The records with what their indexes mean."""
    names = [n for n in RECORD_DTYPE.names or () if n not in ("group", "signature", "stack")]
    columns = [trace.records[name].tolist() for name in names]
    groups = [trace.groups[g].name for g in trace.records["group"].tolist()]
    signatures = [trace.signatures[s] for s in trace.records["signature"].tolist()]
    stacks = [trace.stacks[s] if s >= 0 else () for s in trace.records["stack"].tolist()]
    return list(zip(*columns, groups, signatures, stacks, strict=True))


def counters(trace: Trace) -> dict[tuple[int, str], dict[str, int]]:
    names = trace.members.dtype.names[2:]
    return {
        (row[0], trace.groups[row[1]].name): dict(zip(names, row[2:], strict=True))
        for row in map(tuple, trace.members.tolist())
    }


def assert_counters(again: Trace, whole: Trace) -> None:
    """The same, but for ends whose records have been overwritten since they were read."""
    mine, fresh = counters(again), counters(whole)
    assert mine.keys() == fresh.keys()
    for key, row in fresh.items():
        assert mine[key].pop("completed") >= row.pop("completed")
        assert mine[key] == row


def facts(trace: Trace) -> list[dict[str, Any]]:
    names = [f.name for f in fields(RankFacts) if f.name not in _TIMED]
    return [{name: getattr(f, name) for name in names} for f in trace.ranks.values()]


def assert_same(run: LiveRun, folder: Path) -> None:
    again = run.look()
    fresh = LiveRun(folder)
    whole = fresh.look()
    assert content(again) == content(whole)
    assert_counters(again, whole)
    assert facts(again) == facts(whole)
    assert [(s.rank, s.records, s.dropped) for s in again.sources] == [
        (s.rank, s.records, s.dropped) for s in whole.sources
    ]
    assert again.warnings == whole.warnings
    fresh.close()


@pytest.fixture
def job(tmp_path: Path) -> list[RingRank]:
    ranks = [RingRank(tmp_path, rank, 5, slots=rank * 10 + 24) for rank in range(5)]
    for rank in ranks:
        rank.join("0", "default_pg", range(5))
        if rank.rank < 2:
            rank.join("1", "tp", (0, 1))
    return ranks


@pytest.mark.long
@pytest.mark.parametrize("seed", range(examples(16)))
def test_many_looks_give_the_result_of_one(tmp_path: Path, job: list[RingRank], seed: int) -> None:
    """Operations that begin, end, pair, wrap, lack sizes or are taken back, in any order."""
    rng = random.Random(seed)
    run = LiveRun(tmp_path)
    for turn in range(40):
        for rank in rng.sample(job, rng.randrange(len(job) + 1)):
            for _ in range(rng.choice((0, 1, 3, 9, 40))):
                group = rng.choice(list(rank.seqs))
                kind = rng.random()
                if kind < 0.4 and rank.open:
                    rank.finish(rng.choice(list(rank.open)))
                elif kind < 0.5:
                    rank.issue(group, "send", line=rng.randrange(4), peer=rng.randrange(5))
                elif kind < 0.6:
                    rank.issue(group, "barrier", sizes=None)
                elif kind < 0.65:
                    rank.ring.forget_record(rank.issue(group))
                elif kind < 0.7:
                    rank.issue(group, flags=int(SlotFlag.UNOBSERVED))
                elif kind < 0.75:
                    rank.issue(group, signed=False)
                    rank.ring.set_signature(*rank.unsigned)
                else:
                    op = rng.choice(("all_reduce", "broadcast"))
                    rank.issue(group, op, line=rng.randrange(9), sizes=[[rng.randrange(3)]])
            if rng.random() < 0.3:
                rank.sample(rng.randrange(9))
        if turn == 25:
            job[3].join("2", "late", (3, 4))
        assert_same(run, tmp_path)
    assert run.looks == 40


def test_only_changes_are_read(
    tmp_path: Path, job: list[RingRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hangscope.ring.reader import RingReader

    for rank in job:
        for _ in range(20):
            rank.finish(rank.issue(1))
    run = LiveRun(tmp_path)
    run.look(), run.look()
    read: list[tuple[str, int]] = []
    real = RingReader.slots

    def watched(reader: RingReader, since: int = 0) -> tuple[Records, int]:
        found = real(reader, since)
        read.append((reader.path.name, len(found[0])))
        return found

    monkeypatch.setattr(RingReader, "slots", watched)
    before = run.look()
    assert not run.moved
    assert sum(n for _, n in read) == 0
    read.clear()
    for _ in range(3):
        job[2].issue(1)
    after = run.look()
    assert run.moved
    assert len(after.records) == len(before.records) + 3
    assert [pair for pair in read if pair[1]] == [("rank_2.ring", 3)]


def test_unpublished_record_is_read(tmp_path: Path, job: list[RingRank]) -> None:
    """Its writer died between the record and its publication."""
    run = LiveRun(tmp_path)
    run.look()
    job[1].issue(1)
    run.look()
    job[1].issue(1, line=99, publish=False)
    assert_same(run, tmp_path)
    assert len(run.look().records) == 2


def test_half_written_slot_is_counted_and_read_later(tmp_path: Path, job: list[RingRank]) -> None:
    run = LiveRun(tmp_path)
    job[0].issue(1)
    run.look()
    job[0].issue(1)
    torn = job[0].ring.slot_at(2)
    whole = bytes(job[0].ring.memory[torn : torn + 8])
    job[0].ring.memory[torn : torn + 8] = bytes(8)
    job[0].issue(1)
    trace = run.look()
    assert [int(i) for i in trace.records["record_id"]] == [1, 3]
    assert trace.sources[0].dropped == 1
    job[0].ring.memory[torn : torn + 8] = whole
    job[0].issue(1)
    trace = run.look()
    assert [int(i) for i in trace.records["record_id"]] == [1, 2, 3, 4]
    assert trace.sources[0].dropped == 0


def test_newest_records_are_kept_up_to_the_limit(tmp_path: Path, job: list[RingRank]) -> None:
    run = LiveRun(tmp_path, rows=50)
    whole = LiveRun(tmp_path)
    for turn in range(6):
        for rank in job[:4]:
            for _ in range(turn * 3):
                rank.finish(rank.issue(1))
        trace = run.look()
        for rank in job:
            ids = trace.records["record_id"][trace.records["rank"] == rank.rank].tolist()
            assert ids == list(range(max(1, rank.last - 9), rank.last + 1))
        assert run.is_partial == (turn > 2)
    assert trace.ranks[0].oldest_record_id == job[0].last - 9
    assert content(run.look_at_all()) == content(whole.look())
    assert content(run.look()) == content(trace)


def test_processes_are_followed_without_rereading_their_rings(tmp_path: Path) -> None:
    """A live process: its heartbeat, stacks and state are those of the newest look."""
    boot_id, namespace = _own_namespace() or ("", 0)
    mapped, has_mapped = os.pipe()
    pid = os.fork()
    if pid == 0:
        ring_file = tmp_path / "rank_0.ring"
        while not ring_file.exists() or ring_file.stat().st_size < 4096:
            time.sleep(0.01)
        with open(ring_file, "rb") as ring:
            held = mmap.mmap(ring.fileno(), 4096, access=mmap.ACCESS_READ)
        os.write(has_mapped, b"1")
        time.sleep(60)
        held.close()
        os._exit(0)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            start = int(file.read().rsplit(b")", 1)[1].split()[19])
        rank = RingRank(
            tmp_path, 0, 1, pid=pid, start_ticks=start, boot_id=boot_id, pid_namespace=namespace
        )
        rank.join("0", "default_pg", (0,))
        rank.sample(5)
        assert os.read(mapped, 1) == b"1"
        run = LiveRun(tmp_path)
        first = run.look().ranks[0]
        assert (first.alive, first.gil_blocked) == (True, False)
        assert first.main_stack[0].line == 5
        time.sleep(0.25)
        rank.sample(6)
        second = run.look().ranks[0]
        assert second.main_stack[0].line == 6
        assert second.heartbeat_ns > first.heartbeat_ns
        assert second.stack_moved is True
        assert second.cpu_busy is not None
        rank.issue(1, line=42)
        assert run.look().ranks[0].main_stack[1].line == 42, "a call is newer than the sample"
        rank.sample(7)
        assert run.look().ranks[0].main_stack[0].line == 7
        assert_same(run, tmp_path)
        rank.ring.put_i8("heartbeat_ns", time.time_ns() - 10**10)
        assert run.look().ranks[0].gil_blocked is True
        assert run.look().live
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        assert look_here(pid, start).alive is False
        ended = run.look()
        assert not ended.live
        assert ended.ranks[0].exit is not None
    finally:
        os.close(mapped)
        os.close(has_mapped)
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def test_file_locks_are_read_once_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id, namespace = _own_namespace() or ("", 0)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    for rank, child in enumerate(children):
        start = int(Path(f"/proc/{child.pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[19])
        place = {"start_ticks": start, "boot_id": boot_id, "pid_namespace": namespace}
        RingRank(tmp_path, rank, 3, pid=child.pid, **place).ring.beat()
    read: list[Path] = []
    now = FileLocks.now

    def counted(proc: Path) -> FileLocks:
        read.append(proc)
        return now(proc)

    monkeypatch.setattr(FileLocks, "now", counted)
    run = LiveRun(tmp_path)
    try:
        for looks in (1, 2):
            assert all(facts.alive for facts in run.look().ranks.values())
            assert len(read) == looks
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_journal_that_appears_later_is_read(tmp_path: Path, job: list[RingRank]) -> None:
    run = LiveRun(tmp_path)
    for rank in job:
        rank.issue(1)
    run.look()
    assert run.look().ranks[3].exit is None
    lines = (
        '{"hangscope":"journal/1","run_id":"live","attempt":0,"host":"node0","started_ns":1}\n'
        '{"event":"exit","rank":3,"pid":1,"at_ns":2,"code":null,"signal":9}\n'
    )
    (tmp_path / "node0.journal").write_text(lines)
    for _ in range(2):  # merged anew, then caught up
        ended = run.look().ranks[3].exit
        assert ended is not None
        assert ended.signal == 9
    job[2].issue(1)
    assert_same(run, tmp_path)


def test_returned_tables_are_not_changed(tmp_path: Path, job: list[RingRank]) -> None:
    """A picture being drawn must not change meanwhile."""
    run = LiveRun(tmp_path)
    record = job[0].issue(1)
    run.look()
    before = run.look()
    kept = before.records.copy()
    job[0].finish(record)
    job[0].issue(1)
    run.look()
    assert np.array_equal(before.records, kept)


def test_ring_that_is_shortened_during_a_look(
    tmp_path: Path, job: list[RingRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found sound and then cut; a map of it would end this process."""
    for rank in job:
        rank.issue(1, "all_reduce")
    run = LiveRun(tmp_path)
    assert sorted(run.look().ranks) == [0, 1, 2, 3, 4]
    refresh = run._folder.refresh
    left = [2, 4]

    def cut_after(*args: Any) -> Any:
        rings = refresh()
        if left:
            os.truncate(tmp_path / f"rank_{left.pop()}.ring", 4096)
        return rings

    monkeypatch.setattr(run._folder, "refresh", cut_after)
    trace = run.look()
    assert sorted(trace.ranks) == [0, 1, 3]
    assert any("truncated" in warning for warning in trace.warnings)
    run.close()


@pytest.mark.parametrize("age_s", [1, 60])
def test_job_whose_processes_nobody_can_see_is_live_while_it_beats(
    tmp_path: Path, age_s: int
) -> None:
    """Without ``/proc`` nothing else tells. A copy is not live because it is fresh."""
    for rank in range(2):
        ring = RingRank(tmp_path, rank, 2, pid=7 + rank).ring  # of an unknown boot and namespace
        ring.put_i8("heartbeat_ns", time.time_ns() - age_s * 10**9)
    followed, read = LiveRun(tmp_path).look(), load_trace([tmp_path])
    for trace in (followed, read):
        assert {facts.alive for facts in trace.ranks.values()} == {None}
    assert (followed.live, scene(diagnose(followed)).endswith("live")) == (age_s == 1,) * 2
    assert not read.live
