"""Dumps of every version and dialect, read from files as a cluster leaves them."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, Frame, State

from .dumps import BASE_NS, FRAMES, USUAL, dump, entry, ops, pending, write


def v_none() -> Any:
    """torch 2.2: a bare list, one counter, microseconds."""
    rows = []
    for e in (entry(1), pending(2)):
        row = {k: e[k] for k in ("profiling_name", "state", "frames", "input_sizes", "pg_id")}
        row["seq_id"] = e["collective_seq_id"]
        row["time_created_us"] = e["time_created_ns"] // 1000
        rows.append(row)
    return rows


def v1() -> Any:
    """torch 2.3: a dictionary, still one counter, no dtypes, no counters per group."""
    rows = []
    for e in (entry(1), pending(2)):
        row = {k: v for k, v in e.items() if "dtypes" not in k and "thread" not in k}
        del row["p2p_seq_id"], row["is_p2p"], row["timeout_ms"]
        row["seq_id"] = row.pop("collective_seq_id")
        rows.append(row)
    return dump(rows, version="1.5", pg_status=None, nccl_comm_state={})


def v2(version: str) -> Any:
    return dump([entry(1), pending(2)], version=version)


def strings_for_numbers() -> Any:
    rows = json.loads(json.dumps([entry(1), pending(2)]))
    for row in rows:
        for key in ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"):
            row[key] = str(row[key])
        row["input_sizes"] = [["4096"]]
        row["input_dtypes"] = "Float"
    return dump(rows)


@pytest.mark.parametrize(
    "document",
    [
        v_none(),
        v1(),
        *(v2(v) for v in ("2.0", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.9", "2.10", "2.11")),
        strings_for_numbers(),
        dump([entry(1, frames=None), pending(2, frames=None)], version="2.9"),
        dump([entry(1, state="COMPLETED"), pending(2, state="Scheduled")]),
        dump([entry(1), pending(2)], pg_config={"0": {"ranks": [0, 1], "desc": "default_pg"}}),
        dump([entry(1), pending(2)], pg_config=None),
        {"rank": 0, "trace": dump([entry(1), pending(2)])},
        dump([{**entry(1), "unknown_field": [1]}, pending(2)], later="field"),
    ],
    ids=lambda d: str(d.get("version", "wrapped")) if isinstance(d, dict) else "none",
)
@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "_dump_0.json"])
def test_every_version_is_read_alike(tmp_path: Path, document: Any, name: str) -> None:
    write(tmp_path, name, document)
    trace = load_trace([tmp_path])
    assert trace.warnings == ()
    assert ops(trace, 0) == USUAL
    assert trace.signatures[0].input_sizes == ((4096,),)
    assert trace.records["created_ns"][0] == BASE_NS + 10**9


def test_stacks_are_innermost_first(tmp_path: Path) -> None:
    write(tmp_path, "trace_0", dump([entry(1)]))
    trace = load_trace([tmp_path])
    assert trace.stacks == ((Frame("forward", "/app/model.py", 12), Frame(*FRAMES[1].values())),)  # type: ignore[arg-type]


def test_mixed_versions_kinds_and_names_are_one_job(tmp_path: Path) -> None:
    write(tmp_path, "nccl_trace_rank_0", v_none())
    write(tmp_path, "comm_lib_trace_rank_1.json", dump([entry(1), pending(2)], 4))
    write(tmp_path, "nccl_trace_rank_node-77_2", dump([entry(1), pending(2)], 4, "2.4"))
    packed = gzip.compress(pickle.dumps(dump([entry(1)], 4, "2.7")))
    (tmp_path / "dump_rank_3.pickle.gz").write_bytes(packed)
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert trace.world_size == 4
    assert len(trace.groups) == 1
    assert {s.version for s in trace.sources} == {"none", "2.10", "2.4", "2.7"}


def test_one_folder_per_rank(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank_{rank}", "nccl_trace", dump([entry(1)], 3))
    assert sorted(load_trace([tmp_path]).ranks) == [0, 1, 2]


def test_rank_is_read_from_the_content_if_the_name_has_none(tmp_path: Path) -> None:
    config = {"4": {"name": "4", "desc": "pp", "ranks": "[3, 7]"}}
    rows = [pending(0, "nccl:send 1->0", is_p2p=True, p2p_seq_id=1, process_group=("4", "pp"))]
    write(tmp_path, "dump", dump(rows, pg_config=config))
    trace = load_trace([tmp_path])
    assert list(trace.ranks) == [7]
    assert trace.records["peer"].tolist() == [3]


def test_several_ranks_in_one_file(tmp_path: Path) -> None:
    write(tmp_path, "all.json", {str(r): dump([entry(1), pending(2)]) for r in range(2)})
    assert sorted(load_trace([tmp_path]).ranks) == [0, 1]


def test_sibling_groups_may_share_a_name(tmp_path: Path) -> None:
    for rank in range(4):
        ranks = [0, 1] if rank < 2 else [2, 3]
        config = {"tp": {"name": "tp", "desc": "mesh_tp", "ranks": str(ranks)}}
        rows = [entry(1, process_group=("tp", "mesh_tp")), pending(2, process_group=("tp", "x"))]
        write(tmp_path, f"trace_{rank}", dump(rows, pg_config=config))
    trace = load_trace([tmp_path])
    assert sorted(g.ranks for g in trace.groups) == [(0, 1), (2, 3)]
    assert {g.desc for g in trace.groups} == {"mesh_tp"}
    used = {
        int(r): {trace.groups[g].ranks for g in trace.records["group"][trace.records["rank"] == r]}
        for r in range(4)
    }
    assert used == {0: {(0, 1)}, 1: {(0, 1)}, 2: {(2, 3)}, 3: {(2, 3)}}


def test_different_descriptions_of_one_group_are_one_group(tmp_path: Path) -> None:
    for rank, desc in enumerate(("undefined", "dp", "dp")):
        config = {"1": {"name": "1", "desc": desc, "ranks": "[0, 1, 2]"}}
        write(
            tmp_path, f"trace_{rank}", dump([entry(1, process_group=("1", desc))], pg_config=config)
        )
    (group,) = load_trace([tmp_path]).groups
    assert (group.name, group.desc, group.ranks) == ("1", "dp", (0, 1, 2))


def test_group_created_again_is_another_group(tmp_path: Path) -> None:
    for rank in range(2):
        rows = [entry(1, pg_id=0), entry(2, pg_id=0), entry(1, pg_id=3), pending(2, pg_id=3)]
        for i, row in enumerate(rows):
            row["time_created_ns"] = BASE_NS + i * 10**9
        # The second rank's ring has forgotten the first life.
        write(tmp_path, f"trace_{rank}", dump(rows[2:] if rank else rows))
    trace = load_trace([tmp_path])
    epochs = {
        (int(r["rank"]), trace.groups[r["group"]].epoch, int(r["collective_seq"]))
        for r in trace.records
    }
    assert epochs == {(0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2), (1, 1, 1), (1, 1, 2)}


def test_dumps_of_unfinished_entries_are_recognised(tmp_path: Path) -> None:
    write(tmp_path, "trace_0", dump([pending(50, record_id=70), pending(51, record_id=90)]))
    status = {"0": {"last_enqueued_collective": 49, "last_completed_collective": 49}}
    write(tmp_path, "trace_1", dump([], pg_status=status))
    trace = load_trace([tmp_path])
    assert {r: f.only_active for r, f in trace.ranks.items()} == {0: True, 1: True}
    write(tmp_path, "trace_0", dump([entry(49), pending(50)]))
    full = load_trace([tmp_path])
    assert {r: f.only_active for r, f in full.ranks.items()} == {0: False, 1: False}


def test_native_gloo_is_read_by_numbers_and_retirement(tmp_path: Path) -> None:
    for rank in range(3):
        common = {"state": "scheduled", "time_discovered_completed_ns": None}
        rows = [entry(n, "gloo:all_reduce", **common) for n in (1, 2)]
        rows.append(entry(3, "gloo:all_gather", **common, input_sizes=[[4]], output_sizes=[[4, 4]]))
        rows.append(entry(4, "gloo:all_reduce", **{**common, "retired": False}))
        ahead = rank == 0  # it also sent something, which Gloo counts and does not record
        if ahead:
            rows[-1]["op_id"] = 5
        status = {
            "0": {"last_enqueued_collective": 4 + ahead, "last_completed_collective": 3 + ahead}
        }
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        write(tmp_path, f"trace_{rank}", dump(rows, pg_config=config, pg_status=status))
    trace = load_trace([tmp_path])
    assert trace.groups[0].ranks == (0, 1, 2, 3)  # the gather's sizes say four
    assert trace.missing_ranks == (3,)
    assert [s for _, _, s in ops(trace, 1)] == [2, 2, 2, 0]
    last = trace.records[trace.records["collective_seq"] == 4]
    assert (last["flags"] & Flag.UNOBSERVED).all()
    assert {(int(m["enqueued"]), int(m["completed"])) for m in trace.members} == {(4, 3)}


def test_batches_and_their_members(tmp_path: Path) -> None:
    pair = {"is_p2p": True, "p2p_seq_id": 1}
    rows = [
        entry(1),
        pending(1, "nccl:send 0->1", **pair),
        pending(1, "nccl:recv 0<-1", **pair),
        pending(1, "nccl:coalesced", input_sizes=[], output_sizes=[], p2p_seq_id=1),
        pending(2, "nccl:_broadcast_oop", p2p_seq_id=1),
        pending(2, "nccl:_broadcast_oop", p2p_seq_id=1),
        pending(2, "nccl:ALLGATHER_coalesced", p2p_seq_id=1),
        pending(3, "nccl:all_gather_into_tensor_coalesced", p2p_seq_id=1),
        pending(4, p2p_seq_id=1),
    ]
    write(tmp_path, "trace_0", dump(rows))
    flags = [Flag(int(f)) for f in load_trace([tmp_path]).records["flags"]]
    inside, batch, p2p = Flag.COALESCED_MEMBER, Flag.COALESCED_BATCH, Flag.P2P
    assert [f & ~Flag.RETIRED for f in flags] == [
        Flag(0),
        inside | p2p,
        inside | p2p,
        batch | p2p,
        inside,
        inside,
        batch,
        batch,
        Flag(0),
    ]


def test_any_source_and_peer_zero(tmp_path: Path) -> None:
    pair = {"is_p2p": True, "process_group": ("4", "pp")}
    config = {"4": {"name": "4", "desc": "pp", "ranks": "[0, 5]"}}
    rows = [
        pending(0, "nccl:recv 1<-?", p2p_seq_id=1, **pair),
        pending(0, "nccl:recv 1<-0", p2p_seq_id=2, **pair),
        pending(0, "nccl:send 5->0", p2p_seq_id=3, **pair),  # a collector that writes global ranks
    ]
    write(tmp_path, "trace_5", dump(rows, pg_config=config))
    assert load_trace([tmp_path]).records["peer"].tolist() == [-1, 0, 0]


def test_unknown_backends_and_operations_are_read(tmp_path: Path) -> None:
    write(tmp_path, "trace_0", dump([entry(1, "acme2:Quantum_Reduce"), entry(2, "noprefix")]))
    trace = load_trace([tmp_path])
    assert [(s.backend, s.op) for s in trace.signatures] == [
        ("acme2", "quantum_reduce"),
        ("", "noprefix"),
    ]


def test_attempts_side_by_side_are_not_mixed(tmp_path: Path) -> None:
    for attempt in range(2):
        for rank in range(2):
            rows = [entry(1), entry(2 + attempt)]
            for row in rows:
                row["time_created_ns"] += attempt * 3600 * 10**9
            write(tmp_path / f"attempt_{attempt}", f"trace_{rank}", dump(rows))
    trace = load_trace([tmp_path])
    assert sorted(trace.records["collective_seq"].tolist()) == [1, 1, 3, 3]
    assert len(trace.warnings) == 1
    assert "attempt_0: holds older dumps of 2 ranks" in trace.warnings[0]


def test_json_copy_of_a_pickle_adds_nothing(tmp_path: Path) -> None:
    write(tmp_path, "_dump_0", dump([entry(1), pending(2)]))
    write(tmp_path, "_dump_0.json", dump([entry(1, frames=None), pending(2, frames=None)]))
    trace = load_trace([tmp_path])
    assert ops(trace, 0) == USUAL
    assert (trace.records["stack"] >= 0).all()


def test_log_beside_dumps_completes_them(tmp_path: Path) -> None:
    from .logs import timeout

    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    waits = (timeout(0, 2) + timeout(1, 2)).replace("E816 12:10:01", "E615 15:16:42")
    (tmp_path / "job.log").write_text(waits)  # of the day of the records
    trace = load_trace([tmp_path])
    rows = trace.records[trace.records["rank"] == 0]
    assert ops(trace, 0) == USUAL  # not a third row
    assert rows["flags"][1] & Flag.TIMED_OUT
    assert not rows["flags"][1] & Flag.SYNTHETIC
    assert ops(trace, 1) == [("all_reduce", 2, State.SCHEDULED)]
    assert len(trace.groups) == 1


def test_dump_without_a_version_keeps_its_listed_members(tmp_path: Path) -> None:
    """Only lists of torch 2.2 name no members; a collector that drops the version does."""
    held = {"process_group": ("5", "undefined"), "pg_id": 1}
    config = {"5": {"name": "5", "desc": "undefined", "ranks": "[0, 2]"}}
    for rank, entries in ((0, [entry(1, **held), pending(2, **held)]), (2, [entry(1, **held)])):
        document = dump(entries, pg_config=config, pg_status=None, version=None)
        document.pop("version", None)
        write(tmp_path, f"_dump_{rank}", document)
    trace = load_trace([tmp_path])
    assert {s.version for s in trace.sources} == {"unknown"}
    assert [g.ranks for g in trace.groups] == [(0, 2)]
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_optional_field_is_read_by_name(tmp_path: Path) -> None:
    """One entry has a root, another a reduce op: the number of fields is the same."""
    for rank in (0, 1):
        reduced = [entry(seq, reduce_op="SUM") for seq in (1, 3)]
        sent = entry(2, "nccl:broadcast", root=rank)
        write(tmp_path, f"dump_rank_{rank}", dump([reduced[0], sent, reduced[1]]))
    trace = load_trace([tmp_path])
    roots = {(int(r["rank"]), int(r["collective_seq"])): int(r["root"]) for r in trace.records}
    assert roots[0, 2] == 0
    assert roots[1, 2] == 1
    assert roots[0, 1] == roots[1, 3] == -1


def test_operation_in_a_batch_completes_with_its_batch(tmp_path: Path) -> None:
    """torch 2.4 to 2.9: the event after a collective in ``_coalescing_manager`` precedes the
    launch, and the group's counter follows it.
    """
    op = "nccl:all_gather_into_tensor_coalesced"
    for rank in range(4):
        entries = [
            entry(1, op, record_id=0),
            entry(1, "nccl:coalesced", record_id=1, input_sizes=[], output_sizes=[]),
        ]
        if rank != 0:
            entries += [
                entry(2, op, record_id=2),
                pending(2, "nccl:coalesced", record_id=3, input_sizes=[], output_sizes=[]),
            ]
        write(tmp_path, f"nccl_trace_rank_{rank}", dump(entries, world=4))
    trace = load_trace([tmp_path])
    assert trace.records["state"][-2:].tolist() == [State.SCHEDULED, State.SCHEDULED]
    assert trace.members["completed"].tolist() == [1, 1, 1, 1]
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (0,))


def test_non_root_of_a_scatter_has_no_input(tmp_path: Path) -> None:
    """torch records an undefined tensor for the empty list: no size, and a dtype of its own."""
    there = {"output_sizes": [[4096], [4096]], "output_dtypes": ["Float", "Float"]}
    nothing = {"output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
    for rank, outs in enumerate((there, nothing)):
        rows = [entry(1, "nccl:scatter", **outs), pending(2)]
        write(tmp_path, f"nccl_trace_rank_{rank}", dump(rows))
    trace = load_trace([tmp_path])
    scatters = [s for s in trace.signatures if s.op == "scatter"]
    assert {s.output_dtypes for s in scatters} == {("Float", "Float"), ()}
    assert diagnose(trace).verdict is not Verdict.DTYPE_MISMATCH
