"""Truncated dumps: everything before the entries is used."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace

from .dumps import dump, entry, pending


def _written(folder: Path, rank: int, made: dict[str, Any], *, kind: str, cut: bool) -> None:
    """One rank's file, entries last as torch writes them; half of these are missing where cut."""
    made = {name: made[name] for name in sorted(made, key=lambda name: name == "entries")}
    if kind == "json":
        data = json.dumps(made).encode()
        begin = data.index(b'"entries"')
    else:
        data = pickle.dumps(made, protocol=2 if kind == "pickle" else 4)
        begin = data.index(b"entries")
    kept = begin + (len(data) - begin) // 2 if cut else len(data)
    (folder / f"trace_{rank}{'.json' if kind == 'json' else ''}").write_bytes(data[:kept])


def _judged(folder: Path) -> Diagnosis:
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_missing_rank_is_found_by_counters(tmp_path: Path, kind: str) -> None:
    done = [entry(seq) for seq in range(1, 9)]
    _written(tmp_path, 0, dump([*done, pending(9)], 3), kind=kind, cut=False)
    _written(tmp_path, 1, dump(done, 3), kind=kind, cut=True)
    _written(tmp_path, 2, dump([*done, pending(9)], 3), kind=kind, cut=False)
    trace = load_trace([tmp_path])
    assert trace.ranks[1].newest_lost
    assert any("trace_1" in w and "ends in the middle" in w for w in trace.warnings)
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.confidence.value == "likely"


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_rank_waiting_with_the_others_is_not_lost(tmp_path: Path, kind: str) -> None:
    """Rank 2 left nothing; rank 1's counters show that it waits as well."""
    done = [entry(seq) for seq in range(1, 9)]
    _written(tmp_path, 0, dump([*done, pending(9)], 3), kind=kind, cut=False)
    _written(tmp_path, 1, dump([*done, pending(9)], 3), kind=kind, cut=True)
    found = _judged(tmp_path)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))


def test_no_rank_that_may_wait_in_a_receive_is_missing(tmp_path: Path) -> None:
    done = [entry(seq) for seq in range(1, 9)]
    pair = {"p2p_seq_id": 1, "is_p2p": True, "record_id": 8}
    sent = [*done, entry(8, "nccl:send 0->2", **pair), pending(9, record_id=9)]
    _written(tmp_path, 0, dump(sent, 3), kind="pickle", cut=False)
    _written(tmp_path, 1, dump(done, 3), kind="pickle", cut=True)
    got = [*done, entry(8, "nccl:recv 2<-0", **pair), pending(9, record_id=9)]
    _written(tmp_path, 2, dump(got, 3), kind="pickle", cut=False)
    assert 1 not in _judged(tmp_path).culprits


def test_waiting_rank_with_a_cut_dump_may_wait_in_another_collective(tmp_path: Path) -> None:
    """Its counters show what it has issued, not what its device does before that."""
    done = [entry(seq) for seq in range(1, 9)]
    for rank in range(3):
        made = dump([*done, pending(9)], 3)
        _written(tmp_path, rank, made, kind="json", cut=rank == 1)
    found = _judged(tmp_path)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert found.confidence.value == "likely"


@pytest.mark.parametrize("kind", ["pickle", "pickle 4", "json"])
def test_truncated_dump_without_counters_is_unreadable(tmp_path: Path, kind: str) -> None:
    done = [entry(seq) for seq in range(1, 9)]
    _written(tmp_path, 0, dump([*done, pending(9)]), kind=kind, cut=False)
    _written(tmp_path, 1, dump(done, pg_status=None), kind=kind, cut=True)
    trace = load_trace([tmp_path])
    assert list(trace.ranks) == [0]
    assert len(trace.unread) == 1
    assert "truncated" in trace.unread[0].why
