"""Impossible ranks are rejected, because readers build lists of all ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import NothingReadable, load_trace
from tests.trace.dumps import dump, entry

HUGE = 2**31 - 1


def test_absurd_world_size_in_a_damaged_ring(tmp_path: Path) -> None:
    for rank in range(2):
        identity = RingIdentity("job", rank, HUGE, host="a", pid=rank + 1)
        ring = RingWriter(tmp_path / f"rank_{rank}.ring", identity, 16, group_count=8)
        ring.put_world(rank, HUGE)
        ring.add_group("0", "default_pg", [rank, HUGE], "gloo", 0, 0, observable=True)
    for trace in (load_trace([tmp_path]), LiveRun(tmp_path).look()):
        assert trace.world_size == 2
        assert trace.missing_ranks == ()
        assert [group.ranks for group in trace.groups] == [(0, 1)]
        diagnose(trace)


def test_absurd_world_size_in_a_damaged_dump(tmp_path: Path) -> None:
    for rank in range(2):
        document = dump([entry(1)]) | {"world_size": HUGE}
        (tmp_path / f"dump_{rank}.json").write_text(json.dumps(document))
    assert load_trace([tmp_path]).world_size == 2


def test_number_in_a_file_name_that_is_no_rank(tmp_path: Path) -> None:
    document = {"version": "2.9", "entries": [entry(1)]}
    path = tmp_path / "dump_4194303.json"
    path.write_text(json.dumps(document))
    with pytest.raises(NothingReadable, match="cannot tell whose dump"):
        load_trace([path])


def test_group_that_a_gather_makes_larger_than_any_job(tmp_path: Path) -> None:
    for rank in range(2):
        gather = entry(1) | {
            "profiling_name": "nccl:all_gather",
            "input_sizes": [[1]],
            "output_sizes": [[4_000_000, HUGE]],
            "process_group": ("0", "default_pg"),
        }
        document = dump([gather]) | {"pg_config": {}}
        (tmp_path / f"dump_{rank}.json").write_text(json.dumps(document))
    trace = load_trace([tmp_path])
    assert trace.world_size == 2
    assert all(len(group.ranks) <= 2 for group in trace.groups)
