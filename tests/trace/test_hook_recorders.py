"""Recorders built on hooks: one counter for all groups, retired entries with unchanged state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, State, Trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

SECOND = 10**9
WORLD = 4
PAIRS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}

Entry = dict[str, Any]


def _written(folder: Path, rank: int, document: dict[str, Any], at_s: float = 700) -> None:
    path = write(folder, f"comm_lib_trace_rank_{rank}", document)
    os.utime(path, ns=(BASE_NS + int(at_s * SECOND),) * 2)


def _one_counter(rank: int, groups: list[str], open_from: int) -> dict[str, Any]:
    """torchcomms: every operation of the process gets the next number, and none says completed."""
    entries = []
    for number, group in enumerate(groups):
        over = number < open_from
        entries.append(
            entry(
                number,
                f"ncclx:{'send' if group == 'p' else 'all_reduce'}",
                record_id=number,
                op_id=number,
                pg_id=0 if group == "world" else 1,
                process_group=("world" if group == "world" else "tp", "ncclx"),
                time_created_ns=BASE_NS + number * SECOND,
                state="started",
                time_discovered_completed_ns=None,
                retired=over,
                duration_ms=1.5 if over else None,
            )
        )
    config = {
        "world": {"name": "world", "desc": "ncclx", "ranks": "[0,1,2,3]"},
        "tp": {"name": "tp", "desc": "ncclx", "ranks": str(list(PAIRS[rank]))},
    }
    return dump(entries, pg_config=config, pg_status={})


def _judged(folder: Path) -> tuple[Verdict, tuple[int, ...]]:
    found = diagnose(load_trace([folder]))
    return found.verdict, found.culprits


def test_one_counter_for_all_groups_is_split(tmp_path: Path) -> None:
    """Pairs of ranks have met a different number of times, so their raw numbers disagree."""
    for rank in range(WORLD):
        before = ["tp"] * (2 if rank < 2 else 3) + ["world"]
        groups = before if rank == 2 else [*before, "world"]
        _written(tmp_path, rank, _one_counter(rank, groups, len(before)))
    trace = load_trace([tmp_path])
    world = next(i for i, g in enumerate(trace.groups) if g.name == "world")
    rows = trace.records[(trace.records["group"] == world) & (trace.records["rank"] != 2)]
    assert rows["collective_seq"].tolist() == [1, 2] * 3
    assert rows["state"].tolist() == [State.COMPLETED, State.STARTED] * 3
    assert _judged(tmp_path) == (Verdict.MISSING_RANK, (2,))


def test_one_counter_without_its_beginning_gives_no_numbers(tmp_path: Path) -> None:
    """After the buffer has wrapped, nothing shows how often a rank has used each group."""
    for rank in range(WORLD):
        groups = ["tp"] * (10 + rank // 2) + ["world"] * 3
        document = _one_counter(rank, groups, len(groups) - 1)
        document["entries"] = document["entries"][-4:]
        for row in document["entries"]:  # pairs that meet more often do it in the same time
            row["time_created_ns"] -= rank // 2 * SECOND
        _written(tmp_path, rank, document)
    trace = load_trace([tmp_path])
    assert not trace.records["collective_seq"].any()
    assert all(facts.oldest_record_id > 1 for facts in trace.ranks.values())
    assert diagnose(trace).culprits == ()


def test_numbers_of_a_single_group_are_comparable(tmp_path: Path) -> None:
    """Only unfinished entries are listed, and each rank has issued a different number of others."""
    for rank in range(WORLD):
        document = _one_counter(rank, ["tp"] * (5 + rank) + ["world"], 5 + rank)
        document["entries"] = document["entries"][-1:]
        _written(tmp_path, rank, document)
    trace = load_trace([tmp_path])
    assert not trace.records["collective_seq"].any()
    assert diagnose(trace).culprits == ()


def test_counters_per_group_are_unchanged(tmp_path: Path) -> None:
    """Of two groups, one was used once: its number equals its record id by coincidence."""
    rows = [
        entry(1, record_id=1, process_group=("1", "tp"), pg_id=1),
        pending(2, record_id=2, process_group=("1", "tp"), pg_id=1),
    ]
    _written(tmp_path, 0, dump(rows))
    assert load_trace([tmp_path]).records["collective_seq"].tolist() == [1, 2]


def _at_issue(count: int, backend: str = "ucc") -> dict[str, Any]:
    rows = [
        entry(n, f"{backend}:all_reduce", state="scheduled", time_discovered_completed_ns=None)
        for n in range(1, count + 1)
    ]
    status = {
        "0": {
            "last_enqueued_collective": count - 1,
            "last_started_collective": -1,
            "last_completed_collective": -1,
        }
    }
    return dump(rows, WORLD, pg_status=status)


def _flags(trace: Trace) -> set[int]:
    return set((trace.records["flags"] & int(Flag.UNOBSERVED | Flag.RETIRED)).tolist())


def test_entry_retired_when_issued_may_have_completed(tmp_path: Path) -> None:
    for rank in range(WORLD):
        _written(tmp_path, rank, _at_issue(6))
    trace = load_trace([tmp_path])
    assert _flags(trace) == {int(Flag.UNOBSERVED)}
    assert (trace.members["completed"] == -1).all()
    assert diagnose(trace).culprits == ()
    assert diagnose(trace).confidence.value != "certain"


def test_rank_that_issued_less_is_missing_in_hook_dumps(tmp_path: Path) -> None:
    for rank in range(WORLD):
        _written(tmp_path, rank, _at_issue(5 if rank == 1 else 6))
    assert _judged(tmp_path) == (Verdict.MISSING_RANK, (1,))


def test_operations_that_the_root_completes_alone_hide_no_missing_rank(tmp_path: Path) -> None:
    for rank in range(WORLD):
        document = _at_issue(6 if rank == 1 else 8)
        for row in document["entries"]:
            if row["collective_seq_id"] in (1, 7):
                row["profiling_name"] = "ucc:broadcast"
        _written(tmp_path, rank, document)
    assert _judged(tmp_path) == (Verdict.MISSING_RANK, (1,))


def test_entry_retired_by_nccls_watchdog_has_timed_out(tmp_path: Path) -> None:
    """A backend that records itself retires entries that time out."""
    for rank in range(WORLD):
        _written(tmp_path, rank, _at_issue(2, "nccl"))
    assert _flags(load_trace([tmp_path])) == {int(Flag.RETIRED)}


def test_counters_may_count_operations_of_all_kinds(tmp_path: Path) -> None:
    """The hook's counters are ``op_id``: 7 is the collective of number 5."""
    for rank in range(2):
        send = {"is_p2p": True, "process_group": ("0", "default_pg")}
        rows = [entry(n, "nccl2:all_reduce", op_id=n) for n in range(1, 4)]
        name = "nccl2:send 0->1" if rank == 0 else "nccl2:recv 1<-0"
        rows += [entry(3, name, record_id=3 + k, op_id=4 + k, p2p_seq_id=k + 1, **send)
                 for k in range(2)]  # fmt: skip
        rows += [entry(4, "nccl2:all_reduce", record_id=5, op_id=6, p2p_seq_id=2)]
        rows += [pending(5, "nccl2:all_reduce", record_id=6, op_id=7, p2p_seq_id=2)]
        status = {"last_enqueued_collective": 7, "last_started_collective": -1}
        status["last_completed_collective"] = 6
        _written(tmp_path, rank, dump(rows, pg_status={"0": status}))
    trace = load_trace([tmp_path])
    assert trace.members[["enqueued", "completed", "p2p_enqueued"]].tolist() == [(5, 4, 2)] * 2
    assert _judged(tmp_path) == (Verdict.STUCK_COLLECTIVE, ())


def test_recorder_that_was_reset_has_lost_its_beginning(tmp_path: Path) -> None:
    rows = [entry(400, record_id=0), pending(401, record_id=1)]
    _written(tmp_path, 0, dump(rows, 1))
    assert load_trace([tmp_path]).ranks[0].oldest_record_id > 1


def _nccl2(rank: int, received: int, steps: int = 4) -> dict[str, Any]:
    """torch 2.15: a ring of batches with a collective at the end of each step, which it observes;
    of what is in a batch it notes the end when it is issued.
    """
    entries: list[dict[str, Any]] = []
    pairs, number = 0, 0

    def add(op: str, *, over_after_ns: int | None, p2p: bool, size: int) -> None:
        nonlocal pairs, number
        pairs, number = pairs + p2p, number + (not p2p)
        created = BASE_NS + len(entries) * 10_000_000
        over = None if over_after_ns is None else created + over_after_ns
        entries.append(
            entry(
                number,
                f"nccl2:{op}",
                record_id=len(entries),
                op_id=len(entries),
                p2p_seq_id=pairs,
                time_created_ns=created,
                state="scheduled" if over is None else "completed",
                time_discovered_started_ns=over,
                time_discovered_completed_ns=over,
                retired=over is not None,
                is_p2p=p2p,
                input_sizes=[[size]],
                output_sizes=[[size]],
                timeout_ms=10_000,
            )
        )

    for step in range(steps):
        last = step == steps - 1
        add(f"send {rank}->{(rank + 1) % WORLD}", over_after_ns=3_000, p2p=True, size=8)
        if step < received:
            add(f"recv {rank}<-{(rank - 1) % WORLD}", over_after_ns=800_000, p2p=True, size=8)
        if not (last and received > step and rank == 1):
            add("all_reduce", over_after_ns=None if last else 2_000_000, p2p=False, size=64)
    document = dump(entries, world=WORLD)
    document["pg_status"]["0"] |= {
        "last_enqueued_collective": len(entries) - 1,
        "last_completed_collective": max(
            e["op_id"] for e in entries if e["retired"] and not e["is_p2p"]
        ),
    }
    return document


def test_completions_recorded_at_issue_are_ignored(tmp_path: Path) -> None:
    """What precedes a completed collective is complete; what follows it is unknown."""
    _written(tmp_path, 0, _nccl2(0, received=4))
    records = load_trace([tmp_path]).records
    pairs = records[(records["flags"] & int(Flag.P2P)) != 0]
    assert pairs["state"].tolist() == [State.COMPLETED] * 6 + [State.SCHEDULED] * 2
    assert ((pairs["flags"] & int(Flag.UNOBSERVED)) != 0).tolist() == [False] * 6 + [True] * 2
    collectives = records[(records["flags"] & int(Flag.P2P)) == 0]
    assert collectives["state"].tolist() == [State.COMPLETED] * 3 + [State.SCHEDULED]


def test_p2p_operation_without_a_possible_partner_waits(tmp_path: Path) -> None:
    """Rank 2 skips a receive: rank 1, whose send has no partner, is not to blame."""
    for rank in range(WORLD):
        _written(tmp_path, rank, _nccl2(rank, received=3 if rank == 2 else 4))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (2,))
    assert found.confidence is not Confidence.CERTAIN


def test_paired_p2p_operations_excuse_no_rank(tmp_path: Path) -> None:
    """Rank 1 has issued all of its last batch, and so have its partners: it is elsewhere."""
    for rank in range(WORLD):
        _written(tmp_path, rank, _nccl2(rank, received=4))
    assert _judged(tmp_path) == (Verdict.MISSING_RANK, (1,))
