"""The run as Flight Recorder dumps, version 2.10: one pickle a rank, of builtins only.

``torchfrtrace`` and every other reader of that format can take them. What the format has no place
for (who the rank is, where it ran) goes into an extra key that other readers pass over.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hangscope.diagnosis.frontier import returned
from hangscope.trace import own_story
from hangscope.trace.model import NONE, Flag, Group, Records, Signature, State, Trace

VERSION = "2.10"
FILE_PREFIX = "comm_lib_trace_rank_"
_LATEST_NS = 2**62

_STATES = {State.SCHEDULED: "scheduled", State.STARTED: "started", State.COMPLETED: "completed"}


def write(trace: Trace, out_dir: str | Path) -> list[Path]:
    """Write one dump for each rank that `trace` speaks of into `out_dir`; returns the files.

    The directory is made where it is missing; a file's time is that of the
    observation while the job lived. Raises `OSError` where a file cannot be written.
    """
    directory = Path(out_dir)
    directory.mkdir(parents=True, exist_ok=True)
    over = any(f.exit is not None or f.alive is False for f in trace.ranks.values())
    files = []
    for rank in sorted(set(trace.ranks) | set(np.unique(trace.records["rank"]).tolist())):
        if rank < 0:
            continue
        file = directory / f"{FILE_PREFIX}{rank}"
        file.write_bytes(dump_bytes(trace, rank))
        facts = trace.ranks.get(rank)
        seen_ns = (facts.observed_ns if facts else 0) or trace.observed_ns
        if 0 < seen_ns < _LATEST_NS and not over:
            # Readers take the file's time for that of the dump. Where the job has ended, which the
            # format cannot say, the time of writing shows at least that nothing moves any more.
            os.utime(file, ns=(seen_ns, seen_ns))
        files.append(file)
    return files


def dump_bytes(trace: Trace, rank: int) -> bytes:
    """The dump of one rank as the bytes of its file."""
    return pickle.dumps(to_dump(trace, rank), protocol=4)


def to_dump(trace: Trace, rank: int) -> dict[str, Any]:
    """The dump of one rank as builtin objects.

    Rows that a reader concluded from a counter are left out: nobody recorded them, and the counters
    stand in ``pg_status``.
    """
    mine = trace.records["rank"] == rank
    rows = trace.records[mine]
    # The format does not tell which operations block: that these are over has to be said here.
    rows["state"][returned(trace)[mine]] = State.COMPLETED
    rows = rows[(rows["flags"] & int(Flag.SYNTHETIC)) == 0]
    members = trace.members[trace.members["rank"] == rank]
    numbers = _groups_of(trace, rank, rows, members)
    names = _names(trace.groups, list(numbers))
    facts = trace.ranks.get(rank)
    # What a log tells of a rank's end means little without the log's other statements.
    from_logs = {source.format for source in trace.sources} == {"job-log"}
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {
            names[g]: {
                "name": names[g],
                "desc": trace.groups[g].desc or "undefined",
                "ranks": str(list(_members(trace, g))),
            }
            for g in numbers
        },
        "pg_status": {
            str(numbers[g]): status for g, status in _status(trace, rank, rows, members).items()
        },
        "entries": _entries(trace, rows, numbers, names, _shift(trace, rank)),
        own_story.KEY: {
            "rank": rank,
            "host": facts.host if facts else None,
            "pid": facts.pid if facts else None,
            "world_size": trace.world_size,
            "run_id": facts.run_id if facts else None,
            "timeout_s": trace.timeout_s,
            "flags": rows["flags"].tolist(),
            **(own_story.to_plain(facts) if facts and not from_logs else {}),
        },
    }


def _groups_of(trace: Trace, rank: int, rows: Records, members: Records) -> dict[int, int]:
    """Group index to the rank's own number for it (``pg_id``).

    Numbers follow the order of the names where those are numbers, as the runtime's own do: readers
    rely on that for groups without an entry.
    """
    used = [g for g in dict.fromkeys(rows["group"].tolist()) if g >= 0]
    used += [g for g in dict.fromkeys(members["group"].tolist()) if g >= 0 and g not in used]
    used += [i for i, g in enumerate(trace.groups) if rank in g.ranks and i not in used]
    return {g: number for number, g in enumerate(sorted(used, key=lambda g: _age(trace, g)))}


def _age(trace: Trace, group: int) -> tuple[int, int, str, int]:
    """Orders groups by numeric name, then all others."""
    name = trace.groups[group].name
    if name.isascii() and name.isdigit() and len(name) < 18:
        return 0, int(name), name, group
    return 1, 0, name, group


def _names(groups: Sequence[Group], used: list[int]) -> dict[int, str]:
    """A name for each group that no other group of this rank has.

    After ``init_process_group`` has run again the same name stands for another group: the newest
    keeps it, older ones say which epoch they belong to.
    """
    newest: dict[str, int] = {}
    for g in used:
        other = newest.get(groups[g].name)
        if other is None or (groups[g].epoch, g) > (groups[other].epoch, other):
            newest[groups[g].name] = g
    return {
        g: groups[g].name
        if newest[groups[g].name] == g
        else f"{groups[g].name}@epoch{groups[g].epoch}.{g}"
        for g in used
    }


def _members(trace: Trace, group: int) -> tuple[int, ...]:
    """The group's members; where no source lists them, the ranks that used it."""
    if trace.groups[group].ranks:
        return trace.groups[group].ranks
    used = trace.records["rank"][trace.records["group"] == group]
    return tuple(np.unique(used).tolist())


def _status(trace: Trace, rank: int, rows: Records, members: Records) -> dict[int, dict[str, int]]:
    """``pg_status`` of each group, from counters where a source had them, else from the rows."""
    out: dict[int, dict[str, int]] = {}
    collective = rows[(rows["flags"] & int(Flag.P2P)) == 0]
    for g in dict.fromkeys(collective["group"][collective["group"] >= 0].tolist()):
        mine = collective[collective["group"] == g]
        done = mine[mine["state"] == State.COMPLETED]["collective_seq"]
        out[g] = {
            "last_enqueued_collective": int(mine["collective_seq"].max()),
            "last_started_collective": NONE,
            "last_completed_collective": int(done.max()) if len(done) else NONE,
        }
    for member in members:
        if member["group"] < 0:
            continue
        out[int(member["group"])] = {
            "last_enqueued_collective": int(member["enqueued"]),
            "last_started_collective": int(member["started"]),
            "last_completed_collective": int(member["completed"]),
        }
    return dict(sorted(out.items()))


def _shift(trace: Trace, rank: int) -> int:
    """What to add to record ids: the format counts from 0, rings from 1.

    Readers conclude from the first id whether older records have been overwritten.
    """
    facts = trace.ranks.get(rank)
    ids = trace.records["record_id"][trace.records["rank"] == rank]
    if facts is None or facts.oldest_record_id < 1 or not len(ids):
        return 0
    return -1 if facts.oldest_record_id == int(ids.min()) else 0


def _entries(
    trace: Trace, rows: Records, numbers: dict[int, int], names: dict[int, str], shift: int
) -> list[dict[str, Any]]:
    # Equal stacks and sizes are one object each, so that the pickle holds them once.
    frames = [
        [{"name": f.name, "filename": f.filename, "line": f.line} for f in stack]
        for stack in trace.stacks
    ]
    sizes = [(_lists(s.input_sizes), _lists(s.output_sizes)) for s in trace.signatures]
    dtypes = [(list(s.input_dtypes or ()), list(s.output_dtypes or ())) for s in trace.signatures]
    groups = {g: (names[g], trace.groups[g].desc or "undefined") for g in names}
    local = {g: {r: i for i, r in enumerate(_members(trace, g))} for g in names}
    entries = []
    for row in rows:
        g, s = int(row["group"]), int(row["signature"])
        signature = trace.signatures[s] if s >= 0 else Signature("unknown")
        entry: dict[str, Any] = {
            "record_id": int(row["record_id"]) + shift,
            "pg_id": numbers.get(g, NONE),
            "process_group": groups.get(g, ("", "undefined")),
            "collective_seq_id": int(row["collective_seq"]),
            "p2p_seq_id": int(row["p2p_seq"]),
            "op_id": int(row["op_id"]),
            "profiling_name": _profiling_name(signature, row, trace, local.get(g, {})),
            "time_created_ns": int(row["created_ns"]),
            "input_sizes": sizes[s][0] if s >= 0 else [],
            "input_dtypes": dtypes[s][0] if s >= 0 else [],
            "output_sizes": sizes[s][1] if s >= 0 else [],
            "output_dtypes": dtypes[s][1] if s >= 0 else [],
            "state": _STATES.get(State(int(row["state"])), "scheduled"),
            "time_discovered_started_ns": int(row["started_ns"]) or None,
            "time_discovered_completed_ns": int(row["completed_ns"]) or None,
            "retired": bool(row["flags"] & int(Flag.RETIRED)),
            "timeout_ms": int(row["timeout_ms"]),
            "is_p2p": bool(row["flags"] & int(Flag.P2P)),
            "thread_id": str(int(row["thread"])),
            "thread_name": "",
        }
        if row["started_ns"] > 0 and row["completed_ns"] > 0:
            entry["duration_ms"] = (int(row["completed_ns"]) - int(row["started_ns"])) / 1e6
        if (splits := signature.input_splits) is not None:
            entry["input_split_sizes"] = list(splits)
        if (splits := signature.output_splits) is not None:
            entry["output_split_sizes"] = list(splits)
        if row["root"] >= 0:  # of a send or recv: its tag
            entry["root"] = int(row["root"])
        if signature.reduce_op:
            entry["reduce_op"] = signature.reduce_op
        if row["stack"] >= 0:
            entry["frames"] = frames[int(row["stack"])]
        entries.append(entry)
    return entries


def _lists(sizes: tuple[tuple[int, ...], ...] | None) -> list[list[int]]:
    return [list(s) for s in sizes or ()]


def _profiling_name(signature: Signature, row: np.void, trace: Trace, local: dict[int, int]) -> str:
    """``nccl:all_reduce``; for point-to-point ``nccl:send 0->1`` with ranks within the group."""
    if signature.raw.count(":") == 1 and not row["flags"] & int(Flag.P2P):
        return signature.raw
    group = int(row["group"])
    backend = signature.backend or (trace.groups[group].backend if group >= 0 else "")
    backend = (backend or "nccl").rsplit(":", 1)[-1]
    if not row["flags"] & int(Flag.P2P):
        return f"{backend}:{signature.op}"
    me = local.get(int(row["rank"]), int(row["rank"]))
    peer = int(row["peer"])
    other = str(local.get(peer, peer)) if peer >= 0 else "?"
    if signature.op.startswith("send"):
        return f"{backend}:send {me}->{other}"
    if signature.op.startswith("recv"):
        return f"{backend}:recv {me}<-{other}"
    return signature.raw if signature.raw.count(":") == 1 else f"{backend}:{signature.op}"
