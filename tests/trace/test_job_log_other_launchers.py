# ruff: noqa: E501
"""Process ends as reported by launchers other than torchrun, and the resulting verdict."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose

from .logs import timeout, trace_of

OTHERS = "".join(timeout(r, 78) for r in (0, 1, 3))

SPAWN_ERROR = """Traceback (most recent call last):
  File "t.py", line 50, in <module>
    mp.spawn(main, nprocs=4)
  File "/x/torch/multiprocessing/spawn.py", line 202, in start_processes
    while not context.join():
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/x/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "t.py", line 20, in main
    raise ValueError('x')
ValueError: x
"""
SPAWN_SIGNAL = """Traceback (most recent call last):
  File "t.py", line 50, in <module>
    mp.spawn(main, nprocs=4)
torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL
"""
OPEN_MPI = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[12345,1],2]
  Exit code:    3
"""
HYDRA = """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 2 PID 4711 RUNNING AT node1
=   KILLED BY SIGNAL: 9 (Killed)
"""
DEEPSPEED = """[2025-08-16 12:10:00,123] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 200
[2025-08-16 12:10:00,125] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=2'] exits with return code = 1
"""
RICH = """[rank2]: ╭──────────────── Traceback (most recent call last) ────────────────╮
[rank2]: │ /home/me/train.py:44 in <module>                                  │
[rank2]: │                                                                   │
[rank2]: │ ❱ 44     main()                                                   │
[rank2]: ╰───────────────────────────────────────────────────────────────────╯
[rank2]: ValueError: bad sample
"""


@pytest.mark.parametrize(
    "end",
    [
        SPAWN_ERROR,
        SPAWN_SIGNAL,
        OPEN_MPI,
        OPEN_MPI.replace("[[12345,1],2]", "[prterun-node0-4711@1,2]"),
        HYDRA,
        HYDRA.replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 139"),
        RICH,
        "[default2]:Fatal Python error: Segmentation fault\n",
    ],
)
@pytest.mark.parametrize("others", ["", OTHERS], ids=["alone", "beside watchdogs"])
def test_rank_that_its_launcher_saw_end_is_named(end: str, others: str) -> None:
    found = diagnose(trace_of(end + others))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


def test_deepspeed_prints_the_last_command_whichever_failed() -> None:
    alone = trace_of(DEEPSPEED)
    assert not diagnose(alone).culprits
    assert [c.accused for c in alone.claims if c.kind == "launcher_failure"] == [()]
    beside = diagnose(trace_of(DEEPSPEED + OTHERS))
    assert (beside.verdict.value, beside.culprits) == ("rank_lost", (2,))
    only = diagnose(trace_of(DEEPSPEED.replace("local_rank=2", "local_rank=0")))
    assert (only.verdict.value, only.culprits) == ("rank_crashed", (0,))


PRTERUN = """prterun has exited due to process rank {rank} with PID 4711 on node n3 exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did. This can cause a job to hang indefinitely while it waits for
all processes to call "init".
"""


@pytest.mark.parametrize(
    "end", [PRTERUN, PRTERUN.replace("prterun", "mpirun").replace(" on node n3 ", " on\nnode n3 ")]
)
def test_rank_that_left_mpi_unfinished_is_named_unless_it_had_waited_itself(end: str) -> None:
    alone, beside = trace_of(end.format(rank=2)), diagnose(trace_of(end.format(rank=2) + OTHERS))
    assert (diagnose(alone).verdict.value, diagnose(alone).culprits) == ("rank_crashed", (2,))
    assert diagnose(alone).findings[0].confidence.value == "likely", "its status is unknown"
    assert (beside.verdict.value, beside.culprits) == ("rank_crashed", (2,))
    waited = diagnose(trace_of(OTHERS + end.format(rank=1)))
    assert 1 not in waited.culprits, "it gave up waiting, as ranks 0 and 3 did"


def test_frames_in_a_box_are_frames() -> None:
    exception = trace_of(RICH).ranks[2].exception
    assert exception is not None
    assert (exception.type_name, exception.message) == ("ValueError", "bad sample")
    assert [(f.filename, f.line) for f in exception.stack] == [("/home/me/train.py", 44)]


def test_spawned_process_that_lost_its_peer_is_a_victim() -> None:
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1"
    assert not diagnose(trace_of(SPAWN_ERROR.replace("ValueError: x", lost))).culprits


def test_blocking_wait_that_timed_out_is_a_victims_exit() -> None:
    text = "world_size=4\n"
    for rank in (0, 1, 3):
        text += (
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/a/train.py", line 9, in step\n'
            f"[rank{rank}]: torch.distributed.DistBackendError: [Rank {rank}] Work WorkNCCL("
            "SeqNum=78, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) timed out in "
            "blocking wait.\n"
        )
    found = diagnose(trace_of(text))
    assert found.culprits == (2,)
    assert found.verdict.value == "rank_lost"


def test_stopped_job_may_have_hung() -> None:
    found = diagnose(
        trace_of(
            "W0816 12:10:08.000000 100 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 100 got signal: 15\n"
        )
    )
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "told to stop" in found.summary


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4", 4),
        ("All distributed processes registered. Starting with 8 processes", 8),
        ("using world size: 16, data-parallel size: 4, tensor-model-parallel size: 2", 16),
        ("[INFO] [launch.py:164:main] dist_world_size=8", 8),
        (
            "node0:71:71 [0] NCCL INFO comm 0x55d rank 0 nranks 4 cudaDev 0 busId 1 - Init COMPLETE",
            4,
        ),
    ],
)
def test_world_size_is_read_from_what_frameworks_print(text: str, world: int) -> None:
    assert trace_of(text + "\n" + timeout(1, 5)).world_size == world


def reached(rank: int) -> str:
    return (
        f"[rank{rank}]: RuntimeError: Rank {rank} successfully reached monitoredBarrier, but "
        "received errors while waiting for send/recv from rank 0. Please check rank 0 logs for "
        "faulty rank.\n"
    )


def test_coordinator_absent_from_its_barrier() -> None:
    found = diagnose(trace_of("".join(map(reached, (1, 2, 3)))))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))
    assert not diagnose(trace_of("".join(map(reached, (1, 3))))).culprits


def test_ranks_in_a_barrier_show_the_absent_ones() -> None:
    text = (
        "world_size=4\n[rank0]:[E816 12:10:01.1234567 ProcessGroupGloo.cpp:144] Rank 0 timed out "
        "in monitoredBarrier after 30000 ms.\nSuccessfully processed ranks: 1, 3\n"
    )
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_both_operations_of_a_pair_are_no_cycle() -> None:
    text = "world_size=2\n" + timeout(0, 12, "SEND") + timeout(1, 12, "RECV")
    assert diagnose(trace_of(text)).verdict.value == "stuck_collective"


def test_own_verdict_is_repeated_if_the_launcher_prints_nothing() -> None:
    found = diagnose(
        trace_of(
            "[hangscope] Rank 2 never joined all_reduce #11 in group default (ranks 0–3)\n"
            "[hangscope] more: hangscope analyze /runs/7\n"
        )
    )
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.endswith(
        "HangScope had said before: Rank 2 never joined all_reduce #11 in group default (ranks 0–3)"
    )
    assert "run directory" in found.findings[0].fix


def test_own_verdict_in_the_log_is_repeated_and_names_nobody() -> None:
    found = diagnose(
        trace_of(
            "[hangscope] Rank 3 never joined all_reduce #6 in group default (ranks 0–3)\n"
            "  HANG   4 ranks · gloo · live\n"
            " Why   rank 3 is still in load\n"
            "[hangscope] more: hangscope analyze /runs/7\n"
            "W0816 12:10:08.000000 100 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
        )
    )
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.endswith(
        "HangScope had said before: Rank 3 never joined all_reduce #6 in group default (ranks 0–3)"
    )
    assert "run directory" in found.findings[0].fix
    said = found.findings[0].evidence
    assert said[-1] == "log: Received 15 death signal, shutting down workers"


def test_rank_aborted_by_another_size_is_reported_and_not_accused() -> None:
    found = diagnose(
        trace_of(
            "world_size=4\n"
            "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
            "op.nbytes. 512 vs 64. Received data size doesn't match expected size.\n"
            "E0816 12:10:09.000000 100 torch/distributed/elastic/multiprocessing/api.py:1002] "
            "failed (exitcode: -6) local_rank: 1 (pid: 78) of binary: /usr/bin/python3\n"
            "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 78)  (SIGABRT)\n"
        )
    )
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "rank 1 aborted on receiving more than it had room for" in found.summary
