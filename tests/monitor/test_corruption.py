"""HANGSCOPE_CHECK_REDUCE in a real job: a flipped bit is reported with its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.monitor.corruption import MAX_SAID, MOST_AT_ONCE, Corruptions
from hangscope.trace.load import load_trace
from tests.real_jobs import environment, ranks

JOB = """
import glob, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
original = dist.Work.wait
flip = {"next": False}
def wait(work, *args, **kwargs):  # a device that writes one wrong number, once
    result = original(work, *args, **kwargs)
    if flip["next"]:
        flip["next"] = False
        tensor[3] += 1
    return result
dist.Work.wait = wait
findings = os.environ["HANGSCOPE_DIR"] + "/reduction_rank*.jsonl"

def search(seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not glob.glob(findings):
        time.sleep(0.05)
    return glob.glob(findings)

for step in range(24):
    if step == 12:
        assert search(1.5) == []
        print("first half without corruption", flush=True)
    tensor = torch.arange(64, dtype=torch.float32) + rank
    flip["next"] = rank == 2 and step == 19
    dist.all_reduce(tensor)
    time.sleep(0.02)
search(60)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A job's log and run directory."""
    tmp_path = tmp_path_factory.mktemp("corruption")
    script, directory = tmp_path / "job.py", tmp_path / "run"
    script.write_text(JOB)
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HANGSCOPE_CHECK_REDUCE="2")
    result = ranks(script, 4, env)
    assert result.returncode == 0, result.output
    return result.output, directory


@pytest.mark.xdist_group("corruption")
def test_flipped_bit_is_reported_with_its_rank(job: tuple[str, Path]) -> None:
    log, directory = job
    said = [line for line in log.splitlines() if "silent corruption" in line]
    assert len(said) == 1, log
    assert said[0].startswith("[hangscope] silent corruption: the results of all_reduce #20")
    assert "rank 2" in said[0]
    found = diagnose(load_trace([directory]))
    assert any("all_reduce #20" in note and "rank 2" in note for note in found.notes)


@pytest.mark.xdist_group("corruption")
def test_healthy_reductions_are_not_reported(job: tuple[str, Path]) -> None:
    """The job itself asserts that nothing was found in its first half."""
    first_half, printed, _ = job[0].partition("first half without corruption")
    assert printed
    assert "[hangscope]" not in first_half


def test_number_of_printed_findings_is_limited(tmp_path: Path) -> None:
    lines = "".join(f'{{"hangscope": "reduction/1", "text": "n {n}"}}\n' for n in range(50))
    findings = tmp_path / "reduction_rank0.jsonl"
    findings.write_text(lines + '{"half')
    follower = Corruptions()
    said = list(follower.new([str(findings)]))
    assert len(said) == MAX_SAID + 1
    assert list(follower.new([str(findings)])) == []


def test_partial_lines_are_read_again_and_invalid_ones_skipped(
    tmp_path: Path,
) -> None:
    findings = tmp_path / "reduction_rank0.jsonl"
    whole = '{"text": "at last"}\n'
    findings.write_text("x" * (MOST_AT_ONCE + 7) + "\n" + whole[:9])
    follower = Corruptions()
    looks = [list(follower.new([str(findings)])) for _ in range(3)]
    assert looks == [[], [], []]
    with findings.open("a") as file:
        file.write(whole[9:])
    assert list(follower.new([str(findings)])) == ["silent corruption: at last"]
    assert list(follower.new([str(findings)])) == []
