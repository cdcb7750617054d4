"""The plugin in real pytest runs: fixtures as tests, and a guard around real processes."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"

JOB = """
    import os, time
    import torch
    import torch.distributed as dist

    def work(rank, world, port, asleep):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=world)
        for step in range(4):
            if step == 2 and rank == asleep:
                read_shard()
            dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()

    def read_shard():
        time.sleep(600)

    def free_port():
        import random
        return random.randrange(10_000, 32_000)  # the kernel gives these to nobody by itself

    if __name__ == "__main__":
        work(int(os.environ["RANK"]), 2, os.environ["MASTER_PORT"], 1)
"""


def _fixture(target: Path, name: str = "d20-sigkill") -> Path:
    shutil.copytree(FIXTURES / name, target / name)
    return target / name / "expected.toml"


def test_fixture_folders_are_tests(pytester: pytest.Pytester) -> None:
    """One that keeps its verdict passes; one that does not shows the difference; one whose
    expectation is malformed is one line; and other files of that name are none of ours."""
    _fixture(pytester.path / "kept")
    changed = _fixture(pytester.path / "changed")
    text = changed.read_text().replace("culprits = [1]", "culprits = [2]")
    assert "culprits = [2]" in text
    changed.write_text(text)
    malformed = _fixture(pytester.path / "malformed")
    malformed.write_text('verdict = "sick"\nculprits = []\n')
    (pytester.path / "expected.toml").write_text("answer = 42\n")
    result = pytester.runpytest_subprocess("-v")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "*kept/d20-sigkill/expected.toml::d20-sigkill PASSED*",
            "*culprits: expected '2', got '1'*",
            "*SIGKILL*",
            "*expected.toml: verdict must be one of healthy*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_no_heavy_import_for_a_suite_without_guard(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, sys

        def test_plain():
            ours = {"diagnosis", "replay", "monitor", "trace", "report"}
            heavy = {"torch", "numpy", *(f"hangscope.{name}" for name in ours)}
            assert not heavy & set(sys.modules)
            assert "HANGSCOPE" not in os.environ
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_misused_guard_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.hang_guard(timeout="soon")
        def test_no_time():
            pass

        @pytest.mark.hang_guard(tmeout=3)
        def test_misspelt():
            pass
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "*'soon' is not a number of seconds*",
            "*hang_guard(tmeout=3): write hang_guard(timeout=SECONDS)*",
        ]
    )
    result.stdout.no_fnmatch_line("*_timeout_s*")


@pytest.mark.timed
def test_spawned_job_that_hangs_fails_with_the_verdict(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(job=textwrap.dedent(JOB))
    pytester.makepyfile(
        """
        import pytest, job
        import torch.multiprocessing as mp

        @pytest.mark.hang_guard(timeout=3)
        def test_training():
            mp.spawn(job.work, args=(2, job.free_port(), 1), nprocs=2)

        def test_after_it(monkeypatch):
            import os
            assert "HANGSCOPE" not in os.environ
        """
    )
    result = pytester.runpytest_subprocess(timeout=90)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*Rank 1 *", "*read_shard*"])
    result.stdout.no_fnmatch_line("*ProcessExitedException*")


@pytest.mark.timed
@pytest.mark.slow
def test_forked_and_launched_jobs_are_guarded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(job=textwrap.dedent(JOB))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    pytester.makepyfile(
        f"""
        import subprocess
        import job
        import torch.multiprocessing as mp

        def test_forked(hang_guard):
            assert hang_guard.timeout_s == 3
            mp.start_processes(
                job.work, args=(2, job.free_port(), 0), nprocs=2, start_method="fork"
            )

        def test_healthy(hang_guard):
            mp.start_processes(
                job.work, args=(2, job.free_port(), -1), nprocs=2, start_method="fork"
            )
            assert list(hang_guard.directory.glob("*.ring"))

        def test_launched(hang_guard):
            subprocess.run({launcher!r} + ["job.py"])
        """
    )
    result = pytester.runpytest_subprocess("--hang-timeout=3", timeout=150)
    result.assert_outcomes(failed=2, passed=1)
    text = result.stdout.str()
    assert "Rank 0 " in text
    assert "Rank 1 " in text
    assert "read_shard" in text
