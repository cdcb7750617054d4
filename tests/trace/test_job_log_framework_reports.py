# ruff: noqa: E501
"""Reports of other libraries inside a log: Horovod, JAX, accelerate, HCCL, NCCL's RAS."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis

from .logs import claims, trace_of

STALL = (
    "[2025-08-16 12:10:15.181832: W /x/horovod/common/stall_inspector.cc:105] One or more tensors "
    "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
    "remainder of ranks for more than 60 seconds.\n"
)


def found(text: str) -> Diagnosis:
    return diagnose(trace_of(text))


@pytest.mark.parametrize(
    ("report", "verdict", "culprits"),
    [
        ("Missing ranks:\n1: [allreduce.a.weight, allreduce.a.bias]\n", "missing_rank", (1,)),
        ("Missing ranks:\n2: [allreduce.a]\n3: [allreduce.a, allreduce.b]\n", "missing_rank", (3,)),
        ("Stalled ops:\nallreduce.a [missing ranks: 0]\nallreduce.b [missing ranks: 0]\n", "missing_rank", (0,)),
        ("Stalled ops: allreduce.a [ready ranks: 1, 5, 4, 0], allreduce.b [ready ranks: 5, 0, 1, 4]\n", "missing_rank", (2, 3)),
        ("Missing ranks:\n0: [allreduce.b]\n1: [allreduce.a]\n", "collective_mismatch", (0, 1)),
        ("Missing ranks:\n0: [allreduce.b]\n1: [allreduce.b]\n2: [allreduce.b]\n3: [allreduce.a]\n", "collective_mismatch", (3,)),
    ],
)  # fmt: skip
def test_horovods_stall_inspector(report: str, verdict: str, culprits: tuple[int, ...]) -> None:
    answer = found(STALL + report)
    assert (answer.verdict.value, answer.culprits) == (verdict, culprits)
    if verdict == "collective_mismatch":
        assert answer.confidence is Confidence.AMBIGUOUS


def test_only_the_newest_stall_counts() -> None:
    first, last = "Missing ranks:\n1: [a]\n", "Missing ranks:\n2: [b]\n"
    assert found(STALL + first + STALL + last).culprits == (2,)


def test_tasks_absent_from_jaxs_barrier() -> None:
    answer = found(
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
        "PjRT_Client_Connect. Timed out task names:\n/job:jax_worker/replica:0/task:3\n"
        "/job:jax_worker/replica:0/task:1\n\nAdditional GRPC error information\n"
        ':{"grpc_message":"Barrier timed out. Timed out task names:\\n/job:jax_worker","grpc_status":4}\n'
    )
    assert (answer.verdict.value, answer.culprits) == ("missing_rank", (1, 3))


TASK = "/job:jax_worker/replica:0/task:"


@pytest.mark.parametrize(
    "report",
    [
        f"{TASK}3 has been set to ERROR in coordination service: UNAVAILABLE: Task {TASK}3 heartbeat timeout. This indicates that the remote task has failed.\n",
        f"UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n{TASK}3\nThe tasks have crashed.\n",
        "BaseCollectiveExecutor::StartAbort Unavailable: Collective ops is aborted by: cluster check alive failed, /job:worker/replica:0/task:3 is down\n",
    ],
)  # fmt: skip
def test_tasks_with_lost_heartbeat_are_lost(report: str) -> None:
    answer = found(report * 2)
    assert (answer.verdict.value, answer.culprits) == ("rank_lost", (3,))
    assert answer.confidence is Confidence.LIKELY
    assert "process and host" in answer.findings[0].fix
    several = found(report + report.replace("task:3", "task:5"))
    assert (several.culprits, several.confidence) == ((3, 5), Confidence.AMBIGUOUS)


def test_waiting_xla_threads_are_a_sign_until_they_proceed() -> None:
    waits = (
        "This thread has been waiting for `all-reduce; run_id=7` for 10 seconds and may be stuck.\n"
    )
    assert found(waits).verdict.value == "inconclusive"
    assert len(claims(trace_of(waits), "timeout")) == 1
    assert not trace_of(waits + "Thread is unstuck! Warning above was a false-positive.\n").claims


def test_accelerates_check_of_shapes() -> None:
    report = "".join(
        f"[rank{r}]: accelerate.utils.operations.DistributedOperationException: Cannot apply desired "
        "operation due to shape mismatches. All shapes across devices must be valid.\n"
        f"[rank{r}]: Operation: `accelerate.utils.operations.gather`\n[rank{r}]: Input shapes:\n"
        + "".join(f"[rank{r}]:   - Process {p}: [2, {n}]\n" for p, n in ((0, 7), (1, 7), (2, 9)))
        for r in range(3)
    )
    answer = found(report)
    assert (answer.verdict.value, answer.culprits) == ("shape_mismatch", (2,))
    assert answer.findings[0].op == "all_gather"


def test_ascend_errors_contain_their_rank() -> None:
    text = (
        "[ERROR] 2025-10-11-15:09:34 (PID:2969, Device:0, RankID:101) ERR00100 PTA call acl api failed.\n"
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713 The wait execution of the Notify register times "
        "out. Reason: The Notify register has not received the Notify record from remote rank: [24]. "
        "base information: [streamID:[109], tag[AllReduce_group_name_7]]\n"
    )
    (claim,) = claims(trace_of(text), "timeout")
    assert (claim.reporter, claim.op, claim.accused) == (101, "all_reduce", ())
    assert not found(text).culprits


def test_rank_with_a_timed_out_hccl_socket_is_a_victim() -> None:
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/train.py", line 9, in step\n'
        "[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS "
        "function error: HcclAllreduce, error code is 6\n"
        "[rank1]: EI0006: [PID: 12] 2025-04-08-18:07:20.444 Getting socket times out. Reason: Remote "
        "Rank did not send the data in time.\n"
    )
    assert not found(text).culprits
    task = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/train.py", line 9, in step\n'
        "[rank1]: RuntimeError: ACL stream synchronize failed.\n[rank1]: a\n[rank1]: b\n[rank1]: c\n"
        "[rank1]: EI9999: 2024-10-21-10:42:00.358.410  The error from device(chipId:3, dieId:0), hccl "
        "fftsplus task timeout occurred during task execution, stuck notify num:1\n"
    )
    assert not found(task).culprits
    assert found(task.replace("hccl fftsplus task timeout", "aicore exception")).culprits == (1,)


RAS = """NCCL version 2.26.2 compiled with CUDA 12.6
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {errors}
    1         2         1         4         4         8   RUNNING       OK

Errors
======

"""
BEHIND = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  7 ranks have launched up to operation 641
  Rank 5 has launched up to operation 640 -- GPU 1 managed by process 3233 on node 10.1.1.2
"""
AHEAD = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  6 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 4 -- GPU 4 managed by process 3232 on node 10.1.1.2
  Rank 5 -- GPU 5 managed by process 3233 on node 10.1.1.2
"""
GONE = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 3233 on node 10.1.1.2 managing GPU 1

#0-0 (fa93daea854b060b) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 1 managed by process 3233 on node 10.1.1.2
"""


def test_ras_names_the_rank_that_launched_less() -> None:
    answer = found(RAS.format(errors="MISMATCH") + BEHIND)
    assert (answer.verdict.value, answer.culprits) == ("missing_rank", (5,))


def test_ras_names_no_rank_if_most_are_behind() -> None:
    trace = trace_of(RAS.format(errors="MISMATCH") + AHEAD)
    (claim,) = claims(trace, "missing_ranks")
    assert (claim.accused, trace.world_size) == ((), 8)
    assert claim.text.endswith(
        "different numbers of AllGather: 640 by 6 ranks; 641 by ranks 4 (process 3232 on 10.1.1.2, "
        "GPU 4), 5 (process 3233 on 10.1.1.2, GPU 5)"
    )
    assert not diagnose(trace).culprits


def test_ras_names_the_rank_that_does_not_answer() -> None:
    answer = found(RAS.format(errors="INCOMPLETE") + GONE)
    assert (answer.verdict.value, answer.culprits) == ("rank_lost", (5,))


def test_rank_of_a_smaller_communicator_is_not_the_jobs() -> None:
    smaller = BEHIND.replace("#0-0", "#1-1").replace("Rank 5", "Rank 1")
    assert not found(RAS.format(errors="MISMATCH") + smaller).culprits


def test_ras_without_errors_is_no_evidence() -> None:
    assert not claims(trace_of(RAS.format(errors="OK")), "missing_ranks")


def test_rank_that_reports_another_failure_is_not_accused() -> None:
    report = RAS.format(errors="ERROR") + "#0-0 (fa93daea854b060b) ERROR\n  Rank 2 reported {}\n"
    for words, kind, accused in (
        ("an unhandled device error", "device_error", (2,)),
        ("a remote process error", "network_error", ()),
        ("a network error", "network_error", ()),
    ):
        (claim,) = claims(trace_of(report.format(words)), kind)
        assert claim.accused == accused


def test_ucc_says_who_has_not_posted_a_collective() -> None:
    text = (
        " what():  [Rank 1][ProcessGroupUCC-1][COMM_CHECK]\n"
        "\tAborting comms #12 (op=ALLTOALL_BASE) due to the problematic ranks: [ {late} ]\n"
        "\t\tRanks [{late}] are 'Collective wasn't posted'\n"
        "\tComms status of other ranks: \n"
        "\t\tRanks [{late}] are last known progressing comms #11 (op=ALLTOALL_BASE)\n"
        "\t\tRanks [{rest}] are last known progressing comms #12 (op=ALLTOALL_BASE)\n"
    )
    answer = found(text.format(late="0", rest="1 2 3"))
    assert (answer.verdict.value, answer.culprits) == ("missing_rank", (0,))
    assert found(text.format(late="1 2 3", rest="0")).culprits == ()


POD = """Name:             train-worker-{n}
Node:             pool-7f/10.128.0.7
    State:          Running
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    {code}
    Limits:
      nvidia.com/gpu:  {gpus}
    Environment:
      RANK:              {n}
"""


@pytest.mark.parametrize(
    ("gpus", "culprits"), [(1, (3,)), (8, ())], ids=["one process", "several processes"]
)
def test_described_pod_is_its_rank_if_it_has_one_process(
    gpus: int, culprits: tuple[int, ...]
) -> None:
    text = POD.format(n=2, reason="Completed", code=0, gpus=gpus)
    text += POD.format(n=3, reason="OOMKilled", code=137, gpus=gpus)
    answer = found(text)
    assert answer.culprits == culprits
    (said,) = claims(trace_of(text), "oom")
    assert said.text.startswith("pod train-worker-3")
    assert said.text.endswith("on node pool-7f ended: OOMKilled, exit code 137")


def test_pod_that_an_operator_saw_end_is_named_and_is_no_rank() -> None:
    line = 'level=info msg="Pod: train.llm-worker-1 exited with code 1" job=train.llm\n'
    answer = found(line * 2)
    assert answer.culprits == ()
    assert "pod train.llm-worker-1 ended" in answer.findings[0].fix


def test_horovods_report_may_be_cut_at_either_end() -> None:
    named = "HorovodAllreduce_{} [missing ranks: 2]\n"
    inside = "[1,0]<stderr>:[2019-04-13 13:53:31.851506: W horovod/common/operations.cc:588] "
    assert found("".join(inside + named.format(n) for n in "ab")).culprits == (2,)
    whole = STALL + "Stalled ops:\n" + named.format("a")
    assert found(whole + STALL).culprits == (2,)


def test_ascends_own_error_is_quoted() -> None:
    text = "EJ0001: 2024-05-21-11:57:54.167 Failed to initialize the HCCP process. Reason: running."
    assert "Failed to initialize the HCCP process" in found(text + "\n").summary


def test_kernel_of_nccl_in_a_debuggers_list() -> None:
    row = "*      0   -   0 521 Active 0x00000001 (1,1,1) (64,1,1) ncclDevKernel_AllReduce_Sum()"
    assert "runs ncclDevKernel_AllReduce_Sum" in found(row + "\n").summary
