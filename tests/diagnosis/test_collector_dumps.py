"""Native dumps as collectors leave them: without members, ids or finished entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, Phase
from tests.diagnosis.builder import Job
from tests.trace.dumps import dump, entry, pending, write

Entries = list[dict[str, Any]]


def _diagnose(folder: Path, ranks: dict[int, Entries], **changes: Any) -> Diagnosis:
    for rank, entries in ranks.items():
        document = dump(entries, pg_status=None, **changes)
        write(folder, f"_dump_{rank}.json", document)
    return diagnose(load_trace([folder]))


def _half(number: int, op: str, group: tuple[str, str], **changes: Any) -> dict[str, Any]:
    return pending(
        1,
        f"nccl:{op}",
        process_group=group,
        pg_id=1,
        collective_seq_id=0,
        p2p_seq_id=number,
        is_p2p=True,
        **changes,
    )


def test_lost_rank_is_found_if_no_dump_lists_members(tmp_path: Path) -> None:
    """Two groups with one description partition the world; one of them lacks a member."""
    group = {rank: (str(5 + rank % 2), "mesh_dp") for rank in range(8)}
    ranks = {
        rank: [
            entry(1, process_group=group[rank], pg_id=1),
            (pending if rank % 2 == 0 else entry)(2, process_group=group[rank], pg_id=1),
        ]
        for rank in range(8)
        if rank != 6
    }
    found = _diagnose(tmp_path, ranks, pg_config=None)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (6,))
    assert found.confidence is not Confidence.CERTAIN


def test_places_beyond_known_ranks_name_no_known_rank(tmp_path: Path) -> None:
    """A ring of four; rank 2 never started, so place 2 of the known ranks would be rank 3."""
    ring = ("5", "undefined")
    ranks: dict[int, Entries] = {
        rank: [
            entry(1),
            _half(1, f"send {rank}->{(rank + 1) % 4}", ring, record_id=1),
            _half(1, f"recv {rank}<-{(rank - 1) % 4}", ring, record_id=2),
        ]
        for rank in (0, 1, 3)
    }
    ranks[2] = [entry(1)]
    found = _diagnose(tmp_path, ranks, pg_config=None)
    assert set(found.culprits) <= {2}
    assert all(set(f.culprits) <= {2} for f in found.findings)


def _batch(first: int, number: int, *ops: str, listed: bool = True) -> Entries:
    """A batch in a pipeline; its own row is left out if it has finished."""
    pipe = ("5", "undefined")
    rows = [_half(number, op, pipe, record_id=first + i) for i, op in enumerate(ops)]
    end = _half(number, "coalesced", pipe, record_id=first + len(ops))
    end |= {"input_sizes": [], "output_sizes": [], "is_p2p": False}
    return [*rows, end] if listed else rows


_PIPE = {"5": {"name": "5", "desc": "undefined", "ranks": "[0, 1, 2]"}}


def test_p2p_operations_are_counted_from_the_first_if_all_are_listed(tmp_path: Path) -> None:
    """Stage 0 left nothing. Equal numbers of its neighbours do not make them partners."""
    ranks = {
        1: [
            *_batch(0, 1, "recv 1<-0"),
            *_batch(2, 2, "send 1->2"),
            *_batch(4, 3, "recv 1<-0"),
            *_batch(6, 4, "send 1->2", "recv 1<-2"),
        ],
        2: [*_batch(0, 1, "recv 2<-1"), *_batch(2, 2, "send 2->1", "recv 2<-1")],
    }
    for entries in ranks.values():  # something has finished in between
        for one in entries[2:]:
            one["record_id"] += 1
    found = _diagnose(tmp_path, ranks, pg_config=_PIPE)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (0,))


def test_unfinished_entries_are_recognised_without_record_ids(tmp_path: Path) -> None:
    """Completed batches stay listed without their own row; no rank waits in them any more."""
    ranks: dict[int, Entries] = {
        0: [*_batch(0, 8, "send 0->1", "recv 0<-1", listed=False), pending(9)],
        1: [
            *_batch(0, 7, "recv 1<-0", listed=False),
            *_batch(0, 8, "send 1->2", listed=False),
            *_batch(0, 9, "recv 1<-0"),
            *_batch(0, 10, "send 1->2"),
        ],
        2: [*_batch(0, 4, "recv 2<-1", listed=False), *_batch(0, 5, "recv 2<-1")],
    }
    for entries in ranks.values():
        for one in entries:
            del one["record_id"]
    found = _diagnose(tmp_path, ranks, pg_config=_PIPE | dump([], world=3)["pg_config"])
    assert found.culprits == (0,)


def test_two_against_two_names_both_sides() -> None:
    """Two issued one too many, or two one too few: nothing decides."""
    job = Job(4)
    job.steps(2)
    for rank in (0, 1):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0, 1, 2, 3))
    assert found.confidence is Confidence.AMBIGUOUS
    assert "Ranks 0, 1 issued" in found.summary or "Ranks 0–1 issued" in found.summary


def test_half_of_the_ranks_observed_elsewhere_is_missing() -> None:
    job = Job(4)
    job.steps(2)
    for rank in (0, 1):
        job.op(rank, done=False)
        job.rank(rank + 2, phases=(Phase("checkpoint"),))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2, 3))


def test_few_ranks_that_proceeded_together_are_named_despite_waiting_pairs() -> None:
    """They alone log something; a tensor group and the next stage wait for ranks 0 and 1."""
    few = (0, 1)
    job = Job(6)
    tensor = job.group(0, 1, 2, 3)
    job.steps(2)
    for rank in few:
        job.op(rank, size=(7,), done=False)
    for rank in (2, 3):
        job.op(rank, group=tensor, done=False)
    for rank in (4, 5):
        job.op(rank, "recv", peer=rank - 4, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", few)
    assert found.confidence is Confidence.LIKELY


def test_operations_issued_ahead_are_no_phase_that_a_stage_has_left() -> None:
    """Stage 0 sends one micro-batch too few; stage 1's host has already issued the rest of its
    step."""
    job = Job(4)
    job.steps(2)

    def halves(rank: int, *steps: tuple[str, int, int, bool]) -> None:
        for op, peer, line, done in steps:
            job.op(rank, op, peer=peer, line=line, done=done)

    halves(0, ("send", 1, 64, True), ("recv", 1, 82, False), ("recv", 1, 82, False))
    halves(1, ("recv", 0, 60, True), ("send", 2, 64, True), ("recv", 0, 60, False))
    halves(1, ("send", 2, 64, False), ("recv", 2, 82, False), ("send", 0, 86, False))
    halves(2, ("recv", 1, 60, True), ("send", 3, 64, True), ("recv", 1, 60, False))
    halves(2, ("send", 3, 70, False), ("recv", 3, 70, False), ("send", 1, 74, False))
    halves(3, ("recv", 2, 60, True), ("send", 2, 78, False), ("recv", 2, 78, False))
    found = diagnose(job.trace())
    assert 0 in found.culprits


def test_majority_is_not_accused_for_what_a_few_completed() -> None:
    """Only unfinished entries are listed: what rank 3 issued there can no longer be compared."""
    job = Job(4)
    job.steps(2)
    for rank in range(3):
        job.op(rank, done=False)
    job.op(3)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert found.confidence is Confidence.LIKELY
    assert "ranks 0–2) cannot finish" in found.summary
    assert "rank 3 could" in found.summary


@pytest.mark.parametrize("listed", [True, False])
def test_of_two_members_the_one_that_cannot_finish_is_likely_stuck(
    listed: bool,
) -> None:
    job = Job(4)
    pair = job.group(0, 1)
    for _ in range(3):
        job.all(group=pair)
        job.all()
    job.op(0, group=pair, done=False)
    job.op(1, group=pair)
    for group in (pair, 0):
        for rank in job.groups[group].ranks:
            job.op(rank, group=group, done=False)
    if not listed:
        job.rows = [row for row in job.rows if not row["completed_ns"]]
        for rank in range(4):
            job.rank(rank, only_active=True)
    found = diagnose(job.trace())
    told = (found.verdict.value, found.culprits, found.confidence.value)
    assert told == ("stuck_collective", (0,), "likely")


def test_cycle_is_reported_without_the_lost_rank_despite_its_waiters() -> None:
    """Stage 3 skipped its sends and receives; its tensor group is blocked by it, whatever rank 4
    did."""
    job = Job(6)
    tensor = job.group(0, 1, 2)
    job.steps(2)
    for rank in (0, 1, 2):
        if rank == 2:
            job.op(rank, "recv", peer=3, done=False, flags=Flag.BLOCKING)
        job.op(rank, group=tensor, done=False)
    job.op(1, "recv", peer=4, done=False, flags=Flag.BLOCKING)
    job.op(5, "recv", peer=0, done=False, flags=Flag.BLOCKING)
    job.op(3, done=False)
    del job.facts[4]
    job.rows = [row for row in job.rows if row["rank"] != 4]
    found = diagnose(job.trace())
    assert 3 in found.culprits
    assert 4 not in found.culprits


def test_active_send_of_a_rank_that_others_wait_for_makes_its_receiver_suspect_too(
    tmp_path: Path,
) -> None:
    """Rank 0 waits at the barrier without having received what rank 1 sent before it."""
    group = ("0", "default_pg")
    ranks: dict[int, Entries] = {
        rank: [pending(6, process_group=group, pg_id=0, record_id=40)] for rank in (0, 2, 3)
    }
    ranks[1] = [_half(5, "send 1->0", group, record_id=39) | {"pg_id": 0, "collective_seq_id": 5}]
    found = _diagnose(tmp_path, ranks)
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (0, 1))
    assert found.confidence is Confidence.AMBIGUOUS


def test_active_send_of_a_batch_that_may_be_over_accuses_no_receiver(tmp_path: Path) -> None:
    """Torch never notes the end of a batch's members; its own row, if finished, is not listed."""
    group = ("0", "default_pg")
    ranks: dict[int, Entries] = {
        rank: [pending(6, process_group=group, pg_id=0, record_id=40)] for rank in (0, 2, 3)
    }
    ranks[1] = [_half(5, "send 1->0", group, record_id=30) | {"pg_id": 0, "collective_seq_id": 5}]
    ranks[1].append(ranks[1][0] | {"record_id": 31, "profiling_name": "nccl:send 1->2"})
    found = _diagnose(tmp_path, ranks)
    assert set(found.culprits) <= {1}


def test_rank_without_unfinished_entry_is_suspect_without_member_lists(tmp_path: Path) -> None:
    group = ("5", "undefined")
    ranks: dict[int, Entries] = {
        rank: [pending(9, process_group=group, pg_id=1, record_id=40)] for rank in (0, 1, 2)
    }
    ranks[3] = _batch(30, 3, "send 1->0", listed=False)
    ranks[2] += [_half(7, "recv 0<-1", ("6", "undefined"), record_id=60)]
    found = _diagnose(tmp_path, ranks, pg_config=None)
    assert set(found.culprits) <= {3}
    assert not (found.verdict.value == "stuck_collective" and found.confidence.value == "certain")


def test_few_entries_in_a_row_are_the_unfinished_ones(tmp_path: Path) -> None:
    """Without counters and gaps: an overwritten buffer would hold more entries."""
    for rank in range(4):
        entries = [pending(seq, record_id=900 + seq) for seq in (65, 66, 67)]
        write(tmp_path, f"_dump_{rank}.json", dump(entries, world=4, pg_status=None))
    trace = load_trace([tmp_path])
    assert all(facts.only_active for facts in trace.ranks.values())
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def test_entries_before_the_oldest_unfinished_one_have_completed(tmp_path: Path) -> None:
    """Rank 2 has left #65, which the others cannot complete: not all members are in it."""
    for rank in range(4):
        first = 66 if rank == 2 else 65
        entries = [pending(seq, record_id=900 + seq) for seq in range(first, 67)]
        write(tmp_path, f"_dump_{rank}.json", dump(entries, world=4, pg_status=None))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert "rank 2 could" in found.summary


def test_unfinished_operations_are_not_quiescent(tmp_path: Path) -> None:
    """Lists of torch 2.2 name no members, and the rank that all may wait for left damaged data."""
    for rank in range(4):
        rows = [
            {
                "pg_id": 0,
                "seq_id": seq,
                "profiling_name": "nccl:all_reduce",
                "state": "completed" if seq < 3 else "scheduled",
                "input_sizes": [[8]],
                "output_sizes": [[8]],
                "time_created_us": 1_750_000_000_000_000 + seq,
            }
            for seq in (1, 2, 3)
        ]
        path = write(tmp_path, f"nccl_trace_rank_{rank}", rows)
        if rank == 2:
            path.write_bytes(path.read_bytes()[:40])
    found = diagnose(load_trace([tmp_path]))
    assert found.verdict.value != "quiescent"
    assert 2 not in found.culprits or found.confidence is not Confidence.CERTAIN


def test_counters_decide_entries_without_a_state(tmp_path: Path) -> None:
    """Rank 1 cannot complete what the others completed; a broadcast made the group one-sided."""
    for rank in range(3):
        over = 3 if rank == 1 else 4
        rows = [entry(1, "nccl:broadcast")]
        rows += [(entry if seq <= over else pending)(seq) for seq in (2, 3, 4, 5)]
        for row in rows:
            row["state"] = None
        status = {
            "last_enqueued_collective": 5,
            "last_started_collective": -1,
            "last_completed_collective": over,
        }
        write(tmp_path, f"rank_{rank}", dump(rows, world=3, pg_status={"0": status}))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", (1,))
