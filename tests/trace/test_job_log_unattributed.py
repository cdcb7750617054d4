"""Exceptions whose process the log does not state, and unknown prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace

from .logs import timeout, trace_of

WORLD = "world_size=4\n"
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 88, in step\n'
    "    loss = model(batch)\n"
    "ValueError: corrupt shard 17\n"
)


def waits(*ranks: int) -> str:
    return "".join(timeout(rank, 78) for rank in ranks)


def in_front(prefix: str, text: str = RAISED) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def told(found: Diagnosis) -> tuple[str, tuple[int, ...]]:
    return found.verdict.value, found.culprits


def test_exception_without_a_known_rank_is_the_next_thing_to_check() -> None:
    found = diagnose(trace_of(WORLD + waits(1) + RAISED))
    assert told(found) == ("inconclusive", ())
    assert "ValueError: corrupt shard 17 (train.py:88 in step)" in found.findings[0].fix
    lost = diagnose(trace_of(WORLD + waits(0, 1, 3) + RAISED))
    assert told(lost) == ("rank_lost", (2,))
    assert any("corrupt shard 17" in line for line in lost.findings[0].evidence)
    assert "check whether this is about rank 2" in lost.findings[0].fix


def test_exception_without_a_rank_explains_nothing_if_all_ranks_wait() -> None:
    found = diagnose(trace_of(RAISED + WORLD + waits(0, 1, 2, 3)))
    assert told(found) == ("stuck_collective", ())
    assert "corrupt shard" not in repr(found)


def test_exception_without_a_rank_may_be_of_an_unmentioned_one() -> None:
    """The world size is unknown: the mentioned ranks were taken for all."""
    found = diagnose(trace_of(RAISED + waits(0, 1, 2)))
    assert told(found) == ("inconclusive", ())
    assert any("corrupt shard 17" in line for line in found.findings[0].evidence)


STOPPED = "slurmstepd: error: *** STEP 812.0 ON node1 CANCELLED AT 2025-08-16T12:00:00 ***\n"


def test_failure_before_the_stop_is_reported_first() -> None:
    found = diagnose(trace_of(RAISED + STOPPED))
    assert told(found) == ("inconclusive", ())
    assert found.summary.startswith("ValueError: corrupt shard 17 (train.py:88 in step) was raised")
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0.\n"
    assert diagnose(trace_of(killed + STOPPED)).summary.startswith("A process ran out of memory")


def test_failure_caused_by_the_stop_is_not_reported() -> None:
    found = diagnose(trace_of(STOPPED + RAISED))
    assert found.summary.startswith("The job was told to stop from outside")


def test_exception_raised_by_a_wait_is_no_reason_for_it() -> None:
    gave_up = "RuntimeError: [../gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
    raised = RAISED.replace("ValueError: corrupt shard 17", gave_up + "operation to complete")
    found = diagnose(trace_of(WORLD + waits(1) + raised))
    assert told(found) == ("inconclusive", ())
    assert "of no rank is said" not in repr(found)


def test_out_of_memory_without_a_rank_is_reported() -> None:
    events = "      Reason:       OOMKilled\n      Exit Code:    137\n"
    found = diagnose(trace_of(WORLD + waits(0, 1, 3) + events))
    assert told(found) == ("rank_lost", (2,))
    assert any("OOMKilled" in line for line in found.findings[0].evidence)


@pytest.mark.parametrize(
    "prefix",
    [
        "[2025-08-16 12:00:01,123][rank 2][ERROR] ",
        "2025-08-16 12:00:01.123 | ERROR    | rank=2 | train:main:42 - ",
        "Rank 2: ",
        "rank2: ",
        "(rank 2) ",
        "logs/rank_2.log:",
        "[INFO|rank2|train.py:10] ",
    ],
)
def test_rank_in_a_prefix_of_the_jobs_own_logger(prefix: str) -> None:
    found = diagnose(trace_of(WORLD + waits(0, 1, 3) + in_front(prefix)))
    assert told(found) == ("rank_crashed", (2,))
    assert "corrupt shard 17" in found.summary


@pytest.mark.parametrize("prefix", ["job-worker-1 pytorch ", "local_rank 2: ", "tp rank 2: "])
def test_other_number_in_a_prefix_is_no_rank(prefix: str) -> None:
    found = diagnose(trace_of(WORLD + waits(1) + in_front(prefix)))
    assert told(found) == ("inconclusive", ())
    assert "corrupt shard 17" in found.findings[0].fix


def test_unprefixed_lines_after_a_traceback_belong_to_it() -> None:
    head, rest = RAISED.split("\n", 1)
    logged = f"2025-08-16 12:00:01 [Rank 2] ERROR failed: {head}\n{rest}"
    found = diagnose(trace_of(WORLD + waits(0, 1, 3) + logged))
    assert told(found) == ("rank_crashed", (2,))


def test_traceback_below_a_torch_message_is_not_of_its_rank() -> None:
    warning = "[rank0]:[W816 12:00:00.111111111 socket.cpp:752] failed to connect, error\n"
    found = diagnose(trace_of(WORLD + warning + RAISED + waits(1, 3)))
    assert told(found) == ("inconclusive", ())


def test_node_in_a_skypilot_label_is_no_rank() -> None:
    label = "(worker1, rank=1, pid=3456, ip=10.0.0.2) "
    heads = in_front("(head, rank=0, pid=2010) ", waits(0, 2, 3))
    own = in_front(label, waits(4, 5, 6, 7))
    found = diagnose(trace_of("world_size=8\n" + heads + own + in_front(label)))
    assert told(found) == ("rank_lost", (1,))
    assert "corrupt shard 17" in found.findings[0].fix


def test_file_headings_show_whose_lines_follow() -> None:
    files = [(rank, RAISED if rank == 2 else timeout(rank, 78)) for rank in range(4)]
    text = "".join(f"==> logs/rank_{rank}.log <==\n{lines}\n" for rank, lines in files)
    assert told(diagnose(trace_of(text))) == ("rank_crashed", (2,))


@pytest.mark.parametrize("key", ["exc_info", "stack_trace"])
def test_traceback_in_a_field_of_its_own(key: str) -> None:
    record = {"message": "training failed", "rank": 2, key: RAISED}
    error = {"message": "training failed", "rank": 2, "error": {key: RAISED}}
    for told_so in (record, error):
        text = WORLD + waits(0, 1, 3) + json.dumps(told_so) + "\n"
        assert told(diagnose(trace_of(text))) == ("rank_crashed", (2,))


def test_export_that_is_one_object(tmp_path: Path) -> None:
    lines = (WORLD + waits(0, 1, 3) + in_front("[rank2]: ")).splitlines()
    events = [{"timestamp": 1755346201000, "message": line} for line in lines]
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"events": events, "nextForwardToken": "f/1"}))
    assert told(diagnose(load_trace([path]))) == ("rank_crashed", (2,))


def stopped(rank: int) -> str:
    return (
        f"[{rank}]:\n  time      : 2026-11-23_02:14:28\n  host      : node0\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : -15 (pid: {500 + rank})  (SIGTERM)\n  error_file: <N/A>\n"
        f"  traceback : Signal 15 (SIGTERM) received by PID {500 + rank}\n"
    )


@pytest.mark.parametrize(("printed", "failed"), [(3, (0, 1, 2)), (1, (1,)), (2, (1,)), (4, (1,))])
def test_exception_printed_once_per_rank_was_raised_by_all(
    printed: int, failed: tuple[int, ...]
) -> None:
    """An import fails on all ranks: torchrun observes one exit, and stops those still failing."""
    told_to_stop = "".join(
        f"W1123 02:14:28.783000 77 torch/distributed/elastic/multiprocessing/api.py:1028] Sending "
        f"process {500 + rank} closing signal SIGTERM\n"
        for rank in (0, 2)
    )
    table = (
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n"
        f"{stopped(0)}{stopped(2)}"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n  time      : 2026-11-23_02:14:28\n  host      : node0\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 501)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/\n"
        "============================================================\n"
    )
    found = diagnose(trace_of(RAISED * printed + told_to_stop + table))
    assert told(found) == ("rank_crashed", failed)


BROKEN_LINK = (
    "node4:812:990 [2] prov_cq:77 NCCL WARN NET/OFI Request 0x6 completed with error. RC: 5\n"
)
XID = "[Sat Aug 16 12:00:00 2025] NVRM: Xid (PCI:0000:1a:00): 145, pid=815, name=python, RLW\n"


@pytest.mark.parametrize("trouble", [BROKEN_LINK, XID], ids=["link", "device"])
def test_possible_reason_of_a_stuck_collective_is_reported(trouble: str) -> None:
    found = diagnose(trace_of(WORLD + trouble + waits(0, 1, 2, 3)))
    assert told(found) == ("stuck_collective", ())
    (finding,) = found.findings
    shown = trouble.strip()[:40]
    assert any(shown in line for line in finding.evidence)
    assert f"begin with this: {shown}" in finding.fix


def test_an_error_of_a_connection_after_a_timeout_explains_nothing() -> None:
    found = diagnose(trace_of(WORLD + waits(0, 1, 2, 3) + BROKEN_LINK))
    assert told(found) == ("stuck_collective", ())
    assert not any("NET/OFI" in line for line in found.findings[0].evidence)
