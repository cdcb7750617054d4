"""The Chrome trace follows the rules of its format and is valid JSON."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hangscope.report import perfetto
from hangscope.report.spans import End, spans
from hangscope.trace.model import Flag, Signature, State, Trace
from tests import view_samples as samples


def written(job: samples.Job) -> dict[str, Any]:
    out = io.BytesIO()
    count = perfetto.write(job.trace, job.diagnosis, out)
    document = json.loads(out.getvalue())
    assert isinstance(document, dict)
    assert len(document["traceEvents"]) == count
    return document


def validate(document: dict[str, Any]) -> None:
    """The rules of the Trace Event Format that viewers rely on."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    named = set()
    for event in document["traceEvents"]:
        assert event["ph"] in "XMstfi"
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            assert ("thread_name", event["pid"], event["tid"]) in named
            assert ("process_name", event["pid"], 0) in named
        elif event["ph"] in "stf":
            # An arrow ends in the slice around its time, not in the next one.
            assert event.get("bp") == ("e" if event["ph"] == "f" else None)
            flows[event["id"]].append(event)
            assert any(
                start <= event["ts"] <= end for start, end in slices[event["pid"], event["tid"]]
            )
    for spans_ in slices.values():  # slices of one thread nest
        stack: list[float] = []
        for start, end in sorted(spans_, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= start + 1e-6:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-3
            stack.append(end)
    for steps in flows.values():
        steps.sort(key=lambda e: (e["ts"], "stf".index(e["ph"])))
        assert steps[0]["ph"] == "s"
        assert steps[-1]["ph"] == "f"
        assert all(e["ph"] == "t" for e in steps[1:-1])


def test_format_is_valid_and_ranks_are_processes() -> None:
    document = written(samples.hang(16, culprit=5, hosts=2))
    validate(document)
    names = {
        e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"
    }
    assert names[0] == "rank 0 · node0"
    assert names[5] == "rank 5 · node0 · CULPRIT"
    threads = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert {"dp", "tp0", "tp7", "outside collectives"} <= threads


def test_time_outside_collectives_begins_with_the_ranks_own_last_completion() -> None:
    job = samples.hang(4, culprit=2)
    records = job.trace.records.copy()
    own = (records["rank"] == 2) & (records["completed_ns"] > 0)
    last = np.flatnonzero(own)[np.argmax(records["completed_ns"][own])]
    records["completed_ns"][last] += samples.SECOND // 4
    job = replace(job, trace=replace(job.trace, records=records))
    events = [e for e in written(job)["traceEvents"] if e["pid"] == 2]
    (thread,) = [e["tid"] for e in events if e.get("args") == {"name": "outside collectives"}]
    slices = [e for e in events if e["ph"] == "X"]
    (outside,) = [e for e in slices if e["tid"] == thread]
    ends = [e["ts"] + e["dur"] for e in slices if e["tid"] != thread]
    assert outside["ts"] == pytest.approx(max(ends))


def test_unknown_signature_shows_no_shape() -> None:
    trace = samples.hang(2, culprit=1).trace
    records = trace.records[:1].copy()
    records["signature"] = -1
    job = replace(samples.hang(2, culprit=1), trace=replace(trace, records=records))
    (event,) = [e for e in written(job)["traceEvents"] if e["ph"] == "X" and "seq" in e["args"]]
    assert event["name"].startswith("? #")
    assert "in" not in event["args"]


def arrows(document: dict[str, Any]) -> dict[int, list[tuple[int, str]]]:
    """(rank, the slice that it points to) of every part of each arrow.

    Readers know an arrow by id, category and name together.
    """
    points = [e for e in document["traceEvents"] if e["ph"] in "stf"]
    assert len({(e["cat"], e["name"]) for e in points}) == 1
    slices = {
        (e["pid"], e["tid"], e["ts"]): e["name"] for e in document["traceEvents"] if e["ph"] == "X"
    }
    found = defaultdict(list)
    for e in points:
        found[e["id"]].append((e["pid"], slices[e["pid"], e["tid"], e["ts"]]))
    return found


def test_one_arrow_joins_one_collective_across_ranks() -> None:
    job = samples.hang(8, culprit=5)
    document = written(job)
    flows = defaultdict(set)
    for number, parts in arrows(document).items():
        for rank, name in parts:
            flows[number, name].add(rank)
    reduces = [pids for (_, name), pids in flows.items() if name == "all_reduce #7"]
    assert reduces == [set(range(8))]
    gathers = [pids for (_, name), pids in flows.items() if name == "_all_gather_base #1"]
    assert sorted(map(sorted, gathers)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    stuck = [p for (_, n), p in flows.items() if n.startswith("all_reduce #103")]
    assert stuck == [set(range(8)) - {5}]


def test_unfinished_operations_reach_the_end_and_say_so() -> None:
    job = samples.hang()
    document = written(job)
    first_ns = int(document["otherData"]["epoch_ns"])
    open_slices = [e for e in document["traceEvents"] if "unfinished" in e.get("cat", "")]
    assert sorted(e["pid"] for e in open_slices) == [0, 1, 3]
    for e in open_slices:
        assert e["name"] == "all_reduce #103 (unfinished)"
        assert e["args"]["stack"][0] == "train.py:88 in backward"
        assert e["ts"] + e["dur"] == pytest.approx((samples.NOW_NS - first_ns) / 1000, abs=1)
    [elsewhere] = [e for e in document["traceEvents"] if e.get("cat") == "host"]
    assert elsewhere["name"] == "in load_batch"
    assert elsewhere["pid"] == 2


def test_clock_offsets_are_applied() -> None:
    job = samples.hang()
    skewed = dict(job.trace.ranks)
    skewed[1] = replace(skewed[1], clock_offset_ns=5 * samples.SECOND)
    moved = samples.Job(replace(job.trace, ranks=skewed), job.diagnosis)

    def start(document: dict[str, Any], pid: int) -> float:
        return next(e["ts"] for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == pid)

    straight, shifted = written(job), written(moved)
    assert start(shifted, 1) - start(straight, 1) == pytest.approx(5e6)
    assert start(shifted, 0) == start(straight, 0)


def test_overlapping_operations_get_lanes_of_their_own() -> None:
    job = samples.hang(2, culprit=1, steps=1)
    records = job.trace.records.copy()
    rows = np.flatnonzero((records["rank"] == 0) & (records["group"] == 0))
    records["completed_ns"][rows[0]] = records["created_ns"][rows[1]] + 1_000_000
    document = written(samples.Job(replace(job.trace, records=records), job.diagnosis))
    validate(document)
    threads = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert "dp (2)" in threads


def test_send_and_recv_are_joined_pair_by_pair() -> None:
    job = samples.hang(2, culprit=1, steps=2)
    records = np.zeros(6, job.trace.records.dtype)
    for i in range(3):
        for j, (rank, peer) in enumerate(((0, 1), (1, 0))):
            row = records[2 * i + j]
            row["rank"], row["peer"], row["signature"] = rank, peer, j
            row["p2p_seq"], row["flags"], row["stack"] = i + 1, int(Flag.P2P), -1
            row["created_ns"] = samples.NOW_NS + i * 1000 + j * 10
            row["completed_ns"], row["state"] = row["created_ns"] + 100, State.COMPLETED
    trace: Trace = replace(
        job.trace, records=records, signatures=(Signature("send"), Signature("recv"))
    )
    document = written(samples.Job(trace, job.diagnosis))
    validate(document)
    assert sorted(map(sorted, arrows(document).values())) == [
        [(0, f"send #{i}"), (1, f"recv #{i}")] for i in (1, 2, 3)
    ]


def test_trace_file_without_records_is_valid() -> None:
    job = samples.hang()
    empty = replace(job.trace, records=job.trace.records[:0], members=job.trace.members[:0])
    validate(written(samples.Job(empty, job.diagnosis)))


def test_control_characters_never_reach_the_trace_file() -> None:
    document = written(samples.hostile())
    validate(document)
    assert "\x1b" not in json.dumps(document, ensure_ascii=False)


def test_spans_use_counters_and_flags() -> None:
    job = samples.hang()
    records = job.trace.records.copy()
    records["completed_ns"] = 0
    records["state"] = State.SCHEDULED
    timing = spans(replace(job.trace, records=records))
    stuck = records["collective_seq"] == 103
    assert set(timing.end[stuck].tolist()) == {End.OPEN}
    assert set(timing.end[~stuck].tolist()) == {End.ASSUMED}  # the counters say so
    assert (timing.end_ns >= timing.start_ns).all()
    bare = spans(replace(job.trace, records=records, members=job.trace.members[:0]))
    assert (bare.end == End.OPEN).all()
    records["flags"] |= int(Flag.UNOBSERVED)
    unsure = spans(replace(job.trace, records=records, members=job.trace.members[:0]))
    assert (unsure.end == End.ASSUMED).all()
