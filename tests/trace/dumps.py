"""Builds Flight Recorder dumps for tests, as the various versions and dialects write them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from hangscope.trace.model import State, Trace

FRAMES = [
    {"name": "forward", "filename": "/app/model.py", "line": 12},
    {"name": "<module>", "filename": "/app/train.py", "line": 40},
]
BASE_NS = 1_750_000_000_000_000_000


def entry(seq: int, op: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """One entry of dump version 2.10; a change to None leaves the field out."""
    made: dict[str, Any] = {
        "frames": FRAMES,
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": op,
        "time_created_ns": BASE_NS + seq * 10**9,
        "input_sizes": [[4096]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4096]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": BASE_NS + seq * 10**9 + 5 * 10**8,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "thread_id": "140597754833792",
        "thread_name": "python3",
    }
    made.update(changes)
    return {key: value for key, value in made.items() if value is not None or key in _NULLABLE}


_NULLABLE = ("time_discovered_started_ns", "time_discovered_completed_ns")


def pending(seq: int, op: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """An entry that has not finished."""
    return entry(
        seq,
        op,
        **{
            "state": "scheduled",
            "retired": False,
            "time_discovered_completed_ns": None,
            **changes,
        },
    )


def dump(
    entries: list[dict[str, Any]], world: int = 2, version: str = "2.10", **changes: Any
) -> dict[str, Any]:
    """A whole dump of one rank."""
    last = max((e.get("collective_seq_id", 0) for e in entries), default=-1)
    done = max(
        (e.get("collective_seq_id", 0) for e in entries if e.get("state") == "completed"),
        default=-1,
    )
    made = {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": done,
            }
        },
        "entries": entries,
    }
    made.update(changes)
    return {key: value for key, value in made.items() if value is not None}


def write(folder: Path, name: str, document: Any) -> Path:
    """Write a dump as the name says: JSON for ``.json``, else a pickle."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps(document))
    else:
        path.write_bytes(pickle.dumps(document, 2))
    return path


Entries = list[dict[str, Any]]
Members = Mapping[str, tuple[str, Iterable[int]]]


def listed(groups: Members) -> dict[str, dict[str, str]]:
    """The ``pg_config`` of groups: their descriptions and members by name."""
    return {
        name: {"name": name, "desc": desc, "ranks": str([*ranks])}
        for name, (desc, ranks) in groups.items()
    }


def judged(folder: Path, rows: Mapping[int, Entries], groups: Members) -> Diagnosis:
    """What the dumps of these ranks say, which list the groups and have no counters."""
    for rank, entries in rows.items():
        document = dump(entries, pg_config=listed(groups), pg_status=None)
        write(folder, f"trace_{rank}", document)
    return diagnose(load_trace([folder]))


def ops(trace: Trace, rank: int) -> list[tuple[str, int, int]]:
    """(op, sequence number, state) of one rank in order."""
    rows = trace.records[trace.records["rank"] == rank]
    return [
        (trace.signatures[r["signature"]].op, int(r["collective_seq"]), int(r["state"]))
        for r in rows
    ]


USUAL = [("all_reduce", 1, State.COMPLETED), ("all_reduce", 2, State.SCHEDULED)]
