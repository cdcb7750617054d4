"""Logs that end while ranks wait at rendezvous."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict

from .logs import claims, timeout, trace_of

MEETING = (
    "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process "
    "group for rank: {}, key: store_based_barrier_key:1 (world_size=4, worker_count=2, "
    "timeout=0:30:00)\n"
)


def test_log_ending_in_a_rendezvous_shows_how_many_had_arrived() -> None:
    found = diagnose(trace_of(MEETING.format(0) + MEETING.format(3)))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert "waited for 4 clients and 2 had come" in found.summary
    went_on = trace_of(MEETING.format(0) + "".join(timeout(r, 5) for r in range(4)))
    assert not claims(went_on, "rendezvous")


def test_only_rank_absent_from_the_barrier_of_a_store() -> None:
    waits = "".join(
        f"INFO:root:Waiting in store based barrier to initialize process group for rank: {r}, key: "
        "store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)\n"
        for r in (3, 0, 1, 3)
    )
    found = diagnose(trace_of(waits))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))
    assert "3 of 4 ranks" in found.summary
    less = diagnose(trace_of(waits.replace("worker_count=3", "worker_count=2")))
    assert not less.culprits


@pytest.mark.parametrize(
    "begins",
    [
        "Timed out initializing process group in store based barrier on rank: 2, for ",
        "Waiting in store based barrier to initialize process group for rank: 0, ",
    ],
)
def test_more_processes_than_the_world_size_are_reported(begins: str) -> None:
    text = (
        begins + "key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)\n"
    )
    (finding,) = diagnose(trace_of(text)).findings
    assert "4 processes came to a rendezvous of 2" in finding.summary
    assert "earlier launch" in finding.fix
