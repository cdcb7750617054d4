"""Evidence from the field that was once judged wrongly: whole kinds, with made-up numbers."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.report.text import render
from hangscope.trace.load import NothingReadable, load_trace

CASES = Path(__file__).parent / "cases"


def judged(name: str) -> Diagnosis:
    """The diagnosis of everything that a case has."""
    return diagnose(load_trace([*sorted((CASES / name).iterdir())]))


def of_text(text: str, tmp_path: Path, name: str = "job.log") -> Diagnosis:
    (tmp_path / name).write_text(text)
    return diagnose(load_trace([tmp_path / name]))


def report(found: Diagnosis) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(render(found))
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize(
    ("name", "verdict", "culprits", "confidence"),
    [
        ("two-members-apart", "collective_mismatch", (0, 1), "ambiguous"),
        ("sides-are-hosts", "collective_mismatch", (5, 8, 9, 13), "ambiguous"),
        ("abort-after-timeouts", "inconclusive", (), None),
        ("backend-refuses-arguments", "rank_crashed", (2, 3), None),
        ("coalesced-collective", "shape_mismatch", (4, 6), "ambiguous"),
        ("stack-of-failed-collective", "inconclusive", (), None),
        ("explanation-beats-status", "shape_mismatch", (0, 1, 2), "ambiguous"),
        ("nccl-info-lines", "collective_mismatch", (2,), "likely"),
        ("assert-is-a-program-bug", "rank_crashed", (3,), None),
        ("line-that-stands-alone", "rank_crashed", (3,), "likely"),
        ("four-processes-in-one-file", "inconclusive", (), None),
        ("coll-lines-a-file-per-rank", "collective_mismatch", (0,), "likely"),
        ("ras-json-without-comma", "rank_lost", (2,), "likely"),
        ("init-hang", "missing_rank", (2,), "likely"),
    ],
)
def test_answer(name: str, verdict: str, culprits: tuple[int, ...], confidence: str | None) -> None:
    found = judged(name)
    assert (found.verdict.value, found.culprits) == (verdict, culprits)
    assert confidence in (None, found.confidence.value)


def test_number_of_ranks_that_nobody_stated_is_not_invented() -> None:
    assert "of 6" not in report(judged("stack-of-failed-collective"))


def test_members_that_ran_apart_are_no_stuck_device() -> None:
    said = report(judged("two-members-apart"))
    assert "ran apart" in said
    assert "not the code" not in said


def test_sides_on_different_hosts_are_pointed_out() -> None:
    assert "different hosts (trainer-a07 and trainer-a06)" in report(judged("sides-are-hosts"))


@pytest.mark.parametrize("local", range(8))
def test_late_abort_names_nobody_whichever_local_rank_it_was(local: int, tmp_path: Path) -> None:
    text = (CASES / "abort-after-timeouts" / "job.log").read_text()
    found = of_text(text.replace("local_rank: 1 ", f"local_rank: {local} "), tmp_path)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "issued nothing" not in report(found)


def test_members_heard_of_only_in_part_are_listed() -> None:
    said = report(judged("abort-after-timeouts"))
    assert "ranks 2, 4 belong there as well" in said
    assert "nothing is heard of where ranks 0, 1, 5 wait" in said


def test_refused_argument_is_no_echo() -> None:
    found = judged("backend-refuses-arguments")
    assert "train.py:41" in report(found)
    assert found.summary.count("parameter not supported") == 1


def test_coalesced_gather_is_no_send() -> None:
    found = judged("coalesced-collective")
    assert found.findings[0].seq == 610
    assert "#610 of group 9" in found.summary
    assert "send" not in report(found)


def test_stack_of_the_failed_collective_is_shown() -> None:
    said = report(judged("stack-of-failed-collective"))
    assert "dispatch.py:96 in dispatch" in said
    assert "with 3 more enqueued behind it" in said
    assert "look at the logs of ranks 0–4" in said


def test_program_bug_takes_no_host_out_of_service() -> None:
    said = report(judged("assert-is-a-program-bug"))
    assert "CUDA_LAUNCH_BLOCKING=1" in said
    assert "out of service" not in said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
    ],
)
def test_broken_device_takes_its_host_out_of_service(text: str, tmp_path: Path) -> None:
    head = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 7, in step\n'
    found = of_text(
        f"{head}[rank3]:     loss.backward()\n[rank3]: RuntimeError: {text}\n", tmp_path
    )
    assert "out of service" in report(found)


def test_process_is_called_by_its_heading() -> None:
    found = judged("four-processes-in-one-file")
    assert found.summary.startswith("Process 2 is at data.py:41 in next_shard while 3 processes")


def test_processes_without_headings_are_told_apart(tmp_path: Path) -> None:
    text = (CASES / "four-processes-in-one-file" / "stacks.log").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("Process")]
    for number in range(4):  # each process has an address space of its own
        at = [i for i, line in enumerate(lines) if line.startswith("Current thread")][number]
        lines[at] = f"Current thread 0x00007f{number}a4c5d6740 (most recent call first):"
    found = of_text("\n".join(lines), tmp_path, "stacks.log")
    assert "no. 2 of stacks.log is at data.py:41 in next_shard while 3 processes" in found.summary


def test_pieces_say_the_same_in_one_file_and_beside_a_watchdog(tmp_path: Path) -> None:
    parts = [path.read_text() for path in sorted((CASES / "coll-lines-a-file-per-rank").iterdir())]
    overdue = (
        "[rank3]:[E603 10:42:23.858331 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=53, "
        "NumelOut=53, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    )
    for text in ("".join(parts), "".join([*parts, overdue])):
        found = of_text(text, tmp_path)
        assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))


def test_missing_rank_of_ras_is_named_with_its_process() -> None:
    said = report(judged("ras-json-without-comma"))
    assert "process 701 on n1, device 0" in said
    assert "run ncclras once more" in said


def test_communicator_that_nobody_creates(tmp_path: Path) -> None:
    text = (CASES / "init-hang" / "job.log").read_text()
    begun = [line for line in text.splitlines() if line.endswith("Init START")]
    found = of_text("\n".join([*begun, *["step 0"] * 6]), tmp_path)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert "creating a communicator of 4 ranks" in found.summary


SPY = """The stack for rank{rank}:
Thread 0x7FA6E7C01740 (idle): "MainThread"
    {call} ({file}:{line})
    train (train.py:27{rank})
"""


def test_stacks_below_headings_are_of_those_ranks(tmp_path: Path) -> None:
    waits = {"call": "all_reduce", "file": "torch/distributed/distributed_c10d.py", "line": 13}
    text = SPY.format(rank=0, call="__next__", file="app/data.py", line=64)
    text += "".join(SPY.format(rank=rank, **waits) for rank in (1, 2, 3))
    found = of_text(text, tmp_path, "stacks.txt")
    assert sorted(row.rank for row in found.ranks) == [0, 1, 2, 3]
    assert "data.py:64 in __next__" in report(found)


def test_debugger_shows_in_which_call_of_a_library_a_process_stands(tmp_path: Path) -> None:
    found = of_text(
        "Thread 18 (Thread 0x7f0498ffd700 (LWP 135332)):\n"
        "#0  0x00007f05daa8fe8b in pthread_rwlock_wrlock () from /usr/lib/libpthread.so.0\n"
        "#1  0x00007f0580bb3641 in ?? () from /usr/lib/libcuda.so\n"
        "#2  0x00007f04fc98d6e6 in ncclGroupEnd () from /usr/lib/libnccl.so.2\n"
        "Thread 17 (Thread 0x7f0498ffd800 (LWP 135333)):\n"
        "#0  0x00007f04fc9e6a92 in ncclProxyService () from /usr/lib/libnccl.so.2\n",
        tmp_path,
    )
    assert found.summary.startswith("A process stands in ncclGroupEnd (libnccl.so.2)")


GDB = """Thread 1 (Thread 0x7f2 (LWP 100) "python3"):
#0  0x00007f05daa8fe8b in {inner} () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f0580bb3641 in {outer}
#2  0x00007f0580bb3646 in _PyEval_EvalFrameDefault () from /usr/lib/libpython3.11.so
"""


@pytest.mark.parametrize(
    ("inner", "outer", "words"),
    [
        (
            "pthread_mutex_lock",
            "ncclCommInitRankFunc (job_=0x1) at init.cc:1700",
            "stands in ncclCommInitRankFunc (init.cc:1700), creating a communicator, at pthread",
        ),
        ("poll", "PMPI_Allreduce (count=4) from /opt/libmpi.so.12", "PMPI_Allreduce (libmpi.so.12"),
        (
            "epoll_wait",
            "ccl_allreduce_impl(void const*, unsigned long) () from /opt/libccl.so.1",
            "stands in ccl_allreduce_impl (libccl.so.1)",
        ),
        (
            "clock_gettime",
            "cuStreamSynchronize () from /usr/lib/libcuda.so.1",
            "stands in cuStreamSynchronize (libcuda.so.1)",
        ),
        (
            "futex",
            "c10d::ProcessGroupNCCL::broadcast () at x.cpp:12",
            "c10d::ProcessGroupNCCL::broadcast",
        ),
    ],
)
def test_native_frames_tell_what_a_process_is_about(
    inner: str, outer: str, words: str, tmp_path: Path
) -> None:
    assert words in of_text(GDB.format(inner=inner, outer=outer), tmp_path).summary


def test_native_frames_of_pystack_stand_beside_pythons(tmp_path: Path) -> None:
    text = """Traceback for thread 4711 (python3) [] (most recent call last):
    (Python) File "/app/train.py", line 20, in train
        dist.all_reduce(x)
    (C) File "???", line 0, in c10d::ProcessGroupNCCL::allreduce (/x/libtorch_cuda.so)
    (C) File "???", line 0, in ncclCommInitRankConfig (/x/libnccl.so.2)
"""
    said = of_text(text, tmp_path).summary
    assert "train.py:20 in train" in said
    assert "ncclCommInitRankConfig (libnccl.so.2), creating a communicator for all_reduce" in said


def test_member_that_hccl_waits_for_is_told(tmp_path: Path) -> None:
    found = of_text(
        "EI0002: [PID: 29] 2026-10-11-15:09:34 The wait execution of the Notify register times out."
        " Reason: The Notify register has not received the Notify record from remote rank: [4]. "
        "base information: [streamID:[9], tag[AllReduce_group_name_16_x]. group information: "
        "[group:[group_name_16], user define information[Unspecified], rankSize[8], rankId[5 4]]\n",
        tmp_path,
    )
    assert found.summary.startswith("Member 5 of the 8 of group group_name_16 waits in all_reduce")


def test_lines_of_pairs_are_something(tmp_path: Path) -> None:
    line = "NCCL INFO Send: opCount 2 sendbuff (nil) recvbuff 0x7f count 15 datatype 7 op 0 root 1"
    found = of_text(f"[0] {line} comm 0x55 [nranks=2] stream 0x56\n", tmp_path)
    assert "send #2 with member 1 by device 0" in found.summary


RAS = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING      OK
"""


def test_report_of_ras_that_finds_nothing_is_evidence(tmp_path: Path) -> None:
    assert of_text(RAS, tmp_path).summary.startswith("Every process answers NCCL's RAS")


def test_name_that_is_a_hash_is_shown_by_its_beginning() -> None:
    assert "in group d03ba143…" in report(judged("stack-of-failed-collective"))


def overdue(rank: int, host: str) -> str:
    return (
        f"{host}: [rank{rank}]:[E603 10:42:23.858331122 ProcessGroupNCCL.cpp:616] [Rank {rank}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, "
        "NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600020 milliseconds before timing "
        "out.\n"
    )


OVERDUE = overdue(0, "n-a06") + overdue(1, "n-a06") + overdue(3, "n-a07")


def test_hosts_of_those_who_wait_are_told(tmp_path: Path) -> None:
    said = report(of_text(OVERDUE, tmp_path))
    assert "hosts: n-a06 (ranks 0, 1), n-a07 (rank 3)" in said
    assert "left no dump" not in said


@pytest.mark.parametrize(
    ("line", "is_clue"),
    [
        ("2026-06-03 10:32:20,123 INFO Saving model checkpoint to /ckpt/step-500", True),
        ("2026-06-03 10:32:20,123 INFO ***** Running Evaluation *****", True),
        ("2026-06-03 08:12:20,123 INFO Saving model checkpoint to /ckpt/step-100", False),
        ("2026-06-03 10:32:20,123 INFO step 500 loss 2.25", False),
    ],
)
def test_what_begins_where_the_waiting_begins_is_a_clue(
    line: str, tmp_path: Path, *, is_clue: bool
) -> None:
    said = report(of_text(f"{line}\n{OVERDUE}", tmp_path))
    assert ("where the waiting begins" in said) is is_clue
    assert (line[28:40] in said) is is_clue


def test_quoted_line_is_cut_around_its_message(tmp_path: Path) -> None:
    noise = "x" * 300
    error = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity"
    found = of_text(f"job={noise} {error} of 79 GiB\n", tmp_path)
    assert error in report(found)


def test_dump_without_its_main_thread_is_of_helpers(tmp_path: Path) -> None:
    text = (
        '    <module> (<string>:1)\nThread 765 (idle): "MultiprocWorkerMonitor"\n'
        "    select (selectors.py:415)\n    monitor (vllm/executor.py:277)\n"
        'Thread 894 (idle): "shared-loop"\n    poll (zmq/sugar/poll.py:106)\n'
    )
    (tmp_path / "dump.txt").write_text(text)
    with pytest.raises(NothingReadable, match="helper processes or threads"):
        load_trace([tmp_path / "dump.txt"])


def test_library_that_polls_is_not_where_a_process_is(tmp_path: Path) -> None:
    text = (
        "Process 408: VLLM::EngineCore\nPython v3.12.13 (/usr/bin/python3.12)\n\n"
        'Thread 408 (idle): "MainThread"\n    poll (zmq/sugar/poll.py:106)\n'
        "    get_response (vllm/executor.py:387)\n    step (vllm/core.py:590)\n"
    )
    assert "executor.py:387 in get_response" in of_text(text, tmp_path, "dump.txt").summary


def test_excerpt_does_not_show_all_members(tmp_path: Path) -> None:
    cut = overdue(1, "n-a06")[:-20]
    assert "All members" not in of_text(overdue(0, "n-a06") + cut, tmp_path).summary
