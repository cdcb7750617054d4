"""What NCCL told of real hangs on a device, played into the plugin, read and diagnosed.

The recordings are from four ranks on one H200 with NCCL 2.28.9: an all-reduce of each pair, one
across pairs and one of all ranks in each step.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.replay import write_fixture
from hangscope.ring.device_reader import read_device_ring
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, State, Trace
from tests.called import called
from tests.nccl_plugin.test_plugin import ROOT, library

RECORDINGS = Path(__file__).parent / "recordings"
pytestmark = pytest.mark.xdist_group("nccl_plugin")
_INIT = re.compile(r"init comm=(\w+) name=\S* nodes=\d+ ranks=(\d+) rank=(\d+)")


@functools.cache
def played(name: str, interface: int = 5, foreign: bool = False) -> Trace:
    """The trace of a recorded job; ``foreign``: torch does not know the one of all ranks."""
    return load_trace([run_of(name, interface, foreign)])


@functools.cache
def run_of(name: str, interface: int = 5, foreign: bool = False) -> Path:
    """The run directory of a recorded job."""
    folder = Path(tempfile.mkdtemp(prefix="hangscope-recorded-"))
    with tarfile.open(RECORDINGS / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    members: dict[str, dict[int, int]] = defaultdict(dict)
    logs = [folder / f"{name}_rank{rank}.log" for rank in range(4)]
    for rank, log in enumerate(logs):
        for comm, _, place in _INIT.findall(log.read_text()):
            members[comm][int(place)] = rank
    groups: dict[str, object] = {}
    for comm, places in members.items():
        ranks = [places[place] for place in sorted(places)]
        kind = "tp" if ranks in ([0, 1], [2, 3]) else "dp" if len(ranks) == 2 else "default"
        groups[comm] = None if foreign and kind == "default" else [f"{kind}{ranks[0]}", ranks]
    run = folder / "run"
    run.mkdir()
    players = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.nccl_plugin.recorded_rank",
                str(library()),
                str(run),
                str(rank),
                str(log),
                json.dumps(groups),
                str(interface),
            ],
            cwd=ROOT,
        )
        for rank, log in enumerate(logs)
    ]
    assert [player.wait(60) for player in players] == [0] * 4
    return run


def of_group(trace: Trace, rank: int, label: str) -> np.ndarray:
    groups = [number for number, group in enumerate(trace.groups) if label in group.label]
    rows = trace.records[trace.records["rank"] == rank]
    return rows[np.isin(rows["group"], groups)]


@pytest.mark.parametrize(
    "interface",
    [pytest.param(4, marks=pytest.mark.slow), 5, pytest.param(6, marks=pytest.mark.slow)],
)
def test_progress_of_the_device_is_in_the_records(interface: int) -> None:
    trace = played("kernel", interface)
    one, other = of_group(trace, 0, "tp"), of_group(trace, 1, "tp")
    assert len(one) == len(other) == 14
    assert (one["state"][:12] == State.COMPLETED).all()
    assert (one["completed_ns"][:12] >= one["started_ns"][:12]).all()
    assert (one["started_ns"][:13] > 0).all()
    assert one["state"][12:].tolist() == [State.STARTED, State.SCHEDULED]
    assert other["state"][12:].tolist() == [State.SCHEDULED, State.SCHEDULED]


def test_replays_become_records() -> None:
    trace = played("graph")
    counts = [len(of_group(trace, rank, "replayed")) for rank in range(4)]
    assert counts == [7, 6, 7, 7]
    rows = of_group(trace, 0, "replayed")
    assert rows["collective_seq"].tolist() == list(range(1, 8))
    assert (rows["flags"] & Flag.FROM_NCCL).all()
    assert (rows["state"][:-1] == State.COMPLETED).all()
    assert rows["state"][-1] != State.COMPLETED
    assert not rows["flags"][-1] & Flag.UNOBSERVED


def test_missing_replay_is_named() -> None:
    found = diagnose(played("graph"))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))


@pytest.mark.parametrize("redact", [False, True])
def test_what_devices_did_goes_with_a_fixture(redact: bool, tmp_path: Path) -> None:
    run = run_of("graph")
    trace = load_trace([run])
    fixture = write_fixture(trace, diagnose(trace), [run], tmp_path / "kept", redact=redact)
    for path in sorted(run.glob("*.device")):
        copy = fixture.dumps / path.name
        assert copy.stat().st_size < 50_000
        before, after = read_device_ring(path), read_device_ring(copy)
        assert (before.pid, before.interface) == (after.pid, after.interface)
        assert (before.operations == after.operations).all()
        assert (before.links == after.links).all()
        assert before.communicators["hash"].tolist() == after.communicators["hash"].tolist()


def test_what_devices_did_is_in_a_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "node.hangscope.tar.gz"
    assert called("collect", str(run_of("graph")), "-o", str(bundle)).returncode == 0
    found = diagnose(load_trace([bundle]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))


def test_communicator_that_torch_does_not_know_becomes_a_group() -> None:
    trace = played("exit0", foreign=True)
    (group,) = (g for g in trace.groups if "NCCL communicator" in g.label)
    assert group.ranks == (0, 1, 2, 3)
    rows = of_group(trace, 0, "NCCL communicator")
    assert rows["collective_seq"].tolist() == list(range(1, len(rows) + 1))


def test_missing_start_proves_nothing_if_the_proxies_do_not_live() -> None:
    """Two innocent ranks of the recorded job lack a start: their proxies had stopped."""
    trace = played("exit0")
    last = of_group(trace, 3, "tp")[-1]
    assert last["state"] == State.SCHEDULED
    assert last["flags"] & Flag.UNOBSERVED
