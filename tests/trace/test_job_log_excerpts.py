"""Pasted logs: truncated, with half of a rank's output, or of a restarted job."""

from __future__ import annotations

import io

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.job_log.read import read_job_log

from .logs import timeout, trace_of

LATE = (
    "[rank2]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=78, OpType=ALLRED"
)


@pytest.mark.parametrize("end", [LATE, LATE[:6], LATE[:3]])
def test_rank_silent_in_an_excerpt_may_be_cut_off(end: str) -> None:
    text = "world_size=4\n" + "".join(timeout(r, 78) for r in (0, 1, 3))
    whole = diagnose(trace_of(text))
    assert (whole.verdict, whole.culprits) == (Verdict.RANK_LOST, (2,))
    cut = diagnose(trace_of(text + end))
    assert (cut.verdict, cut.culprits) == (Verdict.INCONCLUSIVE, ())


@pytest.mark.parametrize("begins_at", ["WorkNCCL", "ran for"])
def test_who_is_not_heard_of_may_have_written_the_end_with_which_a_log_begins(
    begins_at: str,
) -> None:
    first = timeout(2, 78).partition("\n")[0]
    text = "".join(timeout(r, 78) for r in (0, 1, 3))
    assert diagnose(trace_of(text)).culprits == (2,)
    cut = diagnose(trace_of(first[first.index(begins_at) :] + "\n" + text))
    assert (cut.verdict, cut.culprits) == (Verdict.INCONCLUSIVE, ())


def test_rank_that_dumps_has_waited() -> None:
    text = "world_size=4\n" + "".join(timeout(r, 78) for r in (0, 1, 3))
    text += (
        "[rank2]:[E816 12:10:02.111111111 ProcessGroupNCCL.cpp:1533] [PG ID 0 PG GUID "
        "0(default_pg) Rank 2] ProcessGroupNCCL preparing to dump debug info. Include stack "
        "trace: 1\n"
    )
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.INCONCLUSIVE, ())


def test_previous_attempt_is_reported_if_the_newest_says_nothing() -> None:
    text = (
        "E0816 12:10:05.123456 47 torch/distributed/elastic/multiprocessing/api.py:833] failed "
        "(exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python\n"
        "I0816 12:10:06.123456 47 torch/distributed/elastic/agent/server/api.py:900] [default] "
        "Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        "  restart_count=1\n  global_ranks=[0, 1]\nstep 40 loss 2.5\n"
    )
    trace = trace_of(text)
    assert diagnose(trace).culprits == (1,)
    assert any("last that tells anything" in warning for warning in trace.warnings)
    newer = trace_of(text + timeout(0, 9) + timeout(1, 9))
    assert not diagnose(newer).culprits


RAY = "(WorkerDict pid={pid}, ip=10.0.0.1) "
RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "Worker IP address: 10.0.0.1 Worker port: 10185 Worker PID: {pid} Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2.\n"
)
ACTOR = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n\tactor_id: cc09\n"
    "\tpid: {pid}\n\tname: qqWorkerDict_0:2\n\tip: 10.0.0.1\n"
)


@pytest.mark.parametrize("report", [RAYLET, ACTOR])
def test_worker_found_dead_by_ray_is_the_rank_of_its_process(report: str) -> None:
    first = "".join(
        f"{RAY.format(pid=700 + r)}[rank{r}]:[W816 11:00:01.111111111 ProcessGroupNCCL.cpp:4115] "
        f"[PG ID 0 PG GUID 0(default_pg) Rank {r}] using GPU {r} to perform barrier\n"
        for r in range(4)
    )
    late = "".join(RAY.format(pid=700 + r) + timeout(r, 78) for r in (0, 1, 3))
    diagnosis = diagnose(trace_of(first + report.format(pid=702) + late))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_CRASHED, (2,))
    # Who gave up after its own timeout is found dead, too.
    after = RAY.format(pid=702) + timeout(2, 78) + RAYLET.format(pid=702)
    assert not diagnose(trace_of(first + late + after)).culprits
    # A process of no known rank explains nobody's silence.
    unknown = diagnose(trace_of(late.replace("pid=", "p=") + report.format(pid=799)))
    assert unknown.verdict is not Verdict.RANK_CRASHED


def test_worker_of_another_node_with_the_same_pid_is_not_the_rank_that_spoke() -> None:
    spoke = "(WorkerDict pid=702, ip=10.0.0.2) " + timeout(2, 78)
    found = diagnose(trace_of(spoke + RAYLET.format(pid=702)))
    assert found.verdict is not Verdict.RANK_CRASHED
    here = spoke.replace("10.0.0.2", "10.0.0.1").split("Watchdog")[0] + "begun\n"
    assert diagnose(trace_of(here + RAYLET.format(pid=702))).culprits == (2,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The actor is dead because its worker process has died. Worker exit type: X\n", "ended"),
        (
            "[1,0]<stderr>:One or more tensors[1,0]<stderr>: were submitted to be reduced, "
            "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for "
            "more than 60 seconds.\n",
            "timed out",
        ),
        (
            "Thread 3 (LWP 7):\n#0  0x00007f in ncclEnqueueCheck (info=0x7f) at enqueue.cc:460\n"
            "#1  0x00007f in ncclAllReduce (sendbuff=0x7f, recvbuff=<optimized out>,\n    count=1",
            "ncclAllReduce",
        ),
    ],
)
def test_report_whose_end_is_missing_still_says_what_it_is_about(text: str, words: str) -> None:
    found = diagnose(trace_of(text))
    assert words in found.headline
    assert not found.culprits


def test_rank_silent_beside_rays_deduplication_may_have_spoken() -> None:
    """Of lines that differ only in numbers, Ray prints the first and a count."""
    label = "[PG ID 0 PG GUID 0(default_pg) Rank {r}] ProcessGroupNCCL preparing to dump debug info"
    begun = RAY.format(pid=702) + "[rank2]:[I816 11:00:01.111111111 ProcessGroupNCCL.cpp:1] begun\n"
    late = "world_size=4\n" + begun + "".join(timeout(r, 78) for r in (0, 1, 3))
    head = RAY.format(pid=701) + "[rank1]:[{}816 12:10:01.111111111 ProcessGroupNCCL.cpp:629] "
    alike = label.format(r=1) + " [repeated 1x across cluster]\n"
    thinned = diagnose(trace_of(late + head.format("E") + alike))
    assert (thinned.verdict, thinned.culprits) == (Verdict.INCONCLUSIVE, ())
    # What says so of mere warnings says nothing about watchdogs.
    assert diagnose(trace_of(late + head.format("W") + alike)).culprits == (2,)


def test_excerpt_between_watchdog_lines_accuses_no_silent_rank() -> None:
    """Each rank prints two lines; one of the last rank's, or of the first's, is missing."""
    whole = "".join(timeout(rank, 9) for rank in (0, 1, 3))
    assert diagnose(trace_of(whole)).culprits == (2,)
    lines = whole.splitlines(keepends=True)
    for part in (lines[:-1], lines[1:]):
        found = diagnose(trace_of("".join(part)))
        assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_log_that_continues_is_no_excerpt() -> None:
    lines = "".join(timeout(rank, 9) for rank in (0, 1, 3)).splitlines(keepends=True)
    later = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    found = diagnose(trace_of("".join(lines[:-1]) + later))
    assert found.culprits == (2,)


GAVE_UP = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
    "To avoid data inconsistency, we are taking the entire process down.",
    "[PG ID 0 PG GUID 0(default_pg) Rank 2] First PG on this rank to signal dumping.",
    "Stack trace of the failed collective not found, potentially because it is disabled.",
)


@pytest.mark.parametrize("words", GAVE_UP)
def test_rank_that_aborts_its_process_was_in_a_collective(words: str) -> None:
    said = f"[rank2]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:681] {words}\n"
    found = diagnose(trace_of("world_size=4\n" + "".join(timeout(r, 78) for r in (0, 1, 3)) + said))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    alone = diagnose(trace_of(said))
    assert (alone.verdict, alone.culprits) == (Verdict.INCONCLUSIVE, ())
    assert "failed or timed out" in alone.summary


def test_messages_during_exit_hide_no_own_failure() -> None:
    head = "[rank2]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:681] "
    text = (
        f"{head}{GAVE_UP[0]}\n{head}{GAVE_UP[1]}\n{head}[PG ID 0 PG GUID 0(default_pg) Rank 2] "
        "Process group watchdog thread terminated with exception: CUDA error: an illegal "
        "memory access was encountered\n" + "".join(timeout(r, 78) for r in (0, 1, 3))
    )
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.RANK_CRASHED, (2,))


NCCL = "node0:10{r}:20{r} [{r}] NCCL INFO comm 0x55{r} rank {r} nranks {size} cudaDev {r} - {end}\n"


def test_rank_with_an_aborted_communicator_after_a_timeout_has_timed_out() -> None:
    waits = "".join(timeout(r, 78) for r in (0, 1, 3))
    aborted = NCCL.format(r=2, size=4, end="Abort COMPLETE")
    assert not diagnose(trace_of(waits + aborted)).culprits
    assert diagnose(trace_of(aborted + waits)).culprits == (2,)


def test_rank_that_only_announced_itself_is_silent() -> None:
    made = [NCCL.format(r=r, size=4, end="Init COMPLETE") for r in range(4)]
    some = diagnose(trace_of(made[3] + timeout(3, 78) + made[2]))
    assert (some.verdict, some.culprits) == (Verdict.INCONCLUSIVE, ())
    waits = "".join(timeout(r, 78) for r in (0, 1, 3))
    assert diagnose(trace_of("".join(made) + waits)).culprits == (2,)


def test_traceback_without_its_last_line_is_all_that_a_log_tells() -> None:
    head = "(EngineCore_DP1 pid=3256) ERROR 10-27 13:45:16 [core.py:710] "
    lines = (
        "EngineCore encountered a fatal error.", "Traceback (most recent call last):",
        '  File "/v/executor.py", line 264, in collective_rpc', "    result = get(w,",
        '  File "/v/shm_broadcast.py", line 511, in dequeue',
    )  # fmt: skip
    found = diagnose(trace_of("".join(f"{head}{line}\n" for line in lines)))
    assert found.culprits == ()
    assert "cut off (shm_broadcast.py:511 in dequeue)" in found.findings[0].summary


_FRAMES = (
    '  File "/job/train.py", line 40, in main\n    step(batch)\n'
    '  File "/job/train.py", line 12, in step\n    return table[key]\n'
)


def test_a_traceback_whose_beginning_is_cut_off_is_one() -> None:
    labelled = "".join(f"[rank1]: {line}\n" for line in _FRAMES.splitlines())
    exception = trace_of(labelled + "[rank1]: KeyError: 'lr'\n").ranks[1].exception
    assert exception is not None
    assert [frame.name for frame in exception.stack] == ["step", "main"]
    glued = "train.py --lr 1Traceback (most recent call last):\n" + _FRAMES + "KeyError: 'lr'\n"
    assert "KeyError: 'lr'" in diagnose(trace_of(glued)).summary


def test_frames_alone_are_neither_an_exception_nor_a_process() -> None:
    diagnosis = diagnose(trace_of(_FRAMES + "epoch 3 done\nValueError: no\n"))
    assert "end at train.py:12 in step" in diagnosis.summary
    assert "ValueError" not in diagnosis.summary
    of_library = '  File "/usr/lib/python3.12/threading.py", line 359, in wait\n'
    labelled = "".join(f"[rank1]: {line}\n" for line in (_FRAMES + of_library).splitlines())
    summary = diagnose(trace_of(labelled)).summary
    assert "of rank 1 end at threading.py:359 in wait, called at train.py:12 in step" in summary


def test_indentation_behind_a_column_of_hosts_is_kept() -> None:
    cut = "".join(f"llm-worker-0: {line}\n" for line in _FRAMES.splitlines())
    error = "KeyError: 'lr'\n"
    assert error.strip() in diagnose(trace_of(cut + "llm-worker-0: " + error)).summary


def test_a_timeout_whose_line_is_cut_off_behind_its_sizes_is_one() -> None:
    line = (
        "[rank2]:[E904 23:21:18.04 ProcessGroupNCCL.cpp:618] [Rank 2] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, T"
    )
    trace = trace_of(line)
    assert [(r["rank"], r["collective_seq"]) for r in trace.records] == [(2, 7)]


def test_helper_threads_of_a_rank_alone_say_what_to_take_instead() -> None:
    frames = (
        "== rank 0 ==\nThread 10 (Thread 0x7f32 (LWP 4961)):\n"
        "#0  0x00007f32 in poll () from /lib/libc.so.6\n"
        "#1  0x00007f33 in ncclProxyService (_args=0x56) at proxy.cc:1437\n"
    )
    listed = '* 1    Thread 0x7fc7 (LWP 5242) "python" 0x00007fc8 in poll () at poll.S:84\n'
    for text in (frames, listed):
        fragments = read_job_log(io.BytesIO(text.encode()), path="job.log", year=2025)
        said = [warning for fragment in fragments for warning in fragment.warnings]
        assert any("take that of the thread that computes" in warning for warning in said)
