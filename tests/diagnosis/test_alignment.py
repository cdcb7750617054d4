"""Sends and receives of ranks whose records both start in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.records.alignment import Side, shift
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, judged, listed, pending, write

MS = 10**6
PIPE: dict[str, Any] = {"pg_id": 1, "process_group": ("7", "PIPELINE")}


def side(times_ms: list[int], waiting: int, first: int = 1) -> Side:
    """Halves issued at these times and finished 2 ms later, except for the last ones."""
    count = len(times_ms)
    created = BASE_NS + np.array(times_ms, np.int64) * MS
    unfinished = np.arange(count) >= count - waiting
    return Side(
        np.arange(first, first + count),
        created,
        np.where(unfinished, 0, created + 2 * MS),
        unfinished,
    )


STEPS = [at + step for step in (0, 1000, 2000) for at in (0, 1, 2)]
"""Three steps of three halves each, with a pause between the steps."""


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        (side(STEPS, 1), side(STEPS, 0, 40), 0),  # served, though its batch is not complete
        (side(STEPS, 1), side(STEPS[:-1], 0, 40), 1),  # the other never issued it
        (side(STEPS, 2), side(STEPS[2:-1], 1, 40), 1),
        (side(STEPS[3:], 0), side(STEPS, 1, 40), 0),
        (side(STEPS[:-1], 0), side(STEPS, 1, 40), -1),
        (side(STEPS, 2), side(STEPS, 2, 40), 0),
    ],
)
def test_alignment_uses_common_pauses(mine: Side, others: Side, expected: int) -> None:
    assert shift(mine, others) == expected
    assert shift(others, mine) == -expected


@pytest.mark.parametrize("ahead_s", [-9, -1, 1, 9])
def test_alignment_with_wrong_clocks_uses_pauses_and_numbers(ahead_s: int) -> None:
    """By the clocks alone, each operation would complete long before its partner was issued."""
    skewed = [at + 1000 * ahead_s for at in STEPS]
    assert shift(side(STEPS, 1), side(skewed, 1, 40)) == 0
    assert shift(side(STEPS, 1), side(skewed[:-1], 0, 40)) == 1


def test_alignment_without_times_uses_completed_counts() -> None:
    mine, others = side([0] * 5, 2), side([0] * 5, 1, 40)
    assert shift(mine, others) == 1


def test_alignment_prefers_equal_numbers_over_completed_counts() -> None:
    assert shift(side([0] * 5, 2), side([0] * 5, 1)) == 0


def test_unpaired_operations_of_one_side_may_all_be_later() -> None:
    """Numbers without gaps count the operations of this channel: 104 to 112 here, 90 to 97
    there."""
    assert shift(side([0] * 9, 9, 104), side([0] * 8, 0, 90)) == 15
    with_holes = side([0] * 9, 9, 104)
    with_holes.seq[4:] += 3
    assert shift(with_holes, side([0] * 8, 0, 90)) <= 9


def batch(
    number: int, record: int, halves: tuple[str, ...], at_ms: int, *, done: bool
) -> list[dict[str, Any]]:
    """The halves of a batch, which never show their end, and the batch's row, which does."""
    made = entry if done else pending
    common = {**PIPE, "p2p_seq_id": number, "time_created_ns": BASE_NS + at_ms * MS}
    rows = [
        pending(0, f"nccl:{half}", **common, is_p2p=True, record_id=record + place)
        for place, half in enumerate(halves)
    ]
    common |= {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    if done:
        common["time_discovered_completed_ns"] = BASE_NS + (at_ms + 2) * MS
    return [*rows, made(0, "nccl:coalesced", **common, record_id=record + len(halves))]


def ring(rank: int, first: int, *, leave_out: str = "", wait: bool = True) -> list[dict[str, Any]]:
    """Exchanges around a ring of three, numbered from ``first``; the last may lack a half."""
    last = len(STEPS) - 1
    halves = (f"send {rank}->{(rank + 1) % 3}", f"recv {rank}<-{(rank - 1) % 3}")
    rows = []
    for place, at in enumerate(STEPS):
        kept = tuple(h for h in halves if place < last or not leave_out or leave_out not in h)
        open_ = place == last and wait
        rows += batch(first + place, 300 + 3 * place, kept, at, done=not open_)
    return rows


def test_operation_of_a_batch_may_be_paired_while_its_batch_waits(tmp_path: Path) -> None:
    """Rank 1 skipped its send; rank 0's record shows that what rank 2 sent has arrived."""
    rows = {
        0: [*ring(0, 500, wait=False), pending(9, record_id=400)],
        1: [*ring(1, 700, leave_out="send", wait=False), pending(9, record_id=400)],
        2: ring(2, 900),
    }
    diagnosis = judged(tmp_path, rows, {"0": ("default_pg", rows), "7": ("PIPELINE", rows)})
    assert diagnosis.verdict is Verdict.P2P_UNMATCHED
    assert diagnosis.culprits == (1,)


def test_exchange_issued_by_both_is_no_cycle(tmp_path: Path) -> None:
    """The operations of a batch follow one another in the records but do not wait for each
    other."""
    rows = {}
    for rank, first in ((0, 500), (1, 700)):
        halves = (f"send {rank}->{1 - rank}", f"recv {rank}<-{1 - rank}")
        rows[rank] = [
            row
            for place, at in enumerate(STEPS)
            for row in batch(first + place, 30 + 3 * place, halves, at, done=place < 8)
        ]
    diagnosis = judged(tmp_path, rows, {"0": ("default_pg", rows), "7": ("PIPELINE", rows)})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.STUCK_COLLECTIVE, ())


def lone(number: int, half: str, *, done: bool, record: int) -> dict[str, Any]:
    made = entry if done else pending
    return made(0, f"nccl:{half}", **PIPE, p2p_seq_id=number, is_p2p=True, record_id=record)


def test_send_before_a_receive_that_does_not_run_is_waited_for(tmp_path: Path) -> None:
    """Rank 1 skipped the receive for a send of rank 0, whose later receive never runs."""
    rows = {
        0: [
            lone(1, "send 0->1", done=True, record=0),
            lone(2, "recv 0<-1", done=True, record=1),
            lone(3, "send 0->1", done=False, record=2),
            lone(4, "recv 0<-1", done=False, record=3),
            pending(1, record_id=4),
        ],
        1: [
            lone(1, "recv 1<-0", done=True, record=0),
            lone(2, "send 1->0", done=True, record=1),
            lone(3, "send 1->0", done=False, record=2),
            pending(1, record_id=3),
        ],
    }
    diagnosis = judged(tmp_path, rows, {"0": ("default_pg", rows), "7": ("PIPELINE", rows)})
    assert diagnosis.culprits == (1,)
    assert diagnosis.verdict is Verdict.P2P_UNMATCHED


def test_counter_at_the_newest_p2p_operation_completes_its_batch(tmp_path: Path) -> None:
    """The group has issued collectives before, but its counter refers to a pair."""
    row = pending(5, "nccl:send 0->1", **PIPE, p2p_seq_id=30, is_p2p=True, record_id=438)
    config = listed({"7": ("PIPELINE", [0, 1])})
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        status = {"1": {"last_enqueued_collective": 30, "last_completed_collective": 30}}
        made = dump(
            [{**row, "profiling_name": f"nccl:{name}"}],
            version="2.9",
            pg_config=config,
            pg_status=status,
        )
        write(tmp_path, f"trace_{rank}", made)
    diagnosis = diagnose(load_trace([tmp_path]))
    assert not diagnosis.culprits
    assert diagnosis.verdict is not Verdict.STUCK_COLLECTIVE
