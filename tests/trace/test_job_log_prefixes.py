"""Prefixes that state whose line it is, and whose stacks those are."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.job_log.lines.stream import read_lines
from hangscope.trace.job_log.readers.registry import telling_words
from hangscope.trace.load import load_trace
from tests.trace.logs import WORK, overdue, timeout, trace_of

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 88, in main',
    "    step()",
    "ValueError: bad sample",
)
OTHERS = "".join(timeout(rank, 7) for rank in (0, 1, 3))


def each(prefix: str) -> str:
    """The traceback with a prefix in front of every line."""
    return "".join(f"{prefix}{line}\n" for line in TRACEBACK)


@pytest.mark.parametrize(
    "text",
    [
        each("[2024-02-27T21:35:28.705869Z] fa88a9df [rank=2] || "),
        each("[Rank 2] ").replace("[Rank 2] Trace", "[Rank 2] ERROR: Trace"),
        each("(Worker_TP2 pid=811) ERROR 07-25 06:50:48 [executor.py:5] "),
        each("(Worker_DP1_TP0_EP2 pid=811) "),
        "[2025-04-21 02:05:39 DP0 TP2 EP2] Scheduler hit an exception: " + each(""),
        "[2025-04-21 02:05:39 TP2 PP0] Scheduler hit an exception: " + each(""),
        json.dumps({"rank": 2, "level": "error", "msg": "\n".join(TRACEBACK)}) + "\n",
        each("[rank2]:"),
        each("stderr: [rank2]: "),
        " 2%|# | 11/512 [01:09<57:05,  6.84s/it][2025-04-21 02:05:39 TP2] Failed: " + each(""),
    ],
    ids=[
        "determined",
        "printed",
        "vllm",
        "experts",
        "sglang",
        "sglang-pp",
        "json",
        "role-rank",
        "stream",
        "behind-a-bar",
    ],
)
def test_traceback_belongs_to_its_writer(text: str) -> None:
    found = diagnose(trace_of(text + OTHERS))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "bad sample" in found.summary


@pytest.mark.parametrize("prefix", ["(Worker_DP1_TP0 pid=811) ", "(Worker_PP1_TP0_EP0 pid=811) "])
def test_place_in_a_mesh_dimension_is_no_rank(prefix: str) -> None:
    trace = trace_of(each(prefix) + timeout(1, 7))
    assert 0 not in trace.ranks


@pytest.mark.parametrize(
    ("number", "file", "pid"),
    [
        ("4711", "torch/elastic/api.py", 4711),
        ("139930221004544", "torch/elastic/api.py", None),
        ("4711", "caffe2/ProcessGroupNCCL.cpp", None),
    ],
)
def test_number_in_a_line_head_may_be_a_threads(number: str, file: str, pid: int | None) -> None:
    head = f"E0816 12:10:05.123456 {number} {file}:869] "
    (line,) = read_lines(io.BytesIO(f"{head}RuntimeError: no\n".encode()), telling_words(), 2025)
    assert (line.text, line.level, line.pid) == ("RuntimeError: no", "E", pid)


def test_role_named_rank_is_a_torchrun_label() -> None:
    """``--role rank`` puts the local rank in front; torch's own messages show the global rank."""
    text = each("[rank2]:") + "".join(f"[rank{r % 4}]:{timeout(r, 7)}" for r in (8, 9, 11))
    trace = trace_of(text)
    assert 2 not in trace.ranks
    assert not diagnose(trace).culprits
    hooked = diagnose(trace_of(each("[rank2]:[rank10]: ") + text))
    assert (hooked.verdict.value, hooked.culprits) == ("rank_crashed", (10,))


def test_bar_in_front_of_a_message_removes_no_label() -> None:
    gone = "HW Exception by GPU node-5 (Agent handle: 0x631351bb5a20) reason :GPU Hang\n"
    text = f"[default2]: 41%|#### | 366/903 [5:15:39<6:53:09, 46.16s/it]{gone}" + OTHERS
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "issued it" not in " ".join(found.findings[0].evidence)


def test_many_bars_are_read() -> None:
    text = "1/9 [00:01<00:02,  1.00it/s]" * 1200 + "\n" + OTHERS
    assert diagnose(trace_of("world_size=4\n" + text)).culprits == (2,)


def test_text_in_front_of_a_message_is_not_quoted() -> None:
    text = (
        "2024-01-11 05:43:11.726254: E external/xla/xla/service/gpu/nccl_utils.cc:211] Aborting "
        "communicator: 0x7f3e due to async NCCL error: remote process exited or there was a "
        "network error\n  | 2025-05-16T16:39:51.208-07:00 | torch.distributed.DistBackendError: "
        "NCCL error in: NCCLUtils.cpp:77, unhandled system error\n"
    )
    evidence = " ".join(diagnose(trace_of(text)).findings[0].evidence)
    assert "Aborting communicator" in evidence
    assert "external/xla" not in evidence


def test_compose_service_name_is_no_part_of_a_traceback() -> None:
    found = diagnose(trace_of(each("worker1-1  | ")))
    assert "ValueError: bad sample" in found.summary


def test_torchs_own_messages_keep_their_number() -> None:
    """``[Rank 3]`` is a group rank there, not a prefix of the job's."""
    work = "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=60000)"
    line = (
        f"[Rank 3] Watchdog caught collective operation timeout: {work} ran for 60001 milliseconds"
    )
    trace = trace_of(f"[rank7]: {line} before timing out.\n")
    assert list(trace.ranks) == [7]


def test_driver_message_about_a_local_rank_ends_that_rank() -> None:
    text = (
        "[default2]:Memory access fault by GPU node-4 (Agent handle: 0x55a) on address 0x7f10.\n"
        + "".join(
            f"[default{r}]:{line}\n" for r in (0, 1, 3) for line in timeout(r, 7).splitlines()
        )
        + "E0816 12:11:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed "
        "(exitcode: -6) local_rank: 2 (pid: 803) of binary: /usr/bin/python\n"
    )
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


def spy(rank: int, function: str, head: str, command: str = "train.py") -> str:
    """What py-spy prints of one process."""
    return (
        f"{head.format(r=rank)}Process {4700 + rank}: /usr/bin/python -u {command.format(r=rank)}\n"
        "Python v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread {4700 + rank} (idle): "MainThread"\n'
        f"    {function}\n    main (app/train.py:80)\n\n"
    )


WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2800)"
READS = "get (queue.py:180)"


@pytest.mark.parametrize(
    ("head", "command"),
    [
        ("==== rank {r} ====\n", "train.py"),
        ("### Rank {r} (pid 47{r}) ###\n\n", "train.py"),
        ("--- node01 rank{r} ---\n", "train.py"),
        ("Dumping the stack of rank {r}:\n", "train.py"),
        ("", "train.py --local_rank={r}"),
        ("", "train.py --local-rank {r} --x"),
    ],
)
@pytest.mark.parametrize("above", ["", "nothing\n" * 2000])
def test_stacks_in_one_file_belong_to_the_rank_above(head: str, command: str, above: str) -> None:
    text = "".join(spy(r, READS if r == 2 else WAITS, head, command) for r in range(4))
    found = diagnose(trace_of(above + text))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_rank_mentioned_long_before_is_not_the_stacks() -> None:
    trace = trace_of("rank 3 is slow\n" + "x\n" * 9 + spy(0, WAITS, ""))
    assert not any(facts.threads for facts in trace.ranks.values())


@pytest.mark.parametrize(
    "prefix", ["[default2]:", "2: ", "node1: ", "[trainer0|2]: ", "(Worker pid=77, ip=10.0.0.2) "]
)
def test_torchs_hook_behind_a_launcher_prefix_keeps_its_frames(prefix: str) -> None:
    """The head of a traceback stood apart from its frames under ``torchrun --tee``."""
    trace = trace_of(each(f"{prefix}[rank2]: ") * 2)
    error = trace.ranks[2].exception
    assert error is not None
    assert [frame.name for frame in error.stack] == ["main"]


def test_traceback_head_with_another_prefix_belongs_to_its_frames() -> None:
    lines = each("[rank2]: ").splitlines()
    text = "\n".join([lines[0], *(f"[default2]:{line}" for line in lines[1:])])
    error = trace_of(text).ranks[2].exception
    assert error is not None
    assert [frame.name for frame in error.stack] == ["main"]


def test_folder_named_like_a_rank_is_ignored_if_several_write_there(tmp_path: Path) -> None:
    ends = WORK.format(seq=65, op="ALLREDUCE", n=1)
    log = "".join(
        (
            *(timeout(rank, 65, "ALLREDUCE", 1) for rank in (2, 3, 1)),
            timeout(0, 65, "BROADCAST", 16),
            "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread "
            f"terminated with exception: [Rank 2] Watchdog caught collective operation timeout: "
            f"{ends} ran for 20087 milliseconds before timing out.\n",
        )
    )
    for folder in ("job", "eval_rank0"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.log").write_text(log, "utf-8")
        trace = load_trace([tmp_path / folder])
        of_rank_0 = [op for rank, _, op, _ in overdue(trace) if rank == 0]
        assert of_rank_0 == ["broadcast"], folder
        assert trace.sources[0].rank is None
