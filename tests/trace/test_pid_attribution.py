"""Processes that one file knows by pid and another by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace

from .logs import timeout

SPY = """Process {pid}: {command}
Python v3.11.4 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {where}
    step (train.py:44)
    <module> (train.py:90)
"""
WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
LOADS = "read_sample (data.py:12)"
WORKER = (
    "decode (data.py:30)\n    _worker_loop (torch/utils/data/_utils/worker.py:351)\n"
    "    _bootstrap (multiprocessing/process.py:314)"
)
LAUNCHER = "_invoke_run (torch/distributed/elastic/agent/server/api.py:885)"
FORKED = (
    "read_sample (data.py:12)\n    _bootstrap (multiprocessing/process.py:314)\n"
    "    start_processes (torch/multiprocessing/spawn.py:238)"
)
DUMP = """Timeout (0:10:00)!
Thread 0x00007f22 (most recent call first):
  File "{file}", line 12 in {name}
  File "/app/train.py", line 90 in <module>
"""
KILLED = "[81.7] Out of memory: Killed process {pid} (python) total-vm:812345kB\n"
FELL_OFF = "NVRM: Xid (PCI:0000:44:00): 79, pid={pid}, name=python, GPU has fallen off the bus.\n"


def spy(pid: int, where: str, command: str = "/usr/bin/python -u train.py") -> str:
    return SPY.format(pid=pid, where=where, command=command)


def communicator(hosts: Sequence[str], pids: Sequence[int]) -> str:
    """What NCCL prints as the ranks come together."""
    return "".join(
        f"{host}:{pid}:{pid + 900} [0] NCCL INFO ncclCommInitRank comm 0x55d0c0de00{rank:02x} rank "
        f"{rank} nranks {len(pids)} cudaDev 0 busId 1000 commId 0xaaf1 - Init COMPLETE\n"
        for rank, (host, pid) in enumerate(zip(hosts, pids, strict=True))
    )


ONE_NODE = communicator(["node1"] * 4, [500, 501, 502, 503])
TWO_NODES = communicator(["node1", "node1", "node2", "node2"], [77, 78, 77, 78])
WAITED = "".join(timeout(rank, 7) for rank in (0, 1, 3))


def answer(folder: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return diagnose(load_trace([folder]))


def test_stacks_by_pid_belong_to_the_rank_in_the_log(tmp_path: Path) -> None:
    files = {f"pyspy_{500 + r}": spy(500 + r, LOADS if r == 2 else WAITS) for r in range(4)}
    found = answer(tmp_path, job=ONE_NODE, **files)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert "data.py:12 in read_sample" in found.summary


def test_faulthandler_shows_no_pid_but_its_file_name_may(tmp_path: Path) -> None:
    calls = [("/x/torch/distributed/distributed_c10d.py", "all_reduce")] * 4
    calls[1] = ("/app/data.py", "read_sample")
    dumps = {
        f"faulthandler-{500 + r}": DUMP.format(file=file, name=name)
        for r, (file, name) in enumerate(calls)
    }
    found = answer(tmp_path, job=ONE_NODE, **dumps)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_process_elsewhere_is_reported_if_ranks_are_unknown(tmp_path: Path) -> None:
    files = {f"pyspy_{500 + r}": spy(500 + r, LOADS if r == 2 else WAITS) for r in range(4)}
    found = answer(tmp_path, **files)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.startswith("Process 502 is at data.py:12 in read_sample while 3 processes")
    assert "/proc/502/environ" in found.findings[0].fix


def titled(*titles: str, elsewhere: int) -> str:
    """What an engine writes that lets py-spy look at its workers one after the other."""
    return "\n".join(
        spy(500 + place, LOADS if place == elsewhere else WAITS, title)
        for place, title in enumerate(titles)
    )


@pytest.mark.parametrize(
    "title",
    ["sglang::scheduler_TP{r}", "VLLM::Worker_TP{r}_EP{r}", "sglang::scheduler_DP{r}_TP{r}"],
)
def test_process_titles_of_engine_workers_show_their_ranks(tmp_path: Path, title: str) -> None:
    found = answer(tmp_path, dumps=titled(*(title.format(r=r) for r in (2, 0, 3, 1)), elsewhere=2))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


@pytest.mark.parametrize("worker", [2, 10])
def test_workers_of_replicas_have_equal_ranks(tmp_path: Path, worker: int) -> None:
    titles = [f"sglang::scheduler_TP{r}" for r in (*range(8), *range(8))]
    found = answer(tmp_path, dumps=titled(*titles, elsewhere=worker))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.startswith(f"Process {500 + worker} is at data.py:12")


def test_titles_are_put_together_across_files(tmp_path: Path) -> None:
    files = {f"p{r}": spy(500 + r, WAITS, f"VLLM::Worker_TP{r}") for r in range(3)}
    found = answer(tmp_path, **files, p3=spy(503, LOADS, "VLLM::Worker_TP3"))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))
    found = answer(tmp_path, p4=spy(510, WAITS, "VLLM::Worker_TP0"))  # of another replica
    assert found.summary.startswith("Process 503 is at data.py:12")


@pytest.mark.parametrize("sign", ["Rank 5: ", "Rank 5, node n1, device 1, iteration 12: "])
def test_message_beginning_with_its_writer_belongs_to_that_rank(tmp_path: Path, sign: str) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/app/grad.py", line 9, in check\n    f()\n'
        f"AssertionError: {sign}found NaN in local grad norm\n"
    )
    found = answer(tmp_path, job="[rank3]: step 11\n" + raised)
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (5,))
    assert found.confidence.value == "likely"
    of_another = raised.replace(sign, "Rank 5 did not answer: ")
    assert not answer(tmp_path, job="[rank3]: step 11\n" + of_another).culprits


def test_single_stack_is_shown(tmp_path: Path) -> None:
    found = answer(tmp_path, spy=spy(4711, WAITS, "ray::WorkerDict.update_actor"))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.startswith("Process 4711 waits in communication at train.py:44 in step")
    assert not found.warnings


def test_rank_elsewhere_is_reported_beside_a_missing_one(tmp_path: Path) -> None:
    found = answer(tmp_path, job=WAITED, spy=spy(4711, LOADS))
    assert found.culprits == (2,)
    assert "process 4711 is at data.py:12 in read_sample" in found.findings[0].fix


@pytest.mark.parametrize("where", [WORKER, LAUNCHER], ids=["a loader's worker", "torchrun"])
def test_process_that_is_no_rank_may_be_anywhere(tmp_path: Path, where: str) -> None:
    """The worker of a data loader was taken for the rank in whose file it was listed."""
    files = {f"stack_rank_{r}": spy(500 + r, WAITS) for r in range(4)}
    files["stack_rank_2"] += spy(777, where)
    assert answer(tmp_path, **files).culprits == ()


def test_rank_forked_by_its_launcher_is_not_the_launcher(tmp_path: Path) -> None:
    files = {f"stack_rank_{r}": spy(500 + r, FORKED if r == 2 else WAITS) for r in range(4)}
    assert answer(tmp_path, **files).culprits == (2,)


def test_pid_of_two_machines_belongs_to_none(tmp_path: Path) -> None:
    waits = "".join(timeout(rank, 7) for rank in range(4))
    for said in (KILLED.format(pid=77), FELL_OFF.format(pid=77), spy(77, LOADS)):
        assert answer(tmp_path, job=TWO_NODES + waits, other=said).culprits == ()


def test_host_name_decides_between_equal_pids(tmp_path: Path) -> None:
    (tmp_path / "job.txt").write_text(TWO_NODES + WAITED)
    (tmp_path / "node2").mkdir()
    (tmp_path / "node2" / "dmesg.txt").write_text(KILLED.format(pid=77))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "killed for memory" in found.summary


@pytest.mark.parametrize("said", [KILLED, FELL_OFF])
def test_unknown_pid_may_belong_to_a_rank_without_known_pid(tmp_path: Path, said: str) -> None:
    half = "".join(TWO_NODES.splitlines(keepends=True)[:2])
    waits = "".join(timeout(rank, 7) for rank in range(4))
    assert answer(tmp_path, job=half + waits, dmesg=said.format(pid=77)).culprits == ()


@pytest.mark.parametrize("said", [KILLED, KILLED.replace("Out of", "Memory cgroup out of")])
def test_kernel_message_about_a_process_belongs_to_its_rank(tmp_path: Path, said: str) -> None:
    found = answer(tmp_path, job=ONE_NODE + WAITED, dmesg=said.format(pid=502))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


def test_kernel_messages_of_another_host_are_ignored(tmp_path: Path) -> None:
    line = "Aug 16 12:00:00 node9 kernel: " + FELL_OFF.format(pid=500)
    assert answer(tmp_path, job=ONE_NODE + WAITED, messages=line * 4).culprits == (2,)
