"""Torchrun's failure tables that quote a process's error file, and unknown prefixes."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.trace.logs import timeout, trace_of

RULE = "-" * 60 + "\n"


def entry(rank: int, code: int, told: str, second: int = 20) -> str:
    return (
        f"[{rank}]:\n  time      : 2025-03-11_18:33:{second}\n  host      : node1\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {800 + rank})\n"
        f"  error_file: /tmp/attempt_0/{rank}/error.json\n  traceback : {told}\n"
    )


def quoted(error: str, where: str = "decode") -> str:
    return (
        "Traceback (most recent call last):\n"
        '    File "/env/lib/python3.11/site-packages/torch/elastic/errors/__init__.py", line 3, in '
        "wrapper\n      return f(*args, **kwargs)\n             ^^^^^^^^^^^^^^^^^^\n"
        f'    File "/job/data.py", line 9, in {where}\n      raise ValueError(path)\n  {error}\n'
    )


STOPPED = "Signal 15 (SIGTERM) received by PID 801"


def judged(*entries: str) -> Diagnosis:
    return diagnose(trace_of("train.py FAILED\n" + RULE + "Failures:\n" + "".join(entries) + RULE))


def test_error_file_in_the_table_gives_the_reason() -> None:
    found = judged(entry(1, -15, STOPPED), entry(2, 1, quoted("ValueError: corrupt shard 17")))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "corrupt shard 17" in found.summary
    assert "data.py:9" in found.findings[0].fix


def test_of_two_error_files_the_first_failure_is_reported() -> None:
    closed = "RuntimeError: [../gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:9"
    found = judged(
        entry(0, 1, quoted(closed), 21),
        entry(1, 1, quoted(closed), 21),
        entry(2, 1, quoted("ValueError: corrupt shard 17"), 20),
    )
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "corrupt shard 17" in found.summary


def test_lines_below_the_table_belong_to_none_of_its_ranks() -> None:
    text = "train.py FAILED\n" + RULE + "Failures:\n" + entry(2, 1, quoted("ValueError: shard 17"))
    trace = trace_of(text + RULE + "Traceback (most recent call last):\n" + quoted("OSError: disk"))
    error = trace.ranks[2].exception
    assert error is not None
    assert "shard 17" in error.message


@pytest.mark.parametrize(
    "prefix",
    [
        "trainer-worker-1 pytorch ",
        "worker1_1  | ",
        "Aug 19 10:00:00 node1 train[4711]: ",
        "1002\t",
        "[2026-08-19 10:00:00,123] [rank 9] ",
        "[actor=<root>.<train {'gpus': 2}>] ",
    ],
)
def test_torchs_prefix_is_found_behind_any_other(prefix: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/job/data.py", line 31, in decode']
    raised += ["    raise ValueError(path)", "ValueError: corrupt shard 17"]
    text = "".join(f"{prefix}[rank2]: {line}\n" for line in raised)
    waits = "".join(prefix + line + "\n" for r in (0, 1, 3) for line in timeout(r, 5).splitlines())
    found = diagnose(trace_of(text + waits))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "corrupt shard 17" in found.summary


WAITS = "".join(timeout(r, 5) for r in (0, 1, 3))


def test_error_inside_an_exception_group_counts() -> None:
    group = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/job/train.py", line 88, in <module>',
        "  |     main()",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/job/data.py", line 31, in decode',
        "    |     raise ValueError(path)",
        "    | ValueError: corrupt shard 17",
        "    +------------------------------------",
    ]
    found = diagnose(trace_of("".join(f"[rank2]: {line}\n" for line in group) + WAITS))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "corrupt shard 17" in found.summary
    assert "data.py:31" in found.findings[0].fix


def test_single_silent_task_has_the_rank_of_its_number() -> None:
    killed = "srun: error: node7: task 2: Out Of Memory\n"
    found = diagnose(trace_of(killed + WAITS))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "memory" in found.summary
    other = diagnose(trace_of(killed.replace("task 2", "task 1") + WAITS))
    assert other.culprits != (1,)  # rank 1 gave up later: that task holds other ranks


def test_vllm_executor_identifies_the_dead_rank() -> None:
    found = diagnose(
        trace_of(
            "ERROR 07-04 17:35:16 [multiproc_executor.py:140] Worker proc VllmWorker-1 died "
            "unexpectedly, shutting down executor.\n"
        )
    )
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def test_table_with_lines_joined_by_a_collector() -> None:
    """The number in front counts failures and is no rank."""
    row = (
        "  | 2025-08-16T12:10:58.879Z | [0]: time : 2025-08-16_12:10:5{second} host : algo-2 "
        "rank : {rank} (local_rank: {rank}) exitcode : {code} (pid: 18{rank}) error_file: "
        "<N/A> traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
    )
    failed = row.format(rank=2, code=1, second=3)
    found = diagnose(
        trace_of(failed + row.format(rank=3, code=-15, second=8).replace("[0]", "[1]"))
    )
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert sorted(trace_of(failed).ranks) == [2]


def test_table_truncated_before_the_first_failure_names_no_rank() -> None:
    text = "train.py FAILED\n" + RULE + "Failures:\n" + entry(6, 1, "To enable traceback see: x")
    found = diagnose(trace_of(text + entry(4, -9, "Signal 9 (SIGKILL) received by PID 804", 50)))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "Rank 6 failed" in found.summary


def test_failure_with_a_reason_counts_in_a_truncated_table() -> None:
    text = "train.py FAILED\n" + RULE + "Failures:\n"
    found = diagnose(trace_of(text + entry(6, 1, quoted("ValueError: corrupt shard 17"))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (6,))


def test_first_rank_of_the_table_has_failed_despite_a_truncated_status() -> None:
    told = "To enable traceback see: x"
    text = "Failures:\n" + entry(6, 1, told, 31) + "Root Cause (first observed failure):\n"
    found = diagnose(trace_of(text + entry(3, 1, told, 31).partition("  exitcode")[0]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (3,))
    assert found.findings[0].confidence.value == "likely"


def test_table_truncated_in_its_only_row_shows_no_exit() -> None:
    text = "Root Cause (first observed failure):\n" + entry(1, 1, "x").partition("  exitcode")[0]
    assert trace_of("[rank0]: step 3\n" + text).ranks[1].exit is None
