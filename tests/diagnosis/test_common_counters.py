"""Dumps whose numbers count something else: from 0, or along with sends and receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.diagnosis.records.counters import with_own_counters
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tests.trace.dumps import dump, entry, pending, write

WORLD = 4


def _half(place: int, number: int, op: str, peer_seq: int, **changes: Any) -> dict[str, Any]:
    """One half of a pair: the ``place``-th entry of its dump, with a collective's number."""
    given = {"collective_seq_id": number, "p2p_seq_id": peer_seq, "is_p2p": True, **changes}
    return pending(place, f"nccl:{op}", **given)


def _collective(place: int, number: int, *, done: bool = True) -> dict[str, Any]:
    return (entry if done else pending)(place, collective_seq_id=number)


def _given(folder: Path, dumps: dict[int, list[dict[str, Any]]], **changes: Any) -> Trace:
    for rank, entries in dumps.items():
        write(folder, f"trace_{rank}", dump(entries, WORLD, **changes))
    return load_trace([folder])


def _judged(folder: Path, dumps: dict[int, list[dict[str, Any]]], **changes: Any) -> Diagnosis:
    return diagnose(_given(folder, dumps, **changes))


@pytest.mark.parametrize("status", [None, "as the entries"])
def test_numbers_from_zero_include_those_of_ranks_with_sends(
    tmp_path: Path, status: str | None
) -> None:
    """Otherwise a rank with sends and one without would be taken for recorders of different
    kinds."""
    changes = {"pg_status": None} if status is None else {}
    before = [_collective(1, 0), _collective(2, 1), _collective(3, 2)]
    sends = _half(4, 2, "send 0->1", 1, time_discovered_completed_ns=2 * 10**18, state="completed")
    gets = _half(4, 2, "recv 1<-0", 1, time_discovered_completed_ns=2 * 10**18, state="completed")
    found = _judged(
        tmp_path,
        {
            0: [*before, sends, _collective(5, 3, done=False)],
            1: [*before, gets, _collective(5, 3, done=False)],
            2: [*before, _collective(4, 3, done=False)],
            3: before,
        },
        **changes,
    )
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert found.findings[0].victims == (0, 1, 2)


def test_group_with_only_its_first_collective_is_shifted_with_the_others(tmp_path: Path) -> None:
    """Two groups of one dump begin at the same number, whether or not both show it."""
    for rank in range(WORLD):
        first = entry(1, collective_seq_id=0, process_group=("1", "tp"), pg_id=1)
        config = {
            name: {"name": name, "desc": desc, "ranks": "[0, 1, 2, 3]"}
            for name, desc in (("0", "default_pg"), ("1", "tp"))
        }
        rows = [first, _collective(2, 0), _collective(3, 1)]
        write(tmp_path, f"trace_{rank}", dump(rows, WORLD, pg_config=config, pg_status=None))
    trace = load_trace([tmp_path])
    mine = trace.records[trace.records["rank"] == 0]
    assert mine["collective_seq"].tolist() == [1, 1, 2]


def test_batch_with_number_zero_is_no_counter_from_zero(tmp_path: Path) -> None:
    """Old recorders write the previous number on entries in a batch."""
    rows = [
        entry(1, collective_seq_id=0),
        entry(2, "nccl:coalesced", collective_seq_id=1),
        entry(3, collective_seq_id=2),
    ]
    trace = _given(tmp_path, {0: rows})
    assert trace.records["collective_seq"].tolist()[2] == 2


def test_p2p_operations_that_advance_the_counter_keep_members_aligned(tmp_path: Path) -> None:
    """Only ranks 0 and 1 exchange something; all but rank 3 then wait in one collective."""
    done = {"state": "completed", "time_discovered_completed_ns": 2 * 10**18}
    before = [_collective(1, 1), _collective(2, 2)]
    found = _judged(
        tmp_path,
        {
            0: [*before, _half(3, 3, "send 0->1", 1, **done), _collective(4, 4, done=False)],
            1: [*before, _half(3, 3, "recv 1<-0", 1, **done), _collective(4, 4, done=False)],
            2: [*before, _collective(3, 3, done=False)],
            3: before,
        },
        pg_status=None,
    )
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))


def test_send_after_the_last_collective_is_no_missing_collective(tmp_path: Path) -> None:
    before = [_collective(1, 1), _collective(2, 2)]
    found = _judged(
        tmp_path,
        {r: [*before, _half(3, 3, "send 0->1", 1)] if r == 0 else before for r in range(WORLD)},
        pg_status=None,
    )
    assert found.verdict is Verdict.P2P_UNMATCHED
    assert (found.culprits, found.confidence.value) == ((1,), "likely")


def test_recorder_that_repeats_the_previous_number_has_two_counters(tmp_path: Path) -> None:
    """A collective that the recorder did not see is not the number of a send."""
    rows = [
        _collective(1, 1),
        _half(2, 2, "send 0->1", 1),
        _half(3, 2, "send 0->1", 2),
        _collective(4, 3, done=False),
    ]
    trace = _given(tmp_path, {0: rows}, pg_status=None)
    assert with_own_counters(trace).records["collective_seq"].tolist() == [1, 2, 2, 3]
    del rows[2]
    rows[2]["record_id"] = 2
    trace = _given(tmp_path, {0: rows}, pg_status=None)
    assert with_own_counters(trace).records["collective_seq"].tolist() == [1, 1, 2]
