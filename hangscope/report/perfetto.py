"""The run as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing.

A process is a rank, a thread is a group, a slice is an operation, and arrows join one collective
across its ranks. Operations that overlap on one group get further lanes, because slices of one
thread must nest. Times are microseconds after the earliest event, on the reference clock: epoch
microseconds would not fit a double with the nanoseconds kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import orjson

from hangscope.diagnosis.model import Diagnosis
from hangscope.report.escape import plain
from hangscope.report.formatting import place, tensors
from hangscope.report.spans import End, Spans, spans
from hangscope.trace.model import Flag, Trace, flagged

HOST_TID = 1_000_000_000
"""Thread id of the lane that shows what a culprit did outside collectives."""

_ARROW = "joined"
"""Name of all arrows: Perfetto matches an arrow's parts by id, category and name."""
_FIRST_TID = 1
"""Not 0, which Perfetto takes for the main thread and renumbers to the process id."""
_BATCH = 4096
_SHORTEST_NS = 1


def write(trace: Trace, diagnosis: Diagnosis, file: IO[bytes]) -> int:
    """Write `trace` to the binary `file` event by event; returns the number of events.

    Needs only a few integers of memory per record besides the trace, never the whole document.
    """
    timing = spans(trace)
    head = {
        "displayTimeUnit": "ms",
        "otherData": {
            "source": "hangscope",
            "epoch_ns": str(timing.first_ns),
            "verdict": diagnosis.verdict.value,
            "summary": plain(diagnosis.summary),
        },
    }
    file.write(orjson.dumps(head)[:-1] + b',"traceEvents":[\n')
    count, batch = 0, []
    for event in _events(trace, diagnosis, timing):
        batch.append(orjson.dumps(event))
        if len(batch) == _BATCH:
            file.write((b",\n" if count else b"") + b",\n".join(batch))
            count += len(batch)
            batch.clear()
    if batch:
        file.write((b",\n" if count else b"") + b",\n".join(batch))
        count += len(batch)
    file.write(b"\n]}\n")
    return count


def _events(trace: Trace, diagnosis: Diagnosis, timing: Spans) -> Iterator[dict[str, Any]]:
    yield from _process_names(trace, diagnosis)
    yield from _slices(trace, timing)
    yield from _host_slices(trace, diagnosis, timing)
    for finding in diagnosis.findings:
        if finding.began_ns:
            yield {
                "ph": "i",
                "s": "g",
                "name": plain(finding.summary),
                "cat": "diagnosis",
                "pid": finding.culprits[0] if finding.culprits else 0,
                "tid": HOST_TID,
                "ts": _us(finding.began_ns, timing),
            }


def _process_names(trace: Trace, diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    role_of = {r.rank: r.role for r in diagnosis.ranks}
    for rank in sorted(set(trace.ranks) | set(np.unique(trace.records["rank"]).tolist())):
        words = [f"rank {rank}"]
        facts = trace.ranks.get(rank)
        if facts is not None and facts.host:
            words.append(plain(facts.host, 80))
        if role_of.get(rank) == "culprit":
            words.append("CULPRIT")
        yield _meta("process_name", rank, 0, {"name": " · ".join(words)})
        order = rank - 1_000_000 if role_of.get(rank) == "culprit" else rank
        yield _meta("process_sort_index", rank, 0, {"sort_index": order})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _us(time_ns: int, timing: Spans) -> float:
    return max(0, time_ns - timing.first_ns) / 1000


class _Tables:
    """Texts that many events share, computed once."""

    def __init__(self, trace: Trace) -> None:
        self.names = [plain(s.op or "?", 80) for s in trace.signatures]
        self.shapes = [tensors(s.input_sizes, s.input_dtypes) for s in trace.signatures]
        self.places = [place(stack[0]) if stack else "" for stack in trace.stacks]
        # The extra entry at the end is for rows whose group is not known (-1).
        self.labels = [plain(g.label, 80) for g in trace.groups] + ["unknown group"]


def _slices(trace: Trace, timing: Spans) -> Iterator[dict[str, Any]]:
    """Slices rank by rank, each followed by its part of the arrow that joins the ranks."""
    records = trace.records
    flow_id, flow_part = _flows(trace, timing)
    tables = _Tables(trace)
    lanes: dict[int, list[int]] = {}
    rank_now = None
    for i in _in_order(np.lexsort((timing.start_ns, records["rank"]))):
        start, end = int(timing.start_ns[i]), int(timing.end_ns[i])
        if start <= 0:
            continue
        row = records[i]
        rank, group = int(row["rank"]), int(row["group"]) % len(tables.labels)
        if rank != rank_now:
            rank_now, lanes = rank, {}
        busy = lanes.setdefault(group, [])
        lane = _lane(busy, start, end)
        tid = _FIRST_TID + lane * len(tables.labels) + group
        if busy[lane] < 0:  # a lane's first slice
            label = tables.labels[group] if not lane else f"{tables.labels[group]} ({lane + 1})"
            yield _meta("thread_name", rank, tid, {"name": label})
        busy[lane] = max(end, start + _SHORTEST_NS)
        event = _slice(trace, tables, row, End(int(timing.end[i])))
        event.update(pid=rank, tid=tid, ts=_us(start, timing))
        event["dur"] = max(end - start, _SHORTEST_NS) / 1000
        yield event
        if flow_part[i]:
            part = {"ph": chr(flow_part[i]), "id": int(flow_id[i]), "cat": "flow"}
            part.update(name=_ARROW, pid=rank, tid=tid, ts=event["ts"])
            if part["ph"] == "f":
                part["bp"] = "e"
            yield part


def _slice(trace: Trace, tables: _Tables, row: np.void, ended: End) -> dict[str, Any]:
    """One operation as a complete event, without process, thread and time."""
    signature, stack = int(row["signature"]), int(row["stack"])
    p2p = bool(row["flags"] & int(Flag.P2P))
    seq = int(row["p2p_seq"] if p2p else row["collective_seq"])
    name = f"{tables.names[signature] if signature >= 0 else '?'} #{seq}"
    args: dict[str, Any] = {
        "seq": seq,
        "group": tables.labels[int(row["group"])],
        "record": int(row["record_id"]),
    }
    if signature >= 0 and tables.shapes[signature]:
        args["in"] = tables.shapes[signature]
    if row["peer"] >= 0:
        args["peer"] = int(row["peer"])
    if stack >= 0 and tables.places[stack]:
        args["at"] = tables.places[stack]
    event = {"ph": "X", "name": name, "cat": "p2p" if p2p else "collective", "args": args}
    if ended is End.OPEN:
        event["name"] = f"{name} (unfinished)"
        event["cat"] = f"{event['cat']},unfinished"
        event["cname"] = "terrible"
        args["unfinished"] = True
        if stack >= 0:
            args["stack"] = [place(f) for f in trace.stacks[stack]]
    elif ended is End.ASSUMED:
        args["end"] = "not recorded"
    return event


def _in_order(order: npt.NDArray[np.int64]) -> Iterator[int]:
    """The elements of `order` as Python integers, converted in chunks to save memory."""
    for begin in range(0, len(order), _BATCH):
        yield from order[begin : begin + _BATCH].tolist()


def _lane(ends: list[int], start: int, end: int) -> int:
    """The first lane in which this slice nests; if there is none, a new one with end -1.

    Slices that end together nest, so any number of unfinished ones share a lane.
    """
    for lane, busy_until in enumerate(ends):
        if busy_until <= start or busy_until == end:
            return lane
    ends.append(-1)
    return len(ends) - 1


def _flows(trace: Trace, timing: Spans) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """For each record the id of its arrow and its part in it: ``s``, ``t``, ``f``, or 0.

    A collective's key is (group, sequence number); a send and its recv share (group, sender,
    receiver, how many before). An arrow begins at the earliest member, as the format requires.
    """
    records = trace.records
    part = np.zeros(len(records), np.uint8)
    ids = np.zeros(len(records), np.int64)
    flags = records["flags"]
    p2p = flagged(flags, Flag.P2P)
    inner = flagged(flags, Flag.COALESCED_MEMBER)
    known = timing.start_ns > 0
    rows = np.flatnonzero(~p2p & ~inner & known & (records["collective_seq"] > 0))
    keys = [(rows, _key(records["group"][rows], records["collective_seq"][rows]))]
    pairs = np.flatnonzero(p2p & known & (records["peer"] >= 0))
    if len(pairs):
        is_send = np.array([s.op.startswith("send") for s in trace.signatures] + [False])
        sends = is_send[records["signature"][pairs]]
        source = np.where(sends, records["rank"][pairs], records["peer"][pairs])
        target = np.where(sends, records["peer"][pairs], records["rank"][pairs])
        pair = _key(records["group"][pairs], source, target)
        keys.append((pairs, _key(pair, _occurrence(_key(pair, sends.astype(np.int64))))))
    offset = 1
    for rows, key in keys:
        if not len(rows):
            continue
        order = np.lexsort((records["rank"][rows], timing.start_ns[rows], key))
        rows, key = rows[order], key[order]
        new = np.r_[True, key[1:] != key[:-1]]
        last = np.r_[new[1:], True]
        ids[rows] = np.cumsum(new) - 1 + offset
        part[rows] = ord("t")
        part[rows[last]] = ord("f")
        part[rows[new]] = ord("s")
        part[rows[new & last]] = 0  # alone: nothing to join
        offset += int(new.sum())
    return ids, part


def _key(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Map each distinct combination of `columns` to a dense integer."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        key = np.unique(key * max(len(values), 1) + inverse, return_inverse=True)[1]
    return key


def _occurrence(key: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each key, the number of equal keys before it."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    new = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(new, np.arange(len(key)), 0))
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - first
    return out


def _host_slices(trace: Trace, diagnosis: Diagnosis, timing: Spans) -> Iterator[dict[str, Any]]:
    """For culprits without pending operations: what they did from their last one to the end."""
    records = trace.records
    for finding in diagnosis.findings[:1]:
        for side in finding.sides:
            if side.op is not None:
                continue
            for rank in side.ranks:
                if rank not in finding.culprits:
                    continue
                issued = records["rank"] == rank
                seen = issued & (timing.end == End.SEEN)
                start = int(timing.end_ns[seen].max()) if seen.any() else finding.began_ns
                if not start or start >= timing.last_ns:
                    continue
                yield _meta("thread_name", rank, HOST_TID, {"name": "outside collectives"})
                yield {
                    "ph": "X",
                    "name": plain(side.activity or "elsewhere", 120),
                    "cat": "host",
                    "cname": "bad",
                    "pid": rank,
                    "tid": HOST_TID,
                    "ts": _us(start, timing),
                    "dur": (timing.last_ns - start) / 1000,
                    "args": {"stack": [place(f) for f in side.stack]},
                }
