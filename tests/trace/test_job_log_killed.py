"""Logs of jobs that were killed, and launcher output about single processes."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict

from .logs import claims, timeout, trace_of

STOPPED = """\
slurmstepd: error: *** STEP 77.0 ON g1 CANCELLED AT 2025-02-03T04:05:06 ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: g1: tasks 0-3: Terminated
"""


@pytest.mark.parametrize(
    "text",
    [
        STOPPED,
        "srun: error: g1: tasks 0-3: Terminated\n",
        "step 7 loss 2.5\n^CTraceback (most recent call last):\n"
        '  File "/app/t.py", line 5, in <module>\n    loss.backward()\nKeyboardInterrupt\n',
        "[rank: 0] Received SIGTERM: 15\n[rank: 1] Received SIGTERM: 15\n",
        "W0816 12:10:08.000000 90 torch/distributed/elastic/agent/server/api.py:704] Received "
        "Signals.SIGTERM death signal, shutting down workers\n",
        "Global rank 0 (PID 8) exited with code -15\nGlobal rank 1 (PID 9) exited with code -9\n",
    ],
)
def test_killed_job_is_not_healthy(text: str) -> None:
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.INCONCLUSIVE, ())


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (
            "srun: error: g4: task 6: Out Of Memory\nsrun: Terminating StepId=8.0\n"
            "srun: error: g3: tasks 0-3: Terminated\nsrun: error: g4: tasks 4-5,7: Killed\n",
            6,
        ),
        (
            "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n"
            "Global rank 0 (PID 40) exited with code -15\n"
            "Global rank 2 (PID 42) exited with code -7\n",
            2,
        ),
        ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n", 3),
        (
            "g1:71:90 [0] NCCL INFO comm 0x5c rank 2 nranks 4 cudaDev 0 busId 1a - Init COMPLETE\n"
            "/var/spool/job/script: line 28:    71 Killed                  python3 main.py\n",
            2,
        ),
        (
            "world_size=4\n[rank1]: torch.distributed.DistBackendError: NCCL error in: /p/x.cpp:3, "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
            "[rank1]: Last error:\n[rank1]: Cuda failure 217 'peer access is not supported'\n",
            1,
        ),
        (
            "[rank3]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:59] Connection closed by peer "
            "[10.1.2.3]:2804\n[rank1]: ZeroDivisionError: division by zero\n",
            1,
        ),
        (
            "[1,mpirank:3,algo-1]<stderr>:Traceback (most recent call last):\n"
            '[1,mpirank:3,algo-1]<stderr>:  File "t.py", line 3, in <module>\n'
            "[1,mpirank:3,algo-1]<stderr>:ValueError: bad\n",
            3,
        ),
        ("[rank2]: RuntimeError: DataLoader worker (pid 81) is killed by signal: Killed.\n", 2),
        (
            "g1:71:90 [3] NCCL INFO comm 0x5c rank 3 nranks 4 cudaDev 3 busId 1a - Init COMPLETE\n"
            "g1:71:90 [3] include/alloc.h:17 NCCL WARN Cuda failure 'out of memory'\n",
            3,
        ),
    ],
)
def test_process_that_failed_by_itself_is_named(text: str, rank: int) -> None:
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_CRASHED, (rank,))


@pytest.mark.parametrize(
    ("line", "kind", "reporter"),
    [
        (
            "gpu1:34:39 [4] ib_plugin.c:16 NCCL WARN NET/IB : Got completion from peer "
            "10.2.2.3<548> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
            "network_error",
            None,
        ),
        (
            "w1:9:14 [2] misc/ibvwrap.cc:26 NCCL WARN Call to ibv_modify_qp failed with error "
            "Connection timed out errno 110",
            "network_error",
            None,
        ),
        (
            "Child process with PID 47 terminated with code -9. Forcefully terminating",
            "launcher_failure",
            None,
        ),
        (
            "ERROR 11-05 10:11 utils.py:12] Worker VllmWorkerProcess pid 81 died, exit code: -15",
            "launcher_failure",
            None,
        ),
        (
            "INFO 11-05 10:11:12 [shm_broadcast.py:46] No available shared memory broadcast block "
            "found in 60 seconds.",
            "timeout",
            None,
        ),
        (
            "Epoch 0:  43%|####3     | 43/100 [01:01<01:20,  1.39s/it, v_num=0]Killed",
            "launcher_failure",
            None,
        ),
        ("ORTE has lost communication with a remote daemon.", "launcher_failure", None),
        (
            "ray.exceptions.ActorDiedError: The actor died because of an error raised in its "
            "creation task, ray::RayTrainWorker.__init__() (pid=71, ip=10.0.0.5)",
            "launcher_failure",
            None,
        ),
        (
            "(RayTrainWorker pid=47, ip=10.0.0.2) *** SIGSEGV received at time=176233 on cpu 3 ***",
            "launcher_failure",
            None,
        ),
        (
            "(raylet) Worker PID: 9073 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
            "unexpectedly exits with a connection error code 2.",
            "launcher_failure",
            None,
        ),
    ],
)
def test_signs_that_name_no_rank(line: str, kind: str, reporter: int | None) -> None:
    trace = trace_of(line + "\n")
    found = claims(trace, kind)
    assert [(c.accused, c.reporter) for c in found] == [((), reporter)]
    diagnosis = diagnose(trace)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.INCONCLUSIVE, ())


def test_exception_without_a_rank_is_reported() -> None:
    text = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in main\nKeyError: 7\n'
    diagnosis = diagnose(trace_of(text))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.INCONCLUSIVE, ())
    assert "KeyError: 7" in diagnosis.summary


def model(rank: int, size: int, other: int, its: int) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/app/t.py", line 3, in main\n'
        f"[rank{rank}]: RuntimeError: DDP expects same model across all ranks, but Rank {rank} has "
        f"{size} params, while rank {other} has inconsistent {its} params.\n"
    )


def test_rank_with_another_model_is_found_by_the_others() -> None:
    """Each mentions the first rank that differs from it: the ranks before that are equal to it."""
    diagnosis = diagnose(trace_of(model(0, 10, 2, 12) + model(2, 12, 0, 10)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.SHAPE_MISMATCH, (2,))
    diagnosis = diagnose(trace_of("world_size=2\n" + model(1, 12, 0, 10)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.SHAPE_MISMATCH, (0, 1))
    assert diagnosis.confidence is Confidence.AMBIGUOUS


def test_lightnings_observer_numbers_its_children() -> None:
    """By their local rank; the process itself is not mentioned otherwise."""
    line = "[rank: 2] Child process with PID 47 terminated with code {}. Forcefully terminating all"
    died = diagnose(trace_of(line.format(1) + "\n"))
    assert (died.verdict, died.culprits) == (Verdict.RANK_CRASHED, (2,))
    assert died.confidence is Confidence.LIKELY
    gave_up = diagnose(trace_of(timeout(0, 5) + timeout(1, 5) + line.format(-6) + "\n"))
    assert 2 not in gave_up.culprits or gave_up.verdict is not Verdict.RANK_CRASHED


def test_of_exceptions_without_a_rank_the_one_that_is_no_echo_is_reported() -> None:
    """Three lost their connection, and one had failed: which rank, nothing shows."""
    head = 'Traceback (most recent call last):\n  File "/job/train.py", line 7, in step\n'
    lost = (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:4001\n"
    )
    text = (head + lost) * 2 + head + "ValueError: bad sample 71\n" + head + lost
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("ValueError: bad sample 71" in line for line in found.findings[0].evidence)


def test_what_is_killed_after_it_fell_silent_ended_by_somebodys_hand() -> None:
    silent = "[2025-03-09 00:57:15 TP{}] Watchdog timeout (self.watchdog_timeout=300)\n"
    found = diagnose(trace_of(silent.format(0) + silent.format(1) + "Killed\n"))
    assert found.summary.startswith("There was no sign of progress for too long (reported by ranks")


def test_an_abort_beside_a_failed_device_is_no_watchdogs() -> None:
    failed = "HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang\n"
    ended = "failed (exitcode: -6) local_rank: 0 (pid: 819025) of binary: /usr/bin/python3\n"
    found = diagnose(trace_of(failed + ended))
    assert found.summary.startswith("A device failed and rank 0 aborted")
    assert "watchdog" in diagnose(trace_of(ended)).summary


def test_time_that_mpirun_prints_before_its_tag_hides_no_rank() -> None:
    text = "Mon Dec 10 08:18:05 2018[1,8]<stderr>:[n1:7:0:7] ud_iface.c:732  UCX Fatal: timeout\n"
    assert [claim.reporter for claim in trace_of(text).claims] == [8]
