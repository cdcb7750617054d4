"""What Prometheus and an OpenTelemetry collector are told of a job."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from hangscope.diagnosis.model import Verdict
from hangscope.monitor.metrics.publishing import Publishing
from hangscope.ring.layout import GROUP
from tests.monitor.conftest import Followed
from tests.monitor.test_report_policy import diagnosis
from tests.monitor.web_server import posts_to
from tools.ports import free_port

prometheus = pytest.importorskip("prometheus_client.parser")
pytest.importorskip("opentelemetry.proto")
DOCS = Path(__file__).parents[2] / "docs" / "metrics"

Value = tuple[dict[str, str], float]


def parsed(text: str) -> dict[str, list[Value]]:
    """The samples of each metric, without the labels that all of them have."""
    found: dict[str, list[Value]] = {}
    for family in prometheus.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("run", "host")}
            found.setdefault(sample.name, []).append((labels, sample.value))
    return found


def served(port: int) -> dict[str, list[Value]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def table(enqueued: int, completed: int, waits_s: float) -> bytes:
    rows = np.zeros(2, GROUP)
    rows["commit"][0] = 1
    rows["enqueued"][0], rows["completed"][0] = enqueued, completed
    rows["enqueued_ns"][0] = time.time_ns() - int(waits_s * 1e9)
    rows["enqueued"][1] = 99  # not written to its end
    return rows.tobytes()


def test_figures_of_each_rank_and_the_verdict_are_served() -> None:
    said: list[str] = []
    port = free_port()
    metrics = Publishing({"HANGSCOPE_METRICS": str(port)}, said.append)
    told = diagnosis(Verdict.MISSING_RANK, 2)
    told = replace(told, findings=(replace(told.findings[0], hosts=("node7",)),))
    try:
        metrics.update({0: table(7, 6, 12.0), 3: table(6, 6, 0.0)}, told, "job7")
        found = served(port)
    finally:
        metrics.close()
    assert not said
    issued = [({"rank": "0"}, 7.0), ({"rank": "3"}, 6.0)]
    assert found["hangscope_collectives_issued_total"] == issued
    assert [value for _, value in found["hangscope_collectives_finished_total"]] == [6.0, 6.0]
    (_, waits), (_, goes_on) = found["hangscope_waiting_seconds"]
    assert 12.0 <= waits < 60.0
    assert goes_on == 0.0
    ((labels, stands),) = found["hangscope_verdict"]
    assert stands == 1.0
    assert labels == {
        "verdict": "missing_rank", "confidence": told.confidence.value, "culprits": "2",
        "culprit_hosts": "node7",
    }  # fmt: skip


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A real web server in the place of a collector, and what it was sent."""
    with posts_to(lambda path: 200 if path == "/v1/metrics" else 404, bytes) as found:
        yield found


def test_collector_is_told_the_same(collector: tuple[str, list[bytes]]) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    url, received = collector
    said: list[str] = []
    metrics = Publishing({"HANGSCOPE_METRICS": url}, said.append)
    metrics.update({0: table(7, 6, 12.0)}, diagnosis(Verdict.MISSING_RANK, 2), "job7")
    metrics.close()
    assert not said
    request = ExportMetricsServiceRequest.FromString(received[-1])
    (of_resource,) = request.resource_metrics
    found = {m.name: m for scope in of_resource.scope_metrics for m in scope.metrics}
    assert found["hangscope_collectives_issued"].sum.data_points[0].as_int == 7
    (verdict,) = found["hangscope_verdict"].gauge.data_points
    labels = {pair.key: pair.value.string_value for pair in verdict.attributes}
    assert (verdict.as_double, labels["verdict"], labels["culprits"]) == (1.0, "missing_rank", "2")


@pytest.mark.parametrize("asked", ["here", "node:x", "/nowhere/at/all.prom", "TAKEN"])
def test_what_cannot_be_is_one_line(asked: str) -> None:
    said: list[str] = []
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as taken:
        value = str(taken.server_port) if asked == "TAKEN" else asked
        metrics = Publishing({"HANGSCOPE_METRICS": value}, said.append)
        for _ in range(3):
            metrics.update({0: table(7, 6, 0.0)}, None, "job7")
        metrics.close()
    (line,) = said
    assert line.startswith("HANGSCOPE_METRICS: ")
    assert line.endswith("no metrics")


def test_running_job_is_followed_from_health_to_a_verdict(
    followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("HANGSCOPE_METRICS", str(port))
    ranks = [followed.ring(rank, process=rank) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(2)) for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        rank.finish(rank.issue(group))
    followed.follow()

    def has(name: str, value: float) -> bool:
        try:
            return any(found == value for _, found in served(port).get(name, []))
        except OSError:
            return False

    followed.until(lambda: has("hangscope_collectives_finished_total", 1.0))
    assert served(port)["hangscope_verdict"][0][1] == 0.0
    ranks[0].issue(groups[0])
    followed.until(lambda: has("hangscope_verdict", 1.0))
    ((labels, _),) = served(port)["hangscope_verdict"]
    assert (labels["verdict"], labels["culprits"]) == ("missing_rank", "1")


def test_prometheus_accepts_the_alerts() -> None:
    if not (promtool := shutil.which("promtool")):
        pytest.skip("no promtool here")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run([promtool, *words], cwd=DOCS, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
