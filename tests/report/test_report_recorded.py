"""Recorded hangs in every form: no errors, no lines too long."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from hangscope.cli.export import command as export
from hangscope.replay import diagnose_fixture, find_fixtures, load_fixture
from hangscope.report import flight_recorder, perfetto
from hangscope.report.html import to_html
from hangscope.report.json import to_json
from hangscope.report.text import render
from hangscope.tui import paint
from hangscope.tui.snapshot import take
from tests.depth import DEEP

ROOT = Path(__file__).resolve().parents[2] / "fixtures"
FIXTURES = find_fixtures([ROOT]) if ROOT.is_dir() else []


@pytest.mark.long
@pytest.mark.skipif(not FIXTURES, reason="no recorded hangs beside the tests")
def test_all_reports_of_recorded_hangs() -> None:
    """Of every third of them; of all at depth."""
    for path in FIXTURES if DEEP else FIXTURES[1::3]:
        trace, diagnosis = diagnose_fixture(load_fixture(path))
        out = io.StringIO()
        Console(file=out, width=80).print(render(diagnosis, all_findings=True))
        lines = out.getvalue().split("\n")
        assert max(map(len, lines)) <= 80, path
        if diagnosis.findings:
            assert " ".join(diagnosis.findings[0].summary.split()[:4]) in out.getvalue(), path
        assert json.loads(to_json(diagnosis))["verdict"] == diagnosis.verdict.value
        html = to_html(diagnosis, trace)
        assert "<script" not in html
        assert len(html.encode()) < 500_000, path
        events = io.BytesIO()
        assert perfetto.write(trace, diagnosis, events) == len(
            json.loads(events.getvalue())["traceEvents"]
        )
        snapshot = take(trace, diagnosis)
        window = paint.Window(snapshot.timing.last_ns - 10**9, 10**7, 80)
        for rank in snapshot.ranks:
            drawn = paint.row(snapshot, rank, window)
            assert sum(len(s.text) for s in drawn) == 80, (path, rank)


NATIVE = [p for p in FIXTURES if p.name.startswith("native-")]


@pytest.mark.skipif(not NATIVE, reason="no recorded hangs beside the tests")
def test_export_says_that_the_verdict_rests_on_a_log_as_well(tmp_path: Path) -> None:
    (path,) = (p for p in NATIVE if p.name == "native-peers-lost")
    arguments = [str(path / "dumps"), "--to", "flight-recorder", "--output", str(tmp_path)]
    done = CliRunner().invoke(export, arguments)
    assert done.exit_code == 0
    assert "the format has no place for some of the evidence" in done.output
    assert "instead of rank_lost (rank 0)" in done.output


def test_ids_count_from_zero_and_files_have_the_time_of_the_look(tmp_path: Path) -> None:
    rings = next(p for p in FIXTURES if p.name == "loader-asleep")
    trace, _ = diagnose_fixture(load_fixture(rings))
    [first, *_] = flight_recorder.write(trace, tmp_path)
    assert flight_recorder.to_dump(trace, 0)["entries"][0]["record_id"] == 0
    assert first.stat().st_mtime_ns == trace.ranks[0].observed_ns
