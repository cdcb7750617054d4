"""A store that has served an earlier attempt of the job."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.toolkit.barriers import store_incarnation
from hangscope.trace.rings.read import read_ring
from tests import real_jobs
from tests.real_jobs import JobResult, environment
from tests.toolkit.launcher import JOBS
from tests.toolkit.stores import CountingStore

pytestmark = pytest.mark.xdist_group("life")

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x"}


def join(store: CountingStore, rank: int, began: float, now: float, host: str = "a") -> str:
    return store_incarnation.join(
        store, rank, environ=TORCHRUN, started_s=began, host=host, now_s=now
    )


def test_ranks_of_one_attempt_share_an_incarnation() -> None:
    store = CountingStore()
    first = join(store, 0, began=100.0, now=102.0)
    assert join(store, 1, began=100.5, now=103.0) == first
    assert join(store, 8, began=100.2, now=102.5, host="b") == first
    assert join(store, 0, began=100.0, now=200.0) == first, "a second initialisation"


def test_restarted_ranks_share_a_new_incarnation() -> None:
    store = CountingStore()
    old = {join(store, rank, began=100.0, now=101.0 + rank) for rank in range(3)}
    new = {join(store, rank, began=150.0, now=152.0 + rank) for rank in range(3)}
    assert len(old) == len(new) == 1
    assert old != new


def test_clocks_of_other_hosts_do_not_count() -> None:
    store = CountingStore()
    first = join(store, 0, began=100.0, now=102.0, host="a")
    # Host b's clock is 20 s ahead: its process seems to have begun after the incarnation did.
    assert join(store, 8, began=120.0, now=122.0, host="b") == first
    restarted = join(store, 8, began=170.0, now=172.0, host="b")
    assert restarted != first
    assert join(store, 0, began=150.0, now=152.0, host="a") == restarted


def test_old_incarnation_that_this_host_never_joined() -> None:
    store = CountingStore()
    first = join(store, 0, began=100.0, now=102.0, host="a")
    assert join(store, 8, began=1000.0, now=1002.0, host="b") != first


def test_start_of_a_process_is_known_to_a_hundredth() -> None:
    """A job may be restarted within a second of the previous attempt."""
    module = "hangscope.toolkit.barriers.store_incarnation"
    code = f"from {module} import _process_start; print(_process_start())"
    for _ in range(3):
        before = time.time()
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            after = time.time()
            assert process.stdout is not None
            told = float(process.stdout.read())
        # The kernel counts in ticks of a hundredth, rounded down.
        assert before - 0.011 <= told <= after
        time.sleep(0.3)  # within a second of the one before, at another place of it


def test_store_that_dies_with_rank_0_has_one_incarnation() -> None:
    store = CountingStore()
    ids = {
        store_incarnation.join(store, 0, environ={}, started_s=float(t), host="a", now_s=float(t))
        for t in (1, 100, 1000)
    }
    assert len(ids) == 1


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobResult, Path]:
    """A job that torchrun has restarted, and the directory into which it was recorded."""
    runs = tmp_path_factory.mktemp("runs")
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(runs), HANGSCOPE_MONITOR="0")
    job = real_jobs.torchrun(JOBS / "elastic_job.py", 2, env, options=["--max-restarts=1"])
    assert job.returncode == 0, job.output[-3000:]
    return job, runs


@pytest.mark.parametrize("check", ["joins_in_attempt_1", "meets_in_attempt_1"])
def test_job_restarted_by_torchrun(restarted: tuple[JobResult, Path], check: str) -> None:
    restarted[0].assert_ok(check, [0, 1])


def test_each_attempt_of_an_elastic_job_has_its_rings(restarted: tuple[JobResult, Path]) -> None:
    facts = [read_ring(path).facts for path in restarted[1].glob("*.ring")]
    assert {(f.attempt, f.rank) for f in facts} == {(0, 0), (0, 1), (1, 0), (1, 1)}
