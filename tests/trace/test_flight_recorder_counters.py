"""What ``pg_status`` counts, and for which group."""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.flight_recorder.groups import match_status, read_config
from hangscope.trace.load import load_trace

from .dumps import dump, pending, write


def test_counters_are_mapped_by_entries_and_then_by_order(tmp_path: Path) -> None:
    config = {str(n): {"name": str(n), "desc": f"g{n}", "ranks": "[0, 1]"} for n in (0, 10, 2, 33)}
    status = {
        str(pg_id): {"last_enqueued_collective": 100 + pg_id, "last_completed_collective": 99}
        for pg_id in (0, 1, 2, 5)
    }
    rows = [pending(101, process_group=("2", "g2"), pg_id=1)]
    write(tmp_path, "trace_0", dump(rows, pg_config=config, pg_status=status))
    trace = load_trace([tmp_path])
    found = {trace.groups[m["group"]].name: int(m["enqueued"]) for m in trace.members}
    assert found == {"0": 100, "2": 101, "10": 102, "33": 105}


def test_counters_as_strings_and_without_operations(tmp_path: Path) -> None:
    status = {"0": {"last_enqueued_collective": "-1", "last_completed_collective": "-1"}}
    write(tmp_path, "trace_0.json", dump([], pg_status=status))
    (member,) = load_trace([tmp_path]).members
    assert (member["enqueued"], member["completed"]) == (0, 0)


def test_counter_of_pairs_is_not_taken_for_collectives(tmp_path: Path) -> None:
    config = {"4": {"name": "4", "desc": "pp", "ranks": "[0, 1]"}}
    status = {"7": {"last_enqueued_collective": 11986, "last_completed_collective": 11983}}
    pair = {"is_p2p": True, "process_group": ("4", "pp"), "pg_id": 7}
    rows = [pending(26, "nccl:send 0->1", p2p_seq_id=11986, **pair)]
    write(tmp_path, "trace_0", dump(rows, pg_config=config, pg_status=status))
    write(tmp_path, "trace_1", dump([], pg_config=config, pg_status=status))
    trace = load_trace([tmp_path])
    assert {int(m["rank"]): int(m["enqueued"]) for m in trace.members} == {0: 26, 1: -1}
    assert {int(m["rank"]): int(m["p2p_enqueued"]) for m in trace.members} == {0: 11986, 1: 11986}
    assert trace.records["peer"].tolist() == [1]


def test_counter_possibly_advanced_by_pairs_proves_no_collective(tmp_path: Path) -> None:
    """Rank 1's last operation was its fifth send; nothing is known about the fifth broadcast."""
    status = {"0": {"last_enqueued_collective": 5, "last_completed_collective": 5}}
    row = pending(5, "nccl:broadcast", p2p_seq_id=5, record_id=9)
    write(tmp_path, "trace_0", dump([row], pg_status=status))
    write(tmp_path, "trace_1", dump([], pg_status=status))
    trace = load_trace([tmp_path])
    known = {int(m["rank"]): (int(m["enqueued"]), int(m["completed"])) for m in trace.members}
    assert known[0] == (5, -1)
    assert known[1] == (-1, -1)


def test_counters_of_a_default_group_with_a_non_numeric_name() -> None:
    """``pg_status`` counts the groups in use; a non-numeric name shifts nothing."""
    config = {
        name: {"name": name, "desc": desc, "ranks": ranks}
        for name, desc, ranks in (
            ("default_pg", "default_pg", "[0, 1, 2, 3]"),
            ("1", "dp", "[0, 2]"),
            ("9", "tp", "[0, 1]"),
            ("21", "never used", "[0, 1, 2, 3]"),
        )
    }
    table = read_config(config, 0)
    table.by_pg_id["0"] = table.by_name["default_pg"]
    matched = match_status(["0", "1", "2"], table)
    assert matched == {"0": 0}
    del config["21"]
    table = read_config(config, 0)
    names = {key: table.groups[i].name for key, i in match_status(["0", "2", "1"], table).items()}
    assert names == {"0": "default_pg", "1": "1", "2": "9"}
