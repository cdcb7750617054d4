"""Evidence read by the workers of a real Dask cluster, or of a local Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.trace.loading import engines
from tests.called import called
from tools.ports import free_port

FIXTURES = Path(__file__).parents[2] / "fixtures"
RINGS, DUMPS, LOGS = ("d9-uneven-loader", "native-loader-asleep", "log-timeouts-one-silent")


def answer(*words: str, status: int = 1) -> dict[str, Any]:
    done = called("analyze", "--json", *words)
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if status == 1 else {"said": done.stderr}
    return found


def told(found: dict[str, Any]) -> list[Any]:
    return [found[key] for key in ("verdict", "culprits", "confidence", "summary", "world_size")]


@pytest.fixture(scope="module")
def dask() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as two:
        yield two.scheduler_address.replace("tcp://", "dask://")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rings in a directory, a bundle with dumps, and a log: each a fixture's."""
    place = tmp_path_factory.mktemp("evidence")
    for name in (RINGS, DUMPS, LOGS):
        shutil.copytree(FIXTURES / name / "dumps", place / name)
    bundle = place / "bundles" / "node0.hangscope.tar.gz"
    done = called("collect", str(place / DUMPS), "-o", str(bundle))
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    "name",
    [
        RINGS,
        pytest.param(DUMPS, marks=pytest.mark.slow),
        pytest.param(LOGS, marks=pytest.mark.slow),
        "bundles",
    ],
)
def test_cluster_gives_the_same_answer(dask: str, evidence: Path, name: str) -> None:
    place = str(evidence / name)
    expected = answer(place)
    assert told(answer("--engine", dask, place)) == told(expected)
    by_url = answer("--engine", dask, (evidence / name).as_uri())
    assert told(by_url) == told(expected)
    assert by_url["sources"][0]["folder"].startswith("file://")
    assert told(answer("--engine", "2", place)) == told(expected)


@pytest.mark.slow
def test_ray_gives_the_same_answer(evidence: Path) -> None:
    pytest.importorskip("ray")
    clients = free_port()
    ray = Path(sys.executable).with_name("ray")
    any_ports = ["--port=0", "--min-worker-port=0", "--max-worker-port=0"]
    any_ports.append(f"--runtime-env-agent-port={free_port()}")  # 0 is taken for a port
    start = [ray, "start", "--head", f"--ray-client-server-port={clients}", *any_ports]
    subprocess.run([*start, "--num-cpus=2", "--include-dashboard=false"], check=True)
    try:
        place = str(evidence / RINGS)
        assert told(answer("--engine", f"ray://127.0.0.1:{clients}", place)) == told(answer(place))
    finally:
        subprocess.run([ray, "stop", "--force"], check=False)


def test_engine_that_cannot_be_used_is_one_line(
    evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "_PATIENCE_S", 1.0)  # nobody listens there
    for engine, why in {
        "spark://here:1": "dask://HOST:PORT",
        f"dask://127.0.0.1:{free_port()}": "no Dask scheduler answers",
        "0": "a number",
    }.items():
        said = answer("--engine", engine, str(evidence / RINGS), status=2)["said"]
        assert why in said, engine
        assert said.count("\n") == 1
