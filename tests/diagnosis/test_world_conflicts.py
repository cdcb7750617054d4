"""Ranks that expect different world sizes, in jobs that never reached a collective."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank, duplicate_rank_claims
from hangscope.trace.model import ExitFacts, Phase
from tests.diagnosis.builder import SECOND, START, Job


def _judged(sizes: dict[int, int], *, finished: bool = False, world: int = 4) -> Diagnosis:
    """Jobs of which every process is gone without a word, a moment after its first collective."""
    job = Job(world)
    for rank, size in sizes.items():
        job.op(rank, done=finished)
        beat = START + SECOND // 2
        job.rank(rank, world_size=size, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    job.lose(*(set(range(world)) - set(sizes)))
    return diagnose(job.trace())


def test_world_conflict_needs_no_end_and_no_timeout() -> None:
    found = _judged({0: 4, 1: 3, 2: 4, 3: 4})
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (1,))
    assert "rank 1 expects 3 ranks and ranks 0, 2, 3 expect 4 ranks" in found.summary
    assert "WORLD_SIZE" in found.findings[0].fix


def test_world_size_expected_by_a_lost_rank_is_unknown() -> None:
    found = _judged({0: 4, 1: 3, 2: 4})
    assert (found.culprits, found.confidence.value) == ((1,), "likely")


def test_tie_names_all() -> None:
    found = _judged({0: 4, 1: 3, 2: 3, 3: 4})
    assert (found.culprits, found.confidence.value) == ((0, 1, 2, 3), "ambiguous")


def test_job_with_completed_operations_had_one_size() -> None:
    found = _judged({0: 4, 1: 3, 2: 4, 3: 4}, finished=True)
    assert found.verdict.value != "argument_mismatch"


def test_changes_after_the_start_are_considered_without_records() -> None:
    job = Job(4, live=True)
    for rank in range(4):
        phases = (Phase("init_process_group", START),)
        job.rank(rank, phases=phases, initialized=False, world_size=4)
    first = diagnose(job.trace()).findings[0]
    assert (first.verdict.value, first.culprits) == ("stuck_collective", ())
    assert "RANK or WORLD_SIZE was changed" in first.why


def _waiting(world: int, **facts: object) -> Job:
    job = Job(world, live=True)
    for rank in range(world):
        phases = (Phase("init_process_group", START),)
        told = {name: values[rank] for name, values in facts.items()}  # type: ignore[index]
        job.rank(rank, phases=phases, initialized=False, **told)
    return job


def test_world_size_known_only_from_the_launcher_accuses_no_rank() -> None:
    found = diagnose(_waiting(3, world_size=(4, 3, 3), declared=(False, True, True)).trace())
    assert found.verdict.value == "stuck_collective"
    found = diagnose(_waiting(3, world_size=(4, 3, 3), declared=(True, True, True)).trace())
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (0,))


def test_rank_outside_the_world() -> None:
    found = diagnose(_waiting(3, world_size=(2, 2, 2)).trace())
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (2,))
    assert found.summary == "There is no rank 2 of 2 ranks: they are numbered from 0 to 1"


def test_two_processes_of_one_rank_before_any_operation() -> None:
    job = _waiting(3, world_size=(4, 4, 4))
    said = duplicate_rank_claims([DuplicateRank(1, ("a", 11), ("a", 22))])
    found = diagnose(replace(job.trace(), claims=said, world_size=4))
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (1,))
    assert "pid 11 on host a and pid 22 on host a, and nobody is rank 3" in found.summary
    assert "RANK" in found.findings[0].fix


def test_rank_waiting_at_another_address_is_reported() -> None:
    places = ("tcp://a:1", "tcp://10.0.0.1:1", "tcp://a:2")
    found = diagnose(_waiting(3, rendezvous=places).trace())
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (2,))
    assert "rank 2 at tcp://a:2 and ranks 0, 1 at tcp://a:1" in found.summary
    assert "MASTER_ADDR" in found.findings[0].fix


def test_names_of_one_host_do_not_conflict() -> None:
    found = diagnose(_waiting(2, rendezvous=("tcp://a:1", "tcp://10.0.0.1:1")).trace())
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "[::1]"])
def test_unreachable_address_means_one_job_per_host(address: str) -> None:
    job = _waiting(4, rendezvous=(f"tcp://{address}:29500",) * 4)
    for rank in (0, 1, 2):
        job.rank(rank, host="node0")
    job.rank(3, host="node1")
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("argument_mismatch", (3,))
    assert found.findings[0].confidence.value == "likely"
    assert f"rank 3 at tcp://{address}:29500 of host node1" in found.summary


def test_loopback_address_is_right_on_the_host_of_rank_0() -> None:
    meetings = ("tcp://localhost:29500",) * 2 + ("tcp://node0:29500",) * 2
    job = _waiting(4, rendezvous=meetings, host=("node0", "node0", "node1", "node1"))
    assert diagnose(job.trace()).verdict.value == "stuck_collective"


@pytest.mark.parametrize(("address", "told"), [("127.0.0.1", True), ("node0", False)])
def test_host_waiting_for_rank_0_at_its_own_address(address: str, told: bool) -> None:
    job = _waiting(4, rendezvous=(f"tcp://{address}:29500",) * 4, host=("node1",) * 4)
    for rank in (2, 3):
        job.rank(rank, local_rank=rank - 2)
    job.lose(0, 1)
    finding = diagnose(job.trace()).findings[0]
    assert any("MASTER_ADDR must be that host's" in line for line in finding.evidence) is told


def test_store_unreachable_for_other_processes_is_separate() -> None:
    found = diagnose(_waiting(2, rendezvous=("HashStore", "HashStore")).trace())
    assert (found.verdict.value, found.confidence.value) == ("argument_mismatch", "ambiguous")
    assert found.culprits == (0, 1)


def test_smaller_world_after_the_first_waits_for_no_outside_rank() -> None:
    """Ranks 0 to 2 continue without rank 3, which has destroyed its groups and does something
    else."""
    job = _waiting(4, world_size=(3, 3, 3, 4), declared=(True,) * 4, finalized=(True,) * 4)
    job.rank(3, phases=())
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert "ranks 0–2" in found.summary
    job.rank(2, world_size=4)  # they do not agree: it may be waited for
    assert diagnose(job.trace()).culprits != ()
