"""Process ends in the output of schedulers and MPI libraries."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from tests.trace.logs import claims, trace_of

BLOCK = """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK {rank} PID {pid} RUNNING AT gpu17
=   KILLED BY SIGNAL: {signal} (x)
"""


def hydra(**signals: int) -> str:
    """What Hydra prints of every process that did not end well."""
    return "".join(
        BLOCK.format(rank=int(rank[1:]), pid=600 + int(rank[1:]), signal=signal)
        for rank, signal in signals.items()
    )


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (
            "x42c7s7b0n0.hsn.example: rank 5 died from signal 9\n"
            "x42c7s7b0n0.hsn.example: rank 0 died from signal 15\n",
            5,
        ),
        ("x9c1: rank 7 exited with code 3\nx9c0: rank 0 died from signal 15\n", 7),
        (
            "Abort(1) on node 2 (rank 2 in comm 0): application called "
            "MPI_Abort(MPI_COMM_WORLD, 1) - process 2\n",
            2,
        ),
        (hydra(r0=9, r1=9, r2=11, r3=9), 2),
    ],
    ids=["pals", "pals-code", "mpich", "hydra"],
)
def test_process_that_failed_by_itself_is_named(text: str, rank: int) -> None:
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (rank,))


@pytest.mark.parametrize(
    "text",
    [
        "x1c0: rank 5 died from signal 15\nx2c0: rank 0 died from signal 15\n",
        hydra(r0=9, r1=9, r2=9),
        "=   PID 9665 RUNNING AT gpu17\n=   EXIT CODE: 9\n",
        "Abort(15) on node 2 (rank 1 in comm 496): Fatal error in internal_Allreduce: Other MPI\n",
        "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGKILL: "
        "9>.\n",
        "[n1:900:0:900] ucp_ep.c:1500 UCX  ERROR ep 0x7f: remote endpoint closed\n",
        "n3:1:9 [3] NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, "
        "retcode 3\n",
    ],
)
def test_exits_without_a_rank_are_reported(text: str) -> None:
    found = diagnose(trace_of(text))
    assert found.verdict.value in ("inconclusive", "rank_crashed")
    if found.verdict.value == "rank_crashed":
        assert found.confidence.value == "ambiguous"
        assert len(found.culprits) > 1
    else:
        assert found.culprits == ()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("KILLED BY SIGNAL: 9 (Killed)", ("rank_crashed", (3,))),
        ("EXIT CODE: 3", ("rank_crashed", (3,))),
        ("EXIT CODE: 9", ("inconclusive", ())),  # so MPICH ends those that go on
    ],
)
def test_hydras_process_may_be_known_by_its_pid(end: str, expected: tuple[str, object]) -> None:
    text = (
        "gpu17:9665:9701 [1] NCCL INFO comm 0x55 rank 3 nranks 4 cudaDev 1 busId 4e000 - "
        f"Init COMPLETE\n=   PID 9665 RUNNING AT gpu17\n=   {end}\n"
    )
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == expected


def test_srun_task_is_an_mpich_proxy() -> None:
    text = (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   PID 1273 RUNNING AT hz1\n=   EXIT CODE: 15\n"
        "[proxy:0:0@hz0] main (pm/pmiserv/pmip.c:169): demux engine error waiting for event\n"
        "srun: error: hz0: task 0: Exited with exit code 7\n"
    )
    assert diagnose(trace_of(text)).culprits == ()


def test_job_restarted_by_a_scheduler_is_another_attempt() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/a.py", line 3, in main\n'
        "[rank1]: ValueError: of the first life\n"
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-08-16T10:05:00 DUE TO "
        "PREEMPTION ***\n"
        "Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/a.py", line 9, in main\n'
        "[rank2]: KeyError: 'second'\n"
    )
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


REPORT = (
    "`ray.train.report` has not been called by all 4 workers in the group.\n\n"
    "The workers have been waiting for {s}.01 s for the following ranks\n"
    "to join the `report` call: [{ranks}].\n"
)


def test_rank_ray_train_waits_for_is_missing() -> None:
    text = REPORT.format(s=60, ranks="1, 2") + REPORT.format(s=120, ranks="2")
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    glued = REPORT.format(s=60, ranks="3").replace("\nto join", " to join")
    glued = "".join(f"(TrainController pid=12) {line}\n" for line in glued.splitlines())
    (said,) = claims(trace_of(glued), "missing_ranks")
    assert said.accused == (3,)
