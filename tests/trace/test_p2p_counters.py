"""What a group's single counter says about sends and receives, and about unlisted operations."""

from __future__ import annotations

import numpy as np
import pytest

from hangscope.trace.flight_recorder.counters import (
    apply_counters,
    completed_p2p_rows,
    read_status,
)
from hangscope.trace.flight_recorder.groups import GroupTable
from hangscope.trace.model import MEMBER_DTYPE, RECORD_DTYPE, Flag, Group, Records, State

PAIR, BATCHED = Flag.P2P, Flag.P2P | Flag.COALESCED_MEMBER
TABLE = GroupTable([Group("0", "", (0, 1, 2, 3))], {"0": 0}, {"0": 0})


def records(*rows: tuple[Flag, int, int, int]) -> Records:
    """Of group 0: (flags, collective sequence number, number among the pairs, peer)."""
    table = np.zeros(len(rows), RECORD_DTYPE)
    for row, (flags, seq, p2p_seq, peer) in zip(table, rows, strict=True):
        row["flags"], row["collective_seq"], row["p2p_seq"], row["peer"] = flags, seq, p2p_seq, peer
    return table


def over(rows: Records, completed: int, enqueued: int = 9) -> list[int]:
    numbers = {"last_completed_collective": completed, "last_enqueued_collective": enqueued}
    return sorted(completed_p2p_rows({"0": numbers}, TABLE, rows).tolist())


@pytest.mark.parametrize(
    ("completed", "finished"), [(-1, []), (0, []), (1, [0]), (2, [1]), (3, [0, 2]), (4, [])]
)
def test_earlier_operation_for_the_same_partner_has_completed(
    completed: int, finished: list[int]
) -> None:
    """But not what was issued for another peer: those complete in any order."""
    rows = records((PAIR, 0, 1, 1), (PAIR, 0, 2, 2), (PAIR, 0, 3, 1))
    assert over(rows, completed) == finished


def test_batches_run_one_after_another() -> None:
    first, second = [(BATCHED, 0, 1, p) for p in (1, 2)], [(BATCHED, 0, 2, p) for p in (1, 3)]
    alone, third = (PAIR, 0, 1, 3), (BATCHED, 0, 3, 1)
    assert over(records(*first, *second, third), 2) == [0, 1, 2, 3]
    lone = records(*first, (PAIR, 0, 2, 3))
    assert over(lone, 2) == [2], "one by itself says nothing of batches"
    assert over(records(alone, (BATCHED, 0, 2, 1)), 2) == [1]


@pytest.mark.parametrize(
    ("rows", "enqueued", "finished"),
    [
        ([(Flag(0), 3, 0, -1), (PAIR, 3, 5, 1)], 5, [1]),
        ([(Flag(0), 3, 0, -1), (PAIR, 3, 5, 1)], 6, []),  # it stands behind the newest record
        ([(PAIR, 3, 5, 1), (Flag(0), 4, 5, -1)], 5, []),  # the newest is a collective
        ([(Flag(0), 5, 0, -1), (PAIR, 5, 5, 1)], 5, []),  # or it may be the fifth collective
    ],
)
def test_beside_collectives_only_a_counter_at_a_pair_counts_it(
    rows: list[tuple[Flag, int, int, int]], enqueued: int, finished: list[int]
) -> None:
    assert over(records(*rows), 5, enqueued) == finished


@pytest.mark.parametrize(
    ("flags", "completed", "states", "settled"),
    [
        ([Flag(0)] * 3, 2, [2, 2, 0], [True] * 3),
        ([Flag(0)] * 3, 0, [0, 0, 0], [True] * 3),
        ([Flag(0)] * 3, -1, [0, 0, 0], [False] * 3),  # it counts something else
        ([Flag(0), Flag(0), PAIR], 2, [0, 0, 0], [False] * 3),  # it may count the pair
        ([BATCHED, BATCHED, Flag.P2P | Flag.COALESCED_BATCH], 2, [2, 0, 0], [True] * 3),
        ([BATCHED, PAIR, BATCHED], 2, [0, 0, 0], [False] * 3),
    ],
)
def test_counters_decide_unobserved_entries(
    flags: list[Flag], completed: int, states: list[int], settled: list[bool]
) -> None:
    rows = records(*((flag | Flag.UNOBSERVED, n + 1, 1, -1) for n, flag in enumerate(flags)))
    if flags[-1] & Flag.COALESCED_BATCH:
        rows["state"][0] = State.COMPLETED  # one batch is over: `completed_p2p_rows` tells of all
    members = np.zeros(1, MEMBER_DTYPE)
    members["completed"] = completed
    apply_counters(rows, members)
    assert rows["state"].tolist() == states
    assert ((rows["flags"] & int(Flag.UNOBSERVED)) == 0).tolist() == settled


def test_observed_states_are_unchanged() -> None:
    rows = records((Flag(0), 1, 0, -1), (Flag.UNOBSERVED, 2, 0, -1))
    members = np.zeros(1, MEMBER_DTYPE)
    members["completed"] = 2
    apply_counters(rows, members)
    assert rows["state"].tolist() == [0, 2]


def test_newest_pair_beyond_the_listed_ones_is_counted_as_issued() -> None:
    """The counter stands at a send that the entries lack; it says nothing about collectives."""
    rows = records((Flag(0), 3, 0, -1), (PAIR, 3, 5, 1))
    stated = {"0": {"last_enqueued_collective": 6, "last_completed_collective": 6}}
    (members,) = read_status(stated, TABLE, rows, 0, native_gloo=False)
    assert [int(members[c]) for c in ("enqueued", "completed", "p2p_enqueued")] == [3, -1, 6]
