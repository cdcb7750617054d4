"""Members that no source lists: what places and regularity show, and what they leave open."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.groups.meshes import block
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.flight_recorder.read import Origin, read_document
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import Trace
from tests.trace.logs import WORK, trace_of

TENSOR, DATA = "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP"


def waiting(rank: int, seq: int, group: str, desc: str, place: int) -> str:
    head = f"[rank{rank}]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp"
    work = WORK.format(seq=seq, op="ALLREDUCE", n=64)
    return (
        f"{head}:629] [Rank {place}] Watchdog caught collective operation timeout: {work} ran for "
        "600030 milliseconds before timing out.\n"
        f"{head}:2168] [PG ID 1 PG GUID {group}({desc}) Rank {place}]  failure detected by watchdog"
        f" at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: "
        f"{seq - 1}\n"
    )


def heard(rank: int) -> str:
    head = f"[rank{rank}]:[E816 12:10:03.111111111 ProcessGroupNCCL.cpp:700]"
    return (
        f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        "collective timeout from  rank 0 and we will try our best to dump the debug info. Last "
        "enqueued NCCL work: 5, last completed NCCL work: 5.This is most likely\n"
    )


def found(text: str) -> Diagnosis:
    return diagnose(trace_of(text))


def blame(text: str) -> tuple[str, tuple[int, ...]]:
    diagnosis = found(text)
    return diagnosis.verdict.value, diagnosis.culprits


def test_blocks_of_a_mesh_are_groups() -> None:
    assert block(5, 1, 4, 8) == (4, 5, 6, 7)
    assert block(5, 2, 4, 8) == (1, 3, 5, 7)
    assert block(5, 4, 2, 8) == (1, 5)
    assert block(5, 3, 2, 8) == ()


def test_gap_between_places_is_a_member() -> None:
    text = "world_size=8\n" + "".join(waiting(r, 7, "3", TENSOR, r - 4) for r in (4, 5, 7))
    text += "".join(heard(r) for r in (0, 1, 2, 3, 6))
    answer = found(text)
    assert (answer.verdict.value, answer.culprits) == ("missing_rank", (6,))
    assert answer.confidence is not Confidence.CERTAIN
    assert any("inferred" in text for text in answer.findings[0].unknowns)


def test_two_dimensions_lead_to_the_rank_that_waits_for_nothing() -> None:
    # Tensor groups of four, data groups of two; rank 5 has left its tensor group.
    text = "world_size=8\n" + "".join(waiting(r, 7, "2", TENSOR, r - 4) for r in (4, 6, 7))
    text += waiting(1, 3, "4", DATA, 0) + heard(5)
    text += "".join(waiting(r, 8, "1", TENSOR, r) for r in (0, 2, 3))
    assert blame(text) == ("missing_rank", (5,))


def test_world_is_as_large_as_its_meshes_need() -> None:
    # Nothing is left of rank 7, and no line states the world's size.
    text = "".join(waiting(r, 7, "2", TENSOR, r - 4) for r in (4, 5, 6))
    text += "".join(waiting(r, 9, str(3 + r), DATA, 0) for r in (3,))
    text += "".join(waiting(r, 8, "1", TENSOR, r) for r in (0, 1, 2))
    answer = found(text)
    assert answer.culprits == (7,)
    assert answer.verdict.value == "rank_lost"


def test_two_possible_shapes_name_no_rank() -> None:
    # Rank 6 at place 1: of (2, 6) or of (4, 6).
    text = "world_size=8\n" + waiting(6, 7, "3", DATA, 1)
    text += "".join(heard(r) for r in range(8) if r != 6)
    assert not found(text).culprits


def test_complete_group_is_stuck() -> None:
    text = "world_size=8\n" + "".join(waiting(r, 7, "2", TENSOR, r - 4) for r in (4, 5, 6, 7))
    text += "".join(waiting(r, 5, str(3 + r), DATA, 0) for r in range(4))
    assert blame(text) == ("stuck_collective", ())


def test_groups_over_two_dimensions_are_not_one() -> None:
    # Tensor 2 x data 2 x pipeline 2: this group is (0, 1, 4, 5), and rank 2 is none of its own.
    text = "world_size=8\n" + waiting(0, 7, "9", "MODEL_PARALLEL_GROUP", 0)
    text += waiting(4, 7, "9", "MODEL_PARALLEL_GROUP", 2)
    text += "".join(heard(r) for r in (1, 2, 3, 5, 6, 7))
    assert not found(text).culprits


def oldest_dumps(world: int, lost: int) -> Trace:
    """Lists of torch 2.2 name no members: tensor groups of four, the last of them stands still."""
    fragments = []
    for rank in range(world):
        if rank == lost:
            continue
        first = rank // 4 * 4
        entries = []
        for seq in range(1, 4):
            done = seq < 3 or first != lost // 4 * 4
            entries.append(
                {
                    "seq_id": seq,
                    "process_group": (str(1 + first // 4), "tensor"),
                    "profiling_name": "nccl:all_reduce",
                    "input_sizes": [[16]],
                    "output_sizes": [[16]],
                    "state": "completed" if done else "scheduled",
                    "time_created_us": 1_750_000_000_000_000 + seq,
                }
            )
        fragments += read_document(entries, Origin(f"rank_{rank}", "flight-recorder-pickle", rank))
    return merge(fragments)


def test_groups_of_one_kind_have_equal_sizes() -> None:
    answer = diagnose(oldest_dumps(8, 7))
    assert (answer.verdict.value, answer.culprits) == ("rank_lost", (7,))
    assert answer.confidence is not Confidence.CERTAIN


def test_standstill_without_member_lists_is_not_certain() -> None:
    answer = diagnose(oldest_dumps(3, 2))
    assert answer.verdict.value == "stuck_collective"
    assert not answer.culprits
    assert answer.confidence is not Confidence.CERTAIN


def test_odd_number_of_ranks_may_all_wait_for_one_more() -> None:
    answer = diagnose(oldest_dumps(4, 3))
    assert (answer.verdict.value, answer.culprits) == ("inconclusive", ())
    assert any("rank 3" in text for text in answer.findings[0].unknowns)


def test_pair_names_show_places_without_dumps() -> None:
    fragments = []
    for rank in range(3):  # a ring of four; rank 3 has left nothing
        entries = []
        for seq in range(1, 4):
            state = "completed" if seq < 3 else "scheduled"
            sizes = {"input_sizes": [[16]], "output_sizes": [[16]], "state": state}
            common = {"seq_id": seq, "process_group": ("1", "ring"), **sizes}
            names = [f"nccl:recv {rank}<-{(rank - 1) % 4}"]
            if seq < 3:
                names.append(f"nccl:send {rank}->{(rank + 1) % 4}")
            entries += [{**common, "profiling_name": name} for name in names]
        fragments += read_document(entries, Origin(f"rank_{rank}", "flight-recorder-pickle", rank))
    answer = diagnose(merge(fragments))
    assert 3 in answer.culprits or not answer.culprits
    assert answer.world_size == 4
