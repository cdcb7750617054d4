"""A local rank in the log of one node, beside logs of other nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace

from .logs import timeout

AGENT = "0816 {} 900 torch/distributed/elastic/multiprocessing/api.py:869] "
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 5, in main\n'
    '    raise ValueError("bad sample")\n'
    "ValueError: bad sample\n"
)
STOPPED = f"W{AGENT.format('11:30:15.000000')}Received 15 death signal, shutting down workers\n"
WAITS = "".join(timeout(rank, 7) for rank in (0, 1))


def failed(local: int, code: int, at: str = "11:20:00.000000") -> str:
    said = f"failed (exitcode: {code}) local_rank: {local} (pid: 77) of binary: /bin/py"
    return f"E{AGENT.format(at)}{said}\n"


def answer(folder: Path, **logs: str) -> Diagnosis:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return diagnose(load_trace([folder]))


def test_single_local_rank_is_taken_for_the_rank(tmp_path: Path) -> None:
    found = answer(tmp_path, train=RAISED + failed(0, 1))
    assert (found.culprits, found.confidence.value) == ((0,), "likely")


@pytest.mark.parametrize("name", ["node1", "job-worker-0", "log_node_rank_3", "machine2.err"])
def test_local_rank_in_the_log_of_another_node_is_not_the_rank(tmp_path: Path, name: str) -> None:
    found = answer(tmp_path, **{name: RAISED + failed(0, 1)})
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("bad sample" in line for line in found.findings[0].evidence)
    alone = "+ torchrun --standalone --nproc-per-node=2 train.py\n"
    assert answer(tmp_path, **{name: alone + RAISED + failed(0, 1)}).culprits == (0,)


def test_local_rank_beside_a_log_with_another_number_is_not_the_rank(tmp_path: Path) -> None:
    """The log of the first node shows nothing: none of its ranks has printed a word."""
    found = answer(tmp_path, slurm_8_0="step 1\n", slurm_8_1=RAISED + failed(0, 1))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


@pytest.mark.parametrize("other", ["out", "run_2025-08-14"])
def test_another_log_of_the_same_node_changes_nothing(tmp_path: Path, other: str) -> None:
    found = answer(tmp_path, **{other: "step 1\n", "run_2025-08-15": RAISED + failed(0, 1)})
    assert found.culprits == (0,)


@pytest.mark.parametrize("other", [STOPPED, WAITS + failed(0, -6, "12:10:02.000000")])
@pytest.mark.parametrize("names", [("node0", "node1"), ("first", "second")])
def test_local_rank_beside_another_launchers_log_is_not_the_rank(
    tmp_path: Path, other: str, names: tuple[str, str]
) -> None:
    found = answer(tmp_path, **{names[0]: other, names[1]: RAISED + failed(0, 1)})
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("bad sample" in line for f in found.findings for line in f.evidence)


@pytest.mark.parametrize("code", [1, -9])
@pytest.mark.parametrize("names", [("node0", "node1"), ("first", "second")])
def test_local_rank_is_not_the_rank_if_that_rank_outlived_it(
    tmp_path: Path, code: int, names: tuple[str, str]
) -> None:
    found = answer(tmp_path, **{names[0]: WAITS, names[1]: failed(1, code)})
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("local rank 1" in line for f in found.findings for line in f.evidence)


def test_what_other_ranks_did_elsewhere_says_nothing_against_a_local_rank(tmp_path: Path) -> None:
    assert answer(tmp_path, first=WAITS, second=failed(3, -9)).culprits == (3,)


def test_command_line_is_believed_beside_other_logs(tmp_path: Path) -> None:
    command = "+ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=2 train.py\n"
    found = answer(tmp_path, node0=WAITS + STOPPED, node1=command + RAISED + failed(1, 1))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (3,))


def test_repeated_launcher_lines_and_process_logs_are_of_one_node(tmp_path: Path) -> None:
    ended = RAISED + failed(0, 1)
    (tmp_path / "attempt_0" / "0").mkdir(parents=True)
    (tmp_path / "attempt_0" / "0" / "stderr.log").write_text(RAISED)
    assert answer(tmp_path, job=ended, copy=ended).culprits == (0,)


def test_two_nodes_have_folders_of_one_number(tmp_path: Path) -> None:
    """The exception of the second node's first process was attributed to rank 0."""
    for node, local in ((0, 0), (0, 1), (1, 0), (1, 1)):
        folder = tmp_path / f"node{node}" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        rank = 2 * node + local
        (folder / "stderr.log").write_text(RAISED if rank == 2 else timeout(rank, 7))
    found = diagnose(load_trace([tmp_path]))
    assert not {0, 1, 3} & set(found.culprits)
    assert any("bad sample" in line for f in found.findings for line in (*f.evidence, f.fix))
