# ruff: noqa: E501
"""Attribution of process ends: local ranks, late kills, and anonymous messages."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.trace.job_log.evidence.notes import RankNotes
from hangscope.trace.job_log.rank_ends import end_of, unexplained_failure

from .logs import timeout, trace_of

API = "site-packages/torch/distributed/elastic/multiprocessing/api.py:869]"


def entry(rank: int, code: int, at: str, local: int | None = None) -> str:
    return (
        f"[{rank}]:\n  time      : 2025-08-16_{at}\n  host      : node0\n"
        f"  rank      : {rank} (local_rank: {rank if local is None else local})\n"
        f"  exitcode  : {code} (pid: {500 + rank})\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org\n"
    )


def failed(local: int, code: int, pid: int = 5000) -> str:
    return (
        f"E0816 12:10:05.123456 4711 {API} failed (exitcode: {code}) local_rank: {local} "
        f"(pid: {pid}) of binary: /usr/bin/python\n"
    )


def closing(*pids: int) -> str:
    return "".join(
        f"W0816 12:10:05.1{pid:05d} 4711 {API} Sending process {pid} closing signal SIGTERM\n"
        for pid in pids
    )


def blame(text: str) -> tuple[str, tuple[int, ...]]:
    found = diagnose(trace_of(text))
    return found.verdict.value, found.culprits


def test_rank_killed_long_after_a_failure_is_its_victim() -> None:
    text = "Failures:\n" + entry(0, -9, "12:10:31") + entry(2, -15, "12:10:31")
    text += "Root Cause (first observed failure):\n" + entry(1, 1, "12:10:00")
    assert blame(text) == ("rank_crashed", (1,))


def test_table_shows_which_rank_failed_first() -> None:
    text = "Failures:\n" + entry(0, 1, "12:10:52") + "Root Cause:\n" + entry(4, 1, "12:10:01", 0)
    assert blame(text) == ("rank_crashed", (4,))


def test_processes_that_had_to_be_killed_were_signalled_first() -> None:
    text = (
        "WORLD_SIZE=2\n"
        + f"W0816 12:10:35.1 4711 {API} Unable to shutdown process 501 via 15, forcefully exiting via 9\n"
        + "[rank1]: x\n"
        + entry(1, -9, "12:10:35")
        + entry(0, 1, "12:10:05")
    )
    trace = trace_of(text)
    assert trace.ranks[1].exit is not None
    assert trace.ranks[1].exit.by_launcher


@pytest.mark.parametrize("heard", [11, 144])
def test_local_rank_is_not_the_rank_on_a_later_node(heard: int) -> None:
    oom = (
        f'[rank{heard}]: Traceback (most recent call last):\n[rank{heard}]:   File "/a.py", line 3, in f\n'
        f"[rank{heard}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert blame(oom + closing(5001, 5002) + failed(3, 1)) == ("rank_crashed", (heard,))
    stuck = f"[rank{heard}]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank {heard}] Heartbeat monitor timed out!\n"
    assert not diagnose(trace_of(stuck + closing(5001) + failed(0, -6))).culprits


def test_rank_known_only_by_its_local_rank_is_likely() -> None:
    found = diagnose(trace_of(closing(5001, 5002) + failed(3, -9)))
    assert found.culprits == (3,)
    assert found.confidence is Confidence.LIKELY
    assert any("local rank" in text for text in found.findings[0].unknowns)


def test_one_exit_and_one_reason_without_a_rank_belong_together() -> None:
    reason = (
        'Traceback (most recent call last):\n  File "/a/train.py", line 7, in load\n    x\n'
        "KeyError: 'image'\n"
    )
    trace = trace_of(reason + failed(2, 1))
    assert trace.ranks[2].exception is not None
    assert trace.ranks[2].exception.type_name == "KeyError"
    two = reason + reason.replace("image", "label")
    assert trace_of(two + failed(2, 1)).ranks[2].exception is None


def test_exit_explained_by_a_lost_connection_accuses_no_rank() -> None:
    text = (
        "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled "
        "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\n"
        "Last error:\nsocketStartConnect: Connect to 10.0.0.2<52822> failed : No route to host\n"
    )
    assert not diagnose(trace_of(text + failed(0, 1))).culprits


def test_errors_of_several_ranks_at_one_time_are_all_reported() -> None:
    line = (
        "[rank{r}]:[E816 12:10:0{s}.588302933 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) "
        "Rank {r}] Process group watchdog thread terminated with exception: CUDA error: an illegal "
        "memory access was encountered\n"
    )
    together = diagnose(trace_of("".join(line.format(r=r, s=1) for r in (2, 0, 1))))
    assert (together.culprits, together.confidence) == ((0, 1, 2), Confidence.AMBIGUOUS)
    one = diagnose(trace_of(line.format(r=2, s=1) + line.format(r=0, s=6)))
    assert (one.culprits, one.confidence) == ((2,), Confidence.LIKELY)


def test_log_of_one_rank_accuses_no_silent_one() -> None:
    text = timeout(1, 7).replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 1 PG GUID 1")
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_abort_without_a_message_is_taken_for_a_watchdogs() -> None:
    table = "Failures:\n" + entry(1, -6, "12:10:09") + "Root Cause:\n" + entry(0, -6, "12:10:08")
    found = diagnose(trace_of(table))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "aborted" in found.summary
    alone = "Failures:\n" + entry(1, -15, "12:10:09") + "Root Cause:\n" + entry(0, -6, "12:10:08")
    assert not diagnose(trace_of(alone)).culprits


def test_equal_bare_status_of_several_ranks_names_no_single_one() -> None:
    table = "Failures:\n" + entry(1, 1, "12:10:09") + "Root Cause:\n" + entry(0, 1, "12:10:09")
    found = diagnose(trace_of(table))
    assert (found.culprits, found.confidence) == ((0, 1), Confidence.AMBIGUOUS)


def test_local_rank_beside_ranks_of_a_later_node() -> None:
    text = "".join(timeout(r, 78) for r in (4, 5, 7)) + failed(2, -9)
    assert 2 not in diagnose(trace_of(text)).culprits
    first = "".join(timeout(r, 78) for r in (0, 1, 3)) + failed(2, -9)
    assert diagnose(trace_of(first)).culprits == (2,)


def test_task_is_a_node_if_torchrun_prints_too() -> None:
    srun = "srun: error: node3: task 1: Killed\n"
    torchrun = "W0816 12:00:05.123456 47 torch/distributed/run.py:793] Setting OMP_NUM_THREADS\n"
    heard = timeout(0, 5) + timeout(1, 5)
    assert diagnose(trace_of(heard + srun)).culprits == (1,)
    both = diagnose(trace_of(torchrun + srun))
    assert not both.culprits
    assert "task 1 on node3" in both.findings[0].evidence[0]


@pytest.mark.parametrize(
    "head",
    [
        "2025-08-16 12:10:01,123 [rank2] ERROR train: step failed\nTraceback (most recent call last):\n",
        "[2025-08-16 12:10:01 TP2] Worker hit an exception: Traceback (most recent call last):\n",
    ],
)
def test_logged_traceback_belongs_to_the_line_above_it(head: str) -> None:
    body = '  File "/a/train.py", line 4, in step\n    f()\nValueError: bad sample\nepoch 3 done\n'
    exception = trace_of(head + body).ranks[2].exception
    assert exception is not None
    assert (exception.type_name, exception.message) == ("ValueError", "bad sample")


def test_timeout_without_a_group_joins_the_only_similar_one() -> None:
    label = "[PG ID 0 PG GUID 0(default_pg)", "[PG ID 2 PG GUID 9(ulysses)"
    text = "".join(timeout(r, 4486).replace(*label) for r in (1, 2, 3)) + timeout(0, 4486)[:280]
    trace = trace_of(text.rsplit("\n", 1)[0] + "\n")
    assert {trace.groups[row["group"]].name for row in trace.records} == {"9"}


def test_watchdog_abort_beside_a_timeout_names_no_rank() -> None:
    reason = (
        "RuntimeError: NCCL communicator was aborted on rank 0.  Original reason for failure was: "
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=35582, OpType="
        "ALLREDUCE, Timeout(ms)=1800000) ran for 1800366 milliseconds before timing out.\n"
    )
    found = diagnose(trace_of(reason + closing(5001) + failed(1, -6)))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("aborted" in text for text in found.findings[0].unknowns)


def test_two_ranks_on_one_device_are_both_named() -> None:
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/t.py", line 3, in <module>\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:219, invalid "
        "usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.18.6\n"
    )
    shared = "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000\n"
    for log in (text + shared, shared):
        found = diagnose(trace_of(log))
        assert (found.verdict.value, found.culprits) == ("rank_crashed", (0, 1))


def test_job_restarted_into_the_same_log_is_another_attempt() -> None:
    banner = (
        "W0816 09:00:05.123456 48 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment "
        "variable for each process to be 1 in default\n"
    )
    old = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/a.py", line 4, in f\n'
    old += "[rank2]: KeyError: 'x'\n" + failed(2, 1)
    again = banner.replace("09:00:05.123456 48", "12:11:00.123456 52")
    trace = trace_of(banner + old + again + "".join(timeout(r, 78) for r in (0, 1, 2, 3)))
    assert diagnose(trace).verdict.value == "stuck_collective"
    assert any("earlier attempt" in text for text in trace.warnings)
    both_nodes = diagnose(trace_of(banner + banner + old))
    assert both_nodes.culprits == (2,)


def test_interrupted_rank_did_not_crash() -> None:
    text = (
        f"W0816 12:10:05.123456 47 {API.replace('multiprocessing', 'agent/server')} Received 2 death "
        "signal, shutting down workers\n"
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/a.py", line 4, in f\n'
        "[rank0]: KeyboardInterrupt\n"
    )
    assert not diagnose(trace_of(text)).culprits


def test_reports_end_with_their_attempt() -> None:
    stall = "a tensor was submitted to be reduced, gathered or broadcasted by subset of ranks\n"
    again = (
        "I0816 12:20:00.123456 47 torch/distributed/elastic/agent/server/api.py:900] [default] Worker "
        "group FAILED. 3/3 attempts left; will restart worker group\n"
    )
    assert not diagnose(
        trace_of(stall + "Missing ranks:\n1: [a]\n" + again + timeout(0, 3))
    ).culprits


def test_vllm_workers_print_their_rank() -> None:
    text = (
        "(Worker_TP1 pid=78023) ERROR 10-22 09:33:49 [executor.py:671] torch.OutOfMemoryError: CUDA "
        "out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert diagnose(trace_of(text)).culprits == (1,)


def test_labelled_traceback_belongs_to_a_rank_only_if_a_task_is_one() -> None:
    noise = "".join(f"{i % 4}: step {i} loss 2.0\n" for i in range(40))
    raised = '3: Traceback (most recent call last):\n3:   File "/a.py", line 4, in f\n3:     g()\n3: KeyError: 1\n'
    found = diagnose(trace_of(noise + raised))
    assert (found.culprits, found.confidence) == ((3,), Confidence.LIKELY)
    torchrun = "0: W0816 12:00:05.123456 47 torch/distributed/run.py:793] Setting OMP_NUM_THREADS\n"
    assert not diagnose(trace_of(noise + torchrun + raised)).culprits


def test_status_0_is_no_failure() -> None:
    for status, accused in ((0, False), (1, True)):
        notes = RankNotes(3)
        notes.ended(status, at_ns=5)
        assert (unexplained_failure(end_of(notes), notes) is not None) == accused


def out_of_memory(*pids: int) -> str:
    return "".join(
        f"[77.1] Out of memory: Killed process {pid} (python) total-vm:9kB\n" for pid in pids
    )


@pytest.mark.parametrize(("killed", "kind"), [((501, 99), "oom"), ((99,), "signal")])
def test_oom_killed_rank_is_found_by_its_process_id(killed: tuple[int, ...], kind: str) -> None:
    text = out_of_memory(*killed) + "Root Cause:\n" + entry(1, -9, "12:10:01")
    end = trace_of(text).ranks[1].exit
    assert end is not None
    assert end.kind == kind


@pytest.mark.parametrize(("at", "ended_by_launcher"), [("12:10:31", {2}), ("12:10:01", set())])
def test_launcher_ends_ranks_by_a_delayed_kill(at: str, ended_by_launcher: set[int]) -> None:
    """Rank 1 fails first; rank 0 fails by itself as well, and rank 2 is killed."""
    text = "Failures:\n" + entry(0, 1, at) + entry(2, -9, at)
    trace = trace_of(text + "Root Cause:\n" + entry(1, 1, "12:10:00"))
    ends = {rank: facts.exit for rank, facts in trace.ranks.items()}
    assert {
        r for r, end in ends.items() if end is not None and end.by_launcher
    } == ended_by_launcher


TEARDOWN = {
    "fault": "[rank1]: Fatal Python error: Segmentation fault\n",
    "fault of a local rank": "[default1]:Fatal Python error: Segmentation fault\n",
    "fault in a table": "Root Cause:\n" + entry(1, -11, "12:10:09"),
    "exception": (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/t.py", line 70, in close\n'
        "[rank1]: ValueError: I/O operation on closed file\n"
    ),
}


@pytest.mark.parametrize("end", TEARDOWN.values(), ids=TEARDOWN)
def test_end_after_a_timeout_is_not_the_cause(end: str) -> None:
    everybody = "".join(timeout(rank, 53) for rank in range(4))
    found = diagnose(trace_of(everybody + end))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    others = "".join(timeout(rank, 53) for rank in (0, 2, 3))
    found = diagnose(trace_of(end + others))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def test_exception_before_a_timeout_in_a_clean_up_is_the_cause() -> None:
    """Python prints both once the clean-up has failed as well."""
    text = "".join(timeout(rank, 53) for rank in range(4))
    text += (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/t.py", line 20, in step\n'
        "[rank1]: KeyError: 'label'\n"
        "[rank1]: \n"
        "[rank1]: During handling of the above exception, another exception occurred:\n"
        "[rank1]: \n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/t.py", line 25, in step\n'
        "[rank1]:     dist.barrier()\n"
        '[rank1]:   File "/env/torch/distributed/distributed_c10d.py", line 4100, in barrier\n'
        "[rank1]: torch.distributed.DistBackendError: [Rank 1] Work timed out\n"
    )
    for rank in (0, 2, 3):
        text += (
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/job/t.py", line 30, in step\n'
            f"[rank{rank}]:     dist.barrier()\n"
            f'[rank{rank}]:   File "/env/torch/distributed/distributed_c10d.py", line 4100, in barrier\n'
            f"[rank{rank}]: torch.distributed.DistBackendError: [Rank {rank}] Work timed out\n"
        )
    exception = trace_of(text).ranks[1].exception
    assert exception is not None
    assert exception.type_name == "KeyError"


ABORTED_WORK = (
    "RuntimeError: NCCL communicator was aborted on rank 2.  Original reason for failure was: [Rank "
    "2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=47, OpType=ALLREDUCE, "
    "Timeout(ms)=1800000) ran for 1805489 milliseconds before timing out.\n"
)


def test_process_that_leaves_after_the_timeouts_is_not_their_cause() -> None:
    """Its launcher would have ended the others at once, had it left before."""
    assert blame(ABORTED_WORK + failed(0, 1)) == ("inconclusive", ())
    assert blame(failed(0, 1) + ABORTED_WORK)[1] == (0,)
    assert blame(ABORTED_WORK + failed(0, -9))[1] == (0,)
    raised = 'Traceback (most recent call last):\n  File "/a/t.py", line 7, in load\nKeyError: 7\n'
    assert blame(raised + ABORTED_WORK + failed(0, 1))[1] == (0,)


def test_log_that_ends_inside_a_traceback_is_cut() -> None:
    waits = "".join(timeout(rank, 53) for rank in (1, 2, 3))
    raising = 'Traceback (most recent call last):\n  File "/a/t.py", line 7, in load\n    x()\n'
    assert blame(waits + raising) == ("inconclusive", ())
    assert blame(waits)[1] == (0,)
