"""The doctor as a command, and inside a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hangscope.toolkit.doctor.job import compare, skew_findings
from tests.real_jobs import environment, run_each, worlds

DOCTOR = [sys.executable, "-m", "hangscope", "doctor"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DOCTOR, *arguments],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_healthy_environment_is_status_0() -> None:
    done = run("--json", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] is True
    assert report["schema"] == "hangscope/doctor/1"
    assert {"name", "value", "read_by", "set_by", "effective"} <= set(report["timeouts"][0])


def test_every_finding_has_a_fix_and_status_is_1(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("if rank == 0:\n    dist.barrier()\n")
    line = ["torchrun", "--nnodes=2", "--standalone", str(script)]
    done = run("--json", "--", *line, NCCL_TIMEOUT="100")
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert all(finding["fix"] for finding in findings)
    assert {"standalone", "guarded-collective", "environment-unread"} <= {
        finding["check"] for finding in findings
    }
    assert any(f["where"] == f"{script}:2" for f in findings)
    text = run("--", *line)
    assert text.returncode == 1
    assert "error [D2]" in text.stdout
    assert "fix:" in text.stdout


def test_d4_a_real_job_beside_this_one_is_seen() -> None:
    job = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29517"}
    say_and_wait = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        say_and_wait,
        env=environment(**job, CUDA_VISIBLE_DEVICES="1,2"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        line = ["python", "train.py"]
        overlap = run("--json", "--", "CUDA_VISIBLE_DEVICES=2,3", *line)
        apart = run("--json", "--", "CUDA_VISIBLE_DEVICES=3", *line)
        rank.communicate(b"\n")

    def said(done: subprocess.CompletedProcess[str]) -> list[str]:
        found = json.loads(done.stdout)["findings"]
        return [f["what"] for f in found if f["check"] == "devices-overlap"]

    assert [what for what in said(overlap) if f"process {rank.pid}, MASTER_PORT=29517" in what]
    assert not [what for what in said(apart) if f"process {rank.pid}," in what]


def test_assignments_in_front_of_the_command_count() -> None:
    line = ["TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "torchrun", "--standalone", "t.py"]
    findings = json.loads(run("--json", "--", *line).stdout)["findings"]
    assert any("ASYNC_ERROR_HANDLING=0" in f["what"] for f in findings)


@pytest.mark.parametrize(
    "arguments",
    [["--parameters", "many", "--memory", "80"], ["--parameters", "7B"], ["--timeout", "0"]],
)
def test_bad_usage_is_status_2_in_one_line(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_d7_from_the_command_line() -> None:
    done = run("--json", "--parameters", "7B", "--memory", "80", "--wrapper", "ddp")
    assert done.returncode == 1
    assert any(f["playbook"] == "D7" for f in json.loads(done.stdout)["findings"])


_INSIDE = "import sys; sys.stderr = open('/dev/null', 'w'); from hangscope.cli import main; main()"


def inside(places: list[dict[str, str]], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The highest exit status of the ranks, and the findings that the only one of them printed."""
    command = [sys.executable, "-c", _INSIDE, "doctor", "--json", *arguments]
    job = run_each(command, [environment(**place) for place in places], timeout_s=60)
    return job.returncode, json.loads(job.output)["findings"]


@pytest.mark.timed
def test_inside_a_job_the_ranks_are_compared() -> None:
    places = worlds(3)
    places[0]["NCCL_ALGO"] = places[1]["NCCL_ALGO"] = "Ring"
    places[2]["NCCL_ALGO"] = "Tree"
    status, findings = inside(places)
    assert status == 1
    differing = [f for f in findings if f["check"] == "ranks-differ"]
    assert [f["ranks"] for f in differing] == [[2]]
    assert "NCCL_ALGO" in differing[0]["what"]


@pytest.mark.timed
def test_inside_a_healthy_job() -> None:
    status, findings = inside(worlds(2))
    assert status == 0, findings


@pytest.mark.timed
def test_inside_a_job_a_missing_rank_is_named() -> None:
    status, findings = inside(worlds(3, started=[0, 1]), "--timeout", "3")
    assert status == 1
    assert [f["ranks"] for f in findings if f["check"] == "ranks-missing"] == [[2]]


def test_d2_hosts_that_disagree_and_versions_that_differ() -> None:
    same = {"world_size": 16, "run_id": "a", "torch": "2.8.0", "host": "n0", "environment": {}}
    ranks = dict.fromkeys(range(3), same) | {3: same | {"run_id": "b", "torch": "2.7.1"}}
    found = {(f.playbook, f.what.split(" differs")[0], f.ranks) for f in compare(ranks)}
    assert found == {("D2", "the rendezvous id", (3,)), ("", "the torch version", (3,))}


@pytest.mark.timed
def test_clock_skew_counts_only_beyond_its_uncertainty() -> None:
    offsets = {"n1": (5.0, 0.1), "n2": (-0.2, 0.1), "n3": (1.5, 0.9)}
    assert ["n1" in f.what for f in skew_findings(offsets)] == [True]
