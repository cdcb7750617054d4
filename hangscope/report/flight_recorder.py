"""The run as Flight Recorder dumps, version 2.10: one pickle per rank, of builtins only.

``torchfrtrace`` and every other reader of that format can read them. Information that the format
has no field for (which process the rank is, where it ran) goes into an extra key that other readers
ignore.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hangscope.diagnosis.records.blocking_calls import returned
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.report.json import frames
from hangscope.trace.flight_recorder import hangscope_extension
from hangscope.trace.job_selection.duplicate_ranks import KEY as TWINS
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks
from hangscope.trace.model import NONE, Flag, Group, Records, Signature, State, Trace, flagged
from hangscope.trace.verdict_codec import OWN_VERDICT, encode_verdict

VERSION = "2.10"
FILE_PREFIX = "comm_lib_trace_rank_"
_LATEST_NS = 2**62
_PROTOCOL = 4

_STATES: dict[int, str] = {
    State.SCHEDULED: "scheduled",
    State.STARTED: "started",
    State.COMPLETED: "completed",
}


def write(trace: Trace, out_dir: str | Path) -> list[Path]:
    """Write one dump for each rank in `trace` into `out_dir`; returns the files.

    Creates the directory if it is missing. If the job was alive when observed, a file's mtime is
    the time of the observation. Raises `OSError` if a file cannot be written.
    """
    directory = Path(out_dir)
    directory.mkdir(parents=True, exist_ok=True)
    over = any(f.exit is not None or f.alive is False for f in trace.ranks.values())
    shared = _Shared(trace)
    files = []
    for rank in shared.ranks:
        file = directory / f"{FILE_PREFIX}{rank}"
        file.write_bytes(pickle.dumps(_dump(shared, rank), protocol=_PROTOCOL))
        facts = trace.ranks.get(rank)
        seen_ns = (facts.observed_ns if facts else 0) or trace.observed_ns
        if 0 < seen_ns < _LATEST_NS and not over:
            # Readers take a file's mtime as the time of the dump. The format cannot say that a job
            # has ended; the time of writing then shows at least that nothing has moved for long.
            os.utime(file, ns=(seen_ns, seen_ns))
        files.append(file)
    return files


def dump_bytes(trace: Trace, rank: int) -> bytes:
    """The dump of one rank as the bytes of its file."""
    return pickle.dumps(to_dump(trace, rank), protocol=_PROTOCOL)


def to_dump(trace: Trace, rank: int) -> dict[str, Any]:
    """The dump of one rank as builtin objects.

    Rows that a reader inferred from a counter are left out: nobody recorded them, and ``pg_status``
    holds the counters.
    """
    return _dump(_Shared(trace), rank)


class _Tensors(NamedTuple):
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]]
    output_dtypes: list[str]


class _Shared:
    """Data that the dumps of all ranks share, collected in one pass over the trace.

    Stacks and signatures are converted when a record first uses them. Equal ones are one object, so
    that a pickle stores them once.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.bounds = rank_bounds(trace)
        self.ranks = sorted(rank for rank in {*trace.ranks, *self.bounds} if rank >= 0)
        self.verdicts = [encode_verdict(c) for c in trace.claims if c.kind == OWN_VERDICT]
        """What a monitor concluded: told once, in the dump of the first rank."""
        self._returned = returned(trace)
        self._members_of_rank = np.argsort(trace.members["rank"], kind="stable")
        self._rank_of_member = trace.members["rank"][self._members_of_rank]
        self._groups_of_rank: dict[int, list[int]] = {}
        for number, group in enumerate(trace.groups):
            for rank in group.ranks:
                self._groups_of_rank.setdefault(rank, []).append(number)
        self._users: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, dict[int, int]] = {}
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._tensors: dict[int, _Tensors] = {}

    def rows(self, rank: int) -> Records:
        """A copy of the rank's records; operations that its later calls show to be over are marked.

        The format does not tell which operations block, so a reader could not infer that itself.
        """
        start, stop = self.bounds.get(rank, (0, 0))
        rows = self.trace.records[start:stop].copy()
        rows["state"][self._returned[start:stop]] = State.COMPLETED
        return rows

    def counters(self, rank: int) -> Records:
        """The rank's rows of `Trace.members`."""
        start, stop = np.searchsorted(self._rank_of_member, [rank, rank + 1])
        return self.trace.members[self._members_of_rank[start:stop]]

    def groups_of(self, rank: int) -> list[int]:
        """Groups that list the rank as a member."""
        return self._groups_of_rank.get(rank, [])

    def members(self, group: int) -> tuple[int, ...]:
        """The group's members or, if no source lists them, the ranks that used it."""
        if self.trace.groups[group].ranks:
            return self.trace.groups[group].ranks
        if group not in self._users:
            used = self.trace.records["rank"][self.trace.records["group"] == group]
            self._users[group] = tuple(np.unique(used).tolist())
        return self._users[group]

    def places(self, group: int) -> dict[int, int]:
        """Each member's rank within the group."""
        if group not in self._places:
            self._places[group] = {r: i for i, r in enumerate(self.members(group))}
        return self._places[group]

    def frames(self, stack: int) -> list[dict[str, Any]]:
        """A stack in the dump's format."""
        if stack not in self._frames:
            self._frames[stack] = frames(self.trace.stacks[stack])
        return self._frames[stack]

    def tensors(self, signature: int) -> _Tensors:
        """Sizes and dtypes of an operation's inputs and outputs in the dump's format."""
        if signature < 0:
            return _Tensors([], [], [], [])
        if signature not in self._tensors:
            known = self.trace.signatures[signature]
            self._tensors[signature] = _Tensors(
                *_flattened(known.input_sizes, known.input_dtypes, known.op == "reduce_scatter"),
                *_flattened(known.output_sizes, known.output_dtypes, known.op == "all_gather"),
            )
        return self._tensors[signature]


def _dump(shared: _Shared, rank: int) -> dict[str, Any]:
    trace = shared.trace
    rows = shared.rows(rank)
    shift = _shift(trace, rank, rows)
    rows = rows[~flagged(rows["flags"], Flag.SYNTHETIC)]
    members = shared.counters(rank)
    numbers = _groups_of(shared, rank, rows, members)
    names = _names(trace.groups, list(numbers))
    facts = trace.ranks.get(rank)
    # What a log says about a rank's end means little without the rest of the log.
    observed = facts is not None and not trace.only_logs
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {
            names[g]: {
                "name": names[g],
                "desc": trace.groups[g].desc or "undefined",
                "ranks": str(list(shared.members(g))),
            }
            for g in numbers
        },
        "pg_status": {str(numbers[g]): status for g, status in _status(rows, members).items()},
        "entries": _entries(shared, rows, numbers, names, shift),
        hangscope_extension.KEY: {
            "rank": rank,
            "host": facts.host if facts else None,
            "pid": facts.pid if facts else None,
            # The rank's own value: that it differs from the others' may be the whole problem.
            "world_size": (facts.world_size if facts else None) or trace.world_size,
            TWINS: duplicate_ranks(trace).get(rank),
            "run_id": facts.run_id if facts else None,
            "timeout_s": trace.timeout_s,
            "looks": trace.looks if trace.live else None,
            hangscope_extension.VERDICTS: shared.verdicts if shared.ranks[:1] == [rank] else [],
            "flags": rows["flags"].tolist(),
            "unlisted_groups": [names[g] for g in numbers if not trace.groups[g].listed],
            **(hangscope_extension.encode_facts(facts) if facts and observed else {}),
        },
    }


def _groups_of(shared: _Shared, rank: int, rows: Records, members: Records) -> dict[int, int]:
    """Group index to the rank's own number for it (``pg_id``).

    If the names are numbers, ids follow their order, as the runtime's own ids do: readers rely on
    that for groups without an entry.
    """
    trace = shared.trace
    used = {g for g in (*rows["group"].tolist(), *members["group"].tolist()) if g >= 0}
    used.update(shared.groups_of(rank))
    return {g: number for number, g in enumerate(sorted(used, key=lambda g: _age(trace, g)))}


def _age(trace: Trace, group: int) -> tuple[int, int, str, int]:
    """Sort key of a group: numeric names first, by number, then all others."""
    name = trace.groups[group].name
    if name.isascii() and name.isdigit() and len(name) < 18:
        return 0, int(name), name, group
    return 1, 0, name, group


def _names(groups: Sequence[Group], used: list[int]) -> dict[int, str]:
    """A name for each group that no other group of this rank has.

    After another ``init_process_group`` the same name is used for a new group. The newest group
    keeps the name, older ones get their epoch appended.
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


def _status(rows: Records, members: Records) -> dict[int, dict[str, int]]:
    """``pg_status`` of each group, from counters if a source had them, else from the rows."""
    out: dict[int, dict[str, int]] = {}
    collective = rows[~flagged(rows["flags"], Flag.P2P)]
    for g in dict.fromkeys(collective["group"][collective["group"] >= 0].tolist()):
        issued = collective[collective["group"] == g]
        done = issued[issued["state"] == State.COMPLETED]["collective_seq"]
        out[g] = {
            "last_enqueued_collective": int(issued["collective_seq"].max()),
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


def _shift(trace: Trace, rank: int, rows: Records) -> int:
    """Offset to add to record ids, as the format counts from 0 and rings from 1.

    Readers infer from the first id whether older records have been overwritten.
    """
    facts = trace.ranks.get(rank)
    if facts is None or facts.oldest_record_id < 1 or not len(rows):
        return 0
    return -1 if facts.oldest_record_id == int(rows["record_id"].min()) else 0


def _entries(
    shared: _Shared, rows: Records, numbers: dict[int, int], names: dict[int, str], shift: int
) -> list[dict[str, Any]]:
    trace = shared.trace
    groups = {g: (names[g], trace.groups[g].desc or "undefined") for g in names}
    entries = []
    for row in rows:
        g, s = int(row["group"]), int(row["signature"])
        signature = trace.signatures[s] if s >= 0 else Signature("unknown")
        tensors = shared.tensors(s)
        local = shared.places(g) if g >= 0 else {}
        entry: dict[str, Any] = {
            "record_id": int(row["record_id"]) + shift,
            "pg_id": numbers.get(g, NONE),
            "process_group": groups.get(g, ("", "undefined")),
            "collective_seq_id": int(row["collective_seq"]),
            "p2p_seq_id": int(row["p2p_seq"]),
            "op_id": int(row["op_id"]),
            "profiling_name": _profiling_name(signature, row, trace, local),
            "time_created_ns": int(row["created_ns"]),
            **tensors._asdict(),
            "state": _STATES.get(int(row["state"]), "scheduled"),
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
            entry["frames"] = shared.frames(int(row["stack"]))
        entries.append(entry)
    return entries


def _flattened(
    sizes: tuple[tuple[int, ...], ...] | None, dtypes: tuple[str, ...] | None, one_each: bool
) -> tuple[list[list[int]], list[str]]:
    """Sizes and dtypes as a backend's own recorder has them.

    NCCL and Gloo record a list with an equal tensor for each member as one tensor, whose first
    dimension are the members; ``torchfrtrace`` takes anything else for a mismatch.
    """
    lists, types = [list(size) for size in sizes or ()], list(dtypes or ())
    if one_each and len(lists) > 1 and all(size == lists[0] for size in lists):
        return [[len(lists), *lists[0]]], types[:1]
    return lists, types


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
