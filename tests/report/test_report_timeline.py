"""The moment of divergence: collectives, cycles across groups, and point-to-point."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from hangscope.diagnosis.model import Finding, GroupRef, Side, Verdict
from hangscope.report.source_lines import Sources
from hangscope.report.spans import spans
from hangscope.report.timeline import divergence_ns, divergence_rows, timeline
from hangscope.trace.model import Flag, Frame, Signature, State
from tests import view_samples as samples


def test_divergence_is_when_the_first_waiter_begins() -> None:
    job = samples.hang()
    finding = job.diagnosis.findings[0]
    at = divergence_ns(job.trace, spans(job.trace), finding, (0, 1, 2, 3))
    assert at == samples.NOW_NS - 12 * samples.SECOND
    waiting, absent = finding.sides
    assert len(divergence_rows(job.trace, finding, waiting)) == 3
    assert len(divergence_rows(job.trace, finding, absent)) == 0


def test_side_in_another_group_keeps_its_own_operation() -> None:
    """Rank 2 waits in #5 of another group; its completed #5 of "dp" is not meant."""
    job = samples.hang()
    records = job.trace.records.copy()
    last = np.flatnonzero(records["rank"] == 2)[-1]
    records[last]["group"], records[last]["collective_seq"] = 2, 5
    records[last]["completed_ns"], records[last]["state"] = 0, State.STARTED
    trace = replace(job.trace, records=records)
    finding = replace(
        job.diagnosis.findings[0],
        sides=(job.diagnosis.findings[0].sides[0], Side((2,), "all_reduce", 5)),
    )
    assert divergence_rows(trace, finding, finding.sides[1]).tolist() == [last]


def test_point_to_point_is_counted_apart() -> None:
    job = samples.hang(2, culprit=1, steps=2)
    records = job.trace.records.copy()
    last = np.flatnonzero(records["rank"] == 0)[-1]
    records[last]["flags"] |= int(Flag.P2P)
    records[last]["p2p_seq"], records[last]["signature"] = 1, 2
    trace = replace(
        job.trace, records=records, signatures=(*job.trace.signatures, Signature("recv"))
    )
    side = Side((0,), "recv", 1, peer=1)
    finding = Finding(
        Verdict.P2P_UNMATCHED,
        (1,),
        (0,),
        job.diagnosis.confidence,
        "rank 1 never sent",
        group=GroupRef("0", "dp", (0, 1)),
        seq=1,
        op="recv",
        sides=(side,),
    )
    assert divergence_rows(trace, finding, side).tolist() == [last]
    at = divergence_ns(trace, spans(trace), finding, (0, 1))
    assert at == int(records[last]["created_ns"])


def test_axis_breaks_only_if_the_wait_dwarfs_the_steps() -> None:
    long = samples.hang(waited_s=600)
    drawn = timeline(long.diagnosis, long.trace)
    assert drawn is not None
    assert drawn.break_x is not None
    assert drawn.ticks[-1].text == "+10 min"
    short = samples.hang(waited_s=0.05)
    drawn = timeline(short.diagnosis, short.trace)
    assert drawn is not None
    assert drawn.break_x is None


def test_large_jobs_show_the_culprit_and_its_neighbours() -> None:
    job = samples.hang(512, culprit=300, steps=2)
    drawn = timeline(job.diagnosis, job.trace)
    assert drawn is not None
    ranks = [row.rank for row in drawn.rows]
    assert {298, 299, 300, 301, 302} <= set(ranks)
    assert len(ranks) == 16
    assert drawn.left_out == 496


def test_excerpts_lose_their_common_indent_and_blank_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("\n\n    def f():\n        g()  # \x1b]0;x\x07\n\n\n")
    shown = Sources(directories=(str(tmp_path),)).excerpt(Frame("f", str(file), 4), 3, 3)
    assert [(s.number, s.text) for s in shown] == [
        (3, "def f():"),
        (4, "    g()  # \\x1b]0;x\\x07"),
    ]
    assert Sources(directories=(str(tmp_path),)).line(Frame("f", str(file), 99)) == ""
    fifo = tmp_path / "pipe.py"

    os.mkfifo(fifo)
    assert Sources(directories=(str(tmp_path),)).excerpt(Frame("f", str(fifo), 1)) == ()


def test_lines_of_a_file_changed_during_the_job_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("step()\n")
    at = Frame("<module>", str(file), 1)
    changed_ns = file.stat().st_mtime_ns
    for began_ns, line in ((changed_ns - 1, ""), (changed_ns + 1, "step()"), (0, "step()")):
        sources = Sources(began_ns, (str(tmp_path),))
        assert (sources.line(at), sources.changed(at)) == (line, not line)
    assert not Sources(1, (str(tmp_path),)).changed(Frame("f", str(tmp_path / "gone.py"), 1))


def test_file_is_read_in_its_declared_encoding(tmp_path: Path) -> None:
    for name, encoding in (("latin.py", "latin-1"), ("wrong.py", "no-such-encoding")):
        file = tmp_path / name
        file.write_bytes(f"# -*- coding: {encoding} -*-\nété()\n".encode("latin-1"))
    assert (
        Sources(directories=(str(tmp_path),)).line(Frame("f", str(tmp_path / "latin.py"), 2))
        == "été()"
    )
    assert (
        Sources(directories=(str(tmp_path),)).line(Frame("f", str(tmp_path / "wrong.py"), 2))
        == "\ufffdt\ufffd()"
    )
