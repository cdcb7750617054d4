# ruff: noqa: E501
"""Verdicts from a job's log alone."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from tests.diagnosis.builder import blame
from tests.diagnosis.tracebacks import table
from tests.trace.logs import timeout, trace_of

HEAD = "[rank{r}]:[E816 12:10:03.111111111 ProcessGroupNCCL.cpp"
HEARD = (
    HEAD
    + ":629] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Observed flight recorder dump signal from "
    "another rank via TCPStore.\n"
    + HEAD
    + ":700] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received "
    "a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the "
    "debug info. Last enqueued NCCL work: {e}, last completed NCCL work: {c}.This is most likely\n"
)
TABLE = """E0816 12:10:09.000000 100 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) local_rank: 0 (pid: 200) of binary: /usr/bin/python
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-08-16_12:10:09
  host      : node0
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 201)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 201
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-08-16_12:10:08
  host      : node0
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 200)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 200
============================================================
"""


def found(text: str) -> Diagnosis:
    return diagnose(trace_of(text))


def test_rank_with_lagging_counters_is_named() -> None:
    text = "".join(timeout(r, 78) for r in (0, 1, 3)) + HEARD.format(r=2, e=77, c=77)
    answer = found(text)
    assert blame(answer) == ("missing_rank", (2,))
    assert answer.findings[0].seq == 78


def test_launchers_root_cause_may_be_a_victim() -> None:
    text = "".join(timeout(r, 78) for r in (0, 1, 3)) + HEARD.format(r=2, e=77, c=77) + TABLE
    assert blame(found(text)) == ("missing_rank", (2,))


def test_all_ranks_at_one_place_are_stuck() -> None:
    answer = found("".join(timeout(r, 78) for r in range(4)))
    assert blame(answer) == ("stuck_collective", ())


def test_log_of_one_rank_names_no_rank() -> None:
    answer = found(timeout(3, 78))
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert not answer.culprits


def test_different_operation_at_one_number_is_a_mismatch() -> None:
    text = "".join(timeout(r, 78) for r in (0, 1, 3)) + timeout(2, 78, "BROADCAST")
    answer = found(text)
    assert blame(answer) == ("collective_mismatch", (2,))


def test_different_size_at_one_number_is_a_mismatch() -> None:
    text = "".join(timeout(r, 78) for r in (0, 1, 3)) + timeout(2, 78, n=1024)
    assert blame(found(text)) == ("shape_mismatch", (2,))


def test_out_of_memory_error_precedes_every_watchdog() -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/home/me/train.py", line 10, in step\n'
        "[rank2]:     loss.backward()\n"
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has "
        "a total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
    ) + "".join(timeout(r, 78) for r in (0, 1, 3))
    assert blame(found(text)) == ("rank_crashed", (2,))


def test_silent_rank_is_at_most_likely() -> None:
    answer = found("".join(timeout(r, 78) for r in (0, 1, 3, 4, 5, 6, 7)))
    assert answer.culprits == (2,)
    assert answer.confidence is not Confidence.CERTAIN


def test_monitored_barrier_names_the_rank() -> None:
    text = (
        "[rank0]:[E816 12:10:01.111111111 ProcessGroupGloo.cpp:144] [Rank 0]: Rank 3 failed to pass "
        "monitoredBarrier in 30000 ms\n"
    )
    assert blame(found(text)) == ("missing_rank", (3,))


def test_fingerprints_show_a_mismatch() -> None:
    text = ""
    for rank, other in ((0, 2), (1, 2), (3, 2), (2, 0)):
        mine, theirs = ("BROADCAST", "ALLREDUCE") if rank == 2 else ("ALLREDUCE", "BROADCAST")
        text += (
            f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} "
            f"is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType={mine}, "
            "TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float "
            "(default), device=cpu)), "
            f"but Rank {other} is running collective: CollectiveFingerPrint(SequenceNumber=7, "
            f"OpType={theirs}, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes="
            "TensorOptions(dtype=float (default), device=cpu)).\n"
        )
    assert blame(found(text)) == ("collective_mismatch", (2,))


def compared(writer: int, other: int) -> str:
    """What a rank raises once torch's debug mode has found the first one that differs from it."""
    shape = (
        "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{}], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))"
    )
    return (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank "
        f"{writer} is running collective: {shape.format(4)}, but Rank {other} is running "
        f"collective: {shape.format(6)}.\n"
    )


@pytest.mark.parametrize(
    ("world", "writer", "other", "culprits"),
    [
        (8, 1, 2, (0, 1, 2)),
        (4, 1, 2, (0, 1, 2)),
        (4, 1, 3, (3,)),
        (None, 1, 2, (0, 1, 2)),
        (None, 3, 4, (0, 1, 2, 3, 4)),
        (None, 1, 7, (7,)),
    ],
)
def test_comparison_stops_at_the_first_difference(
    world: int | None, writer: int, other: int, culprits: tuple[int, ...]
) -> None:
    stated = f"WORLD_SIZE={world}\n" if world else ""
    assert found(stated + compared(writer, other)).culprits == culprits


@pytest.mark.parametrize(
    ("stated", "ranks", "verdict"),
    [
        ("", 3, "inconclusive"),
        ("", 7, "inconclusive"),
        ("", 4, "stuck_collective"),
        ("WORLD_SIZE=3\n", 3, "stuck_collective"),
        ("WORLD_SIZE=4\n", 3, "rank_lost"),
        ("  global_world_sizes=[3, 3, 3]\n", 3, "stuck_collective"),
        ("  global_world_sizes=[4, 4]\n", 3, "rank_lost"),
    ],
)
def test_odd_number_of_waiting_ranks_is_not_everybody(
    stated: str, ranks: int, verdict: str
) -> None:
    """The last rank of a node is as often the silent one as any other."""
    text = stated + "".join(timeout(rank, 78) for rank in range(ranks))
    assert found(text).verdict.value == verdict


@pytest.mark.parametrize("code", [507046, 507047, 507048])
def test_npu_that_gave_up_waiting_has_not_failed(code: int) -> None:
    raised = (
        "[rank{0}]: Traceback (most recent call last):\n"
        '[rank{0}]:   File "/job/train.py", line 61, in main\n'
        "[rank{0}]:     loss.item()\n"
        "[rank{0}]: RuntimeError: {1}\n"
    )
    late = f"NPU function error: aclrtSynchronizeStreamWithTimeout, error code is {code}"
    waiting = "".join(raised.format(rank, late) for rank in range(3))
    assert found(waiting).culprits == ()
    bad = raised.format(3, "bad sample")
    assert blame(found(waiting + bad)) == ("rank_crashed", (3,))


def test_npu_whose_kernel_failed_is_named() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/train.py", line 61, in main\n'
        "[rank1]:     loss.item()\n"
        "[rank1]: RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507015\n"
    )
    assert blame(found(text)) == ("rank_crashed", (1,))


def test_unused_parameters_of_one_rank() -> None:
    text = (
        "[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before "
        "starting a new one. This error indicates that your module has parameters that were not used "
        "in producing loss.\n[rank1]: Parameter indices which did not receive grad for rank 1: 2 3\n"
    ) + "".join(timeout(r, 78) for r in (0, 2, 3))
    answer = found(text)
    assert blame(answer) == ("rank_crashed", (1,))
    assert "D8" in answer.findings[0].playbook


def test_traceback_of_two_parts_is_judged_by_the_first() -> None:
    def said(rank: int, first: str) -> str:
        lines = [
            "Traceback (most recent call last):",
            '  File "/srv/stage.py", line 7, in forward',
            "    y = self.module(x)",
            first,
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            "Traceback (most recent call last):",
            '  File "/srv/train.py", line 18, in <module>',
            "    schedule.step()",
            "RuntimeError: ",
            "        Failed to run stage backward:",
        ]
        return "".join(f"[rank{rank}]: {line}\n" for line in lines)

    for first, second in ((0, 1), (1, 0)):
        texts = {
            0: said(0, "RuntimeError: [gloo/transport/pair.cc:553] Connection closed by peer"),
            1: said(1, "ValueError: only scalars have a gradient"),
        }
        answer = found(texts[first] + texts[second])
        assert blame(answer) == ("rank_crashed", (1,)), (first, second)
        assert "only scalars have a gradient" in answer.summary


def test_dead_thread_in_a_stopped_job_is_reported() -> None:
    answer = found(
        "Exception in thread reporter:\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n'
        "    self.run()\n"
        '  File "/srv/metrics.py", line 14, in run\n'
        "    value = self.values[name]\n"
        "KeyError: 'loss'\n"
        "W0816 12:10:09.000000 100 torch/distributed/elastic/agent/server/api.py:753] Received 15 "
        "death signal, shutting down workers\n"
    )
    assert blame(answer) == ("inconclusive", ())
    assert "Thread reporter ended with KeyError: 'loss' at metrics.py:14 in run" in answer.summary


def test_rank_before_the_first_place_of_a_group_is_no_member() -> None:
    """Members are in rank order, and rank 0 precedes the first of them."""

    def of_group(rank: int) -> str:
        ours, place = timeout(rank, 40), rank - 1
        return ours.replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 3 PG GUID 9(tp)").replace(
            f"Rank {rank}]", f"Rank {place}]"
        )

    heard = (
        "[rank0]:[E816 12:10:02.1 ProcessGroupNCCL.cpp:1684] [PG ID 0 PG GUID 0(default_pg) Rank 0]"
        " Observed flight recorder dump signal from another rank via TCPStore.\n"
    )
    found = diagnose(trace_of(heard + "".join(of_group(rank) for rank in (1, 2, 3))))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


@pytest.mark.parametrize("op", ["BROADCAST", "REDUCE"])
def test_rank_unable_to_complete_what_several_others_completed_may_be_a_victim(op: str) -> None:
    text = timeout(2, 11, op) + "".join(timeout(rank, 12) for rank in (0, 1, 3))
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert found.confidence.value == "likely"


def test_cycle_known_only_from_a_log_is_likely() -> None:
    """It holds one overdue operation per rank, and of some ranks none."""

    def of_group(rank: int) -> str:
        text = timeout(rank, 50, "_ALLGATHER_BASE").replace("NumelOut=4096", "NumelOut=16384")
        return text.replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 1 PG GUID 3(tp)")

    text = "".join(of_group(r) for r in (1, 2, 3)) + "".join(
        timeout(r, 20) for r in (0, 4, 5, 6, 7)
    )
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0,))
    assert found.confidence.value == "likely"


@pytest.mark.parametrize(
    ("heard", "size", "verdict", "confidence"),
    [
        ((0, 2), "", "inconclusive", "ambiguous"),
        ((0, 2), "world_size=3\n", "rank_lost", "likely"),
        ((0, 2, 3), "", "rank_lost", "likely"),
        ((0, 2, 3, 4, 5, 6), "", "rank_lost", "ambiguous"),
    ],
)
def test_odd_number_of_ranks_implies_another(
    heard: tuple[int, ...], size: str, verdict: str, confidence: str
) -> None:
    """An excerpt that does not mention the last rank also hides who else is silent."""
    found = diagnose(trace_of(size + "".join(timeout(rank, 9) for rank in heard)))
    assert (found.verdict.value, found.confidence.value) == (verdict, confidence)
    assert found.culprits == ((1,) if verdict == "rank_lost" else ())


def test_own_report_about_other_ranks_makes_a_log_less_certain() -> None:
    """Somebody ends the hung job by killing one of the waiting ranks."""
    report = "[hangscope] Rank {} never joined all_reduce #12 in group default (ranks 0–3)\n"
    for rank, confidence in ((0, Confidence.CERTAIN), (1, Confidence.LIKELY)):
        found = diagnose(trace_of(report.format(rank) + table({0: -9})))
        assert blame(found) == ("rank_crashed", (0,))
        assert found.confidence is confidence
    assert "had said in this log: Rank 1 never joined" in found.findings[0].unknowns[0]


def _failed(rank: int, code: int, words: str) -> str:
    """torchrun's table with one failure."""
    return (
        f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-08-16_12:10:08\n"
        f"  host      : node0\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: 201)\n  error_file: <N/A>\n  traceback : {words}\n{'=' * 60}\n"
    )


ABORTED = _failed(1, -6, "Signal 6 (SIGABRT) received by PID 201")
DEVICE = (
    "[rank1]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) "
    "Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal "
    "memory access was encountered\n"
)


@pytest.mark.parametrize(
    ("words", "accused"),
    [
        (ABORTED, ()),  # a watchdog that gives up does so as well
        (DEVICE + ABORTED, (1,)),  # its own error is told
        (_failed(1, -11, "Signal 11 (SIGSEGV) received by PID 201"), (1,)),
        (_failed(1, 3, "To enable traceback see"), (1,)),
    ],
)
def test_rank_aborted_without_message_may_have_timed_out(
    words: str, accused: tuple[int, ...]
) -> None:
    answer = found("".join(timeout(r, 78) for r in (0, 2, 3)) + words)
    assert blame(answer) == ("rank_crashed" if accused else "inconclusive", accused)
