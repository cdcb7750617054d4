"""Every report can be written for whatever a reader makes of a damaged file."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangscope.report import flight_recorder, perfetto
from hangscope.report.html import to_html
from hangscope.report.spans import spans
from hangscope.trace.model import MEMBER_DTYPE, RECORD_DTYPE, Group, Records, Trace
from hangscope.tui import paint
from hangscope.tui.search import find
from hangscope.tui.snapshot import take
from tests import view_samples as samples
from tests.depth import examples

INT64 = st.one_of(
    st.integers(-5, 5),
    st.integers(samples.NOW_NS - 10**10, samples.NOW_NS + 10**10),
    st.sampled_from([2**62, 2**63 - 1, -(2**63), 10**18]),
)


@st.composite
def damaged(draw: st.DrawFn) -> Trace:
    """A trace with arbitrary numbers in its columns; indexes are valid or -1."""
    base = samples.hang(4, steps=1).trace
    groups = draw(st.sampled_from([base.groups, (), (Group("", ""), Group("0", "x\x1b", (0,)))]))
    signatures = draw(st.sampled_from([base.signatures, ()]))
    count = draw(st.integers(0, 12))
    records: Records = np.zeros(count, RECORD_DTYPE)
    for i in range(count):
        records[i]["rank"] = draw(st.integers(0, 5))
        records[i]["group"] = draw(st.integers(-1, len(groups) - 1))
        records[i]["signature"] = draw(st.integers(-1, len(signatures) - 1))
        records[i]["stack"] = draw(st.integers(-1, 1))
        records[i]["peer"] = draw(st.integers(-1, 9))
        for name in ("collective_seq", "p2p_seq", "created_ns", "started_ns", "completed_ns"):
            records[i][name] = draw(INT64)
        records[i]["state"] = draw(st.integers(0, 255))
        records[i]["flags"] = draw(st.integers(0, 255))
    members: Records = np.zeros(draw(st.integers(0, 3)), MEMBER_DTYPE)
    for row in members:
        row["rank"], row["group"] = draw(st.integers(0, 5)), draw(st.integers(-1, len(groups) - 1))
        row["enqueued"], row["completed"] = draw(INT64), draw(INT64)
    return replace(
        base,
        records=np.sort(records, order="rank", kind="stable"),
        members=members,
        groups=groups,
        signatures=signatures,
        observed_ns=draw(INT64),
    )


JOBS = [samples.hang(4, steps=1), samples.deadlock(), samples.healthy(), samples.hostile()]


@given(damaged(), st.sampled_from(JOBS))
@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
def test_reports_of_arbitrary_diagnoses(trace: Trace, job: samples.Job) -> None:
    timing = spans(trace)
    assert (timing.end_ns >= timing.start_ns).all()
    out = io.BytesIO()
    perfetto.write(trace, job.diagnosis, out)
    for event in json.loads(out.getvalue())["traceEvents"]:
        assert event.get("dur", 1) > 0
    HTMLParser().feed(to_html(job.diagnosis, trace))
    for rank in range(6):
        entries = flight_recorder.to_dump(trace, rank)["entries"]
        assert len(entries) <= int((trace.records["rank"] == rank).sum())
    snapshot = take(trace, job.diagnosis)
    for scale in (1, 10**6, 3600 * 10**9):
        window = paint.Window(timing.last_ns - 40 * scale, scale, 60)
        for rank in snapshot.ranks:
            drawn = paint.row(snapshot, rank, window)
            assert sum(len(s.text) for s in drawn) == 60
    for wanted in ("all_reduce", "#1", "node0", "rank 3"):
        find(snapshot, wanted, 0, None)
