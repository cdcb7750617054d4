"""Sides of nearly equal size, and members that lost their record of the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.diagnosis.builder import Job
from tests.trace.dumps import dump, entry, listed, pending, write


def _judged(folder: Path, world: int, odd: int, reset: tuple[int, ...] = ()) -> Diagnosis:
    """All issue number 4, the last ``odd`` ranks in another way; some have reset their recorder."""
    for rank in range(world):
        size = {"input_sizes": [[64 if rank < world - odd else 66]]}
        rows = [entry(n, input_sizes=[[64]]) for n in (1, 2, 3)]
        rows += [pending(n, **size) for n in (4, 5, 6)]
        if rank in reset:
            rows = [dict(row, record_id=n) for n, row in enumerate(rows[4:])]
        write(folder, f"trace_{rank}", dump(rows, world))
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize(("world", "odd"), [(5, 2), (31, 15), (33, 14)])
def test_clear_minority_is_named(tmp_path: Path, world: int, odd: int) -> None:
    found = _judged(tmp_path, world, odd)
    assert (found.verdict, found.confidence) == (Verdict.SHAPE_MISMATCH, Confidence.CERTAIN)
    assert found.culprits == tuple(range(world - odd, world))


@pytest.mark.parametrize(("world", "odd"), [(33, 16), (65, 33)])
def test_one_rank_more_does_not_outvote_dozens(tmp_path: Path, world: int, odd: int) -> None:
    found = _judged(tmp_path, world, odd)
    assert found.culprits == tuple(range(world))
    assert found.confidence is Confidence.AMBIGUOUS


def test_rank_with_overwritten_record_may_be_on_either_side(tmp_path: Path) -> None:
    """Of the first half all but one have reset their recorder since."""
    found = _judged(tmp_path, 8, 4, reset=(1, 2, 3))
    assert found.confidence is not Confidence.CERTAIN


def test_half_a_world_may_be_odd_if_a_host_left_no_dump(tmp_path: Path) -> None:
    found = _judged(tmp_path, 16, 4)
    assert (found.culprits, found.confidence) == ((12, 13, 14, 15), Confidence.CERTAIN)
    for rank in range(8):
        (tmp_path / f"trace_{rank}").unlink()
    found = diagnose(load_trace([tmp_path]))
    assert found.confidence is Confidence.AMBIGUOUS
    assert set(found.culprits) >= set(range(8, 16))


def _pushed(folder: Path, skip: tuple[int, ...], steps: int = 4) -> Diagnosis:
    """Each step 4-7 work, rank 0 sends weights to them twice, and all meet in a barrier."""
    weights = (0, 4, 5, 6, 7)
    config = listed(
        {"0": ("default_pg", range(8)), "1": ("weights", weights), "2": ("tp", range(4, 8))}
    )
    push = {"pg_id": 1, "process_group": ("1", "weights")}
    for rank in range(8):
        plan = []
        for step in range(1, steps + 1):
            plan += [("work", step)] if rank > 3 else []
            plan += [("push", 2 * step - 1), ("push", 2 * step)] if rank in weights else []
            plan += [("meet", step)] if rank not in skip or step < steps else []
        if rank in skip:
            plan += [("work", steps + 1), ("push", 2 * steps + 1)]
        rows = []
        for number, (what, seq) in enumerate(plan):
            made = pending if number == len(plan) - 1 else entry
            if what == "work":
                rows.append(entry(seq, record_id=number, pg_id=2, process_group=("2", "tp")))
            elif what == "push":
                rows.append(made(seq, "nccl:broadcast", record_id=number, **push))
            else:
                rows.append(made(seq, "nccl:all_reduce_barrier", record_id=number))
        mine = {key: value for key, value in config.items() if str(rank) in value["ranks"]}
        document = dump(rows, pg_config=mine)
        del document["pg_status"]
        write(folder, f"trace_{rank}", document)
    return diagnose(load_trace([folder]))


def test_many_deviating_ranks_against_one_that_did_not(tmp_path: Path) -> None:
    """4-7 have skipped the barrier; without rank 0 alone, too, no rank would wait for another."""
    found = _pushed(tmp_path, skip=(4, 5, 6, 7))
    assert found.confidence is not Confidence.CERTAIN
    assert set(found.culprits) >= {4, 5, 6, 7}


def test_siblings_with_other_sizes_weigh_less_than_equal_ones(tmp_path: Path) -> None:
    """4-7 diverge in two. 12-15 are of their stage; the two other groups reduce a second time."""
    groups = {str(g): list(range(4 * g - 4, 4 * g)) for g in (1, 2, 3, 4)}
    for rank in range(16):
        name = str(rank // 4 + 1)
        mine: dict[str, Any] = {"pg_id": 1, "process_group": (name, "dp")}
        gather = ("nccl:_all_gather_base", 64)
        reduce = ("nccl:_reduce_scatter_base", 64)
        second = ("nccl:_reduce_scatter_base", 8) if rank < 4 or 8 <= rank < 12 else gather
        if rank in (6, 7):
            second = reduce
        stands = 4 <= rank < 8
        rows = []
        for number, (op, size) in enumerate([reduce, second]):
            made = pending if stands and number else entry
            sizes = {"input_sizes": [[size]], "output_sizes": [[size]]}
            rows.append(made(number + 1, op, record_id=number, **mine, **sizes))
        config = listed({name: ("dp", groups[name])})
        document = dump(rows, pg_config=config)
        del document["pg_status"]
        write(tmp_path, f"trace_{rank}", document)
    found = diagnose(load_trace([tmp_path]))
    assert found.culprits == (6, 7)


def _crossed(folder: Path, world: int, odd: int, lost: int) -> Diagnosis:
    """The last ``odd`` ranks come to two groups of all in the other order; the last one is lost."""
    config = listed({"0": ("default_pg", range(world)), "1": ("metrics", range(world))})
    for rank in range(world - lost):
        here = [pending(2), {**pending(1), "process_group": ("1", "metrics"), "pg_id": 1}]
        rows = here if rank < world - odd else here[::-1]
        rows = [dict(row, record_id=n) for n, row in enumerate([entry(1), *rows])]
        made = dump(rows, world, pg_config=config, pg_status=None)
        write(folder, f"trace_{rank}", made)
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize(("world", "odd", "lost"), [(8, 4, 1), (16, 8, 2), (12, 6, 2)])
def test_halves_of_a_cycle_that_a_lost_member_makes_equal(
    tmp_path: Path, world: int, odd: int, lost: int
) -> None:
    found = _crossed(tmp_path, world, odd, lost)
    assert (found.verdict, found.confidence) == (Verdict.DEADLOCK_CYCLE, Confidence.AMBIGUOUS)
    assert found.culprits == tuple(range(world - lost))


@pytest.mark.parametrize(("world", "odd", "lost"), [(8, 3, 0), (8, 2, 1), (16, 5, 1)])
def test_smaller_side_of_a_cycle_beyond_lost_members(
    tmp_path: Path, world: int, odd: int, lost: int
) -> None:
    found = _crossed(tmp_path, world, odd, lost)
    assert found.culprits == tuple(range(world - odd, world - lost))


def test_only_breaker_of_a_cycle_is_right_if_all_others_arrived_alike() -> None:
    """Ranks 0 and 2 reach their own group first, rank 4 the default group, as 1, 3 and 5 do."""
    job = Job(6)
    own = [job.group(0, 2, 4, desc="dp"), job.group(1, 3, 5, desc="dp")]
    job.steps(3)
    for rank in range(6):
        order = (own[rank % 2], 0) if rank in (0, 2) else (0, own[rank % 2])
        for group in order:
            job.op(rank, group=group, done=False)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (0, 2))
