"""Values shared between the rings of a job equal those read from each ring alone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.ring.layout import SLOT, SLOT_FORMAT, ValueKind
from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter
from hangscope.trace.load import load_trace
from hangscope.trace.merging.merge import merge
from hangscope.trace.merging.records import counters_of
from hangscope.trace.model import NONE, RECORD_DTYPE, Flag, Group, Records, State, Trace
from hangscope.trace.rings.batch import GroupNumbers
from hangscope.trace.rings.columns import ColumnReader
from hangscope.trace.rings.read import read_ring

WORLD = 4


@st.composite
def _slots(draw: st.DrawFn) -> Records:
    count = draw(st.integers(0, 8))
    slots = np.zeros(count, SLOT)
    for name, low, high in (
        ("group", 0, 4), ("signature", 0, 5), ("stack", 0, 5), ("collective_seq", 0, 9),
        ("p2p_seq", 0, 2), ("state", 0, 2),
    ):  # fmt: skip
        slots[name] = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    pair = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    slots["flags"][pair], slots["p2p_seq"][pair] = Flag.P2P, slots["p2p_seq"][pair] + 1
    return slots


@given(rings=st.lists(st.tuples(_slots(), st.booleans()), max_size=5))
def test_columns_and_counters_of_many_rings_equal_those_of_each(
    rings: list[tuple[Records, bool]],
) -> None:
    reader = ColumnReader()
    for slots, twice in rings:
        for given_slots in [slots, slots][: 1 + twice]:
            kept, columns = reader.of(given_slots, 3)
            expected = given_slots[(given_slots["group"] >= 1) & (given_slots["group"] <= 3)]
            assert kept.tolist() == expected.tolist()
            assert (columns.group + 1).tolist() == expected["group"].tolist()
            assert [int(columns.signature_ids[s]) for s in columns.signature] == expected[
                "signature"
            ].tolist()
            stacks = [0 if s == NONE else int(columns.stack_ids[s]) for s in columns.stack]
            assert stacks == expected["stack"].tolist()
            rows = kept.copy().view(RECORD_DTYPE)
            rows["group"], rows["rank"] = columns.group, 7
            counters = reader.counters_of(rows, columns)
            assert counters.tolist() == _counters(rows)
            assert counters_of(rows).tolist() == _counters(rows)


def _counters(rows: Records) -> list[tuple[int, ...]]:
    """The same, row by row."""
    found: dict[int, tuple[int, int, int]] = {}
    for row in rows:
        group = int(row["group"])
        enqueued, completed, pairs = found.get(group, (NONE, NONE, 0))
        done = row["state"] == State.COMPLETED and not row["flags"] & Flag.P2P
        seq = int(row["collective_seq"])
        found[group] = (
            max(enqueued, seq),
            max(completed, seq if done else NONE),
            max(pairs, int(row["p2p_seq"])),
        )
    return [
        (7, group, enqueued, NONE, completed, pairs, 0, 0, 0, 0)
        for group, (enqueued, completed, pairs) in sorted(found.items())
    ]


def test_groups_are_numbered_once_and_never_without_members() -> None:
    numbers = GroupNumbers()
    first, second, bare = Group("0", ranks=(0, 1)), Group("1", ranks=(1,)), Group("2")
    assert [_listed(numbers, *groups) for groups in [(first,), (second, first), (bare, first)]] == [
        [0],
        [1, 0],
        None,
    ]
    assert numbers.table == [first, second]


def _listed(numbers: GroupNumbers, *groups: Group) -> list[int] | None:
    found = numbers.of(groups)
    return None if found is None else found.tolist()


def _ring(
    path: Path, rank: int, groups: list[tuple[str, list[int]]], *, declared: bool = True
) -> None:
    """A ring whose rank issues two operations in each of its groups."""
    process = 100 + len(list(path.parent.iterdir()))
    identity = RingIdentity(
        run_id="sharing", rank=rank, world_size=WORLD, host="node0", pid=process
    )
    ring = RingWriter(path, identity, 16)
    if declared:
        ring.put_world(rank, WORLD)
    signature = ring.intern(ValueKind.SIGNATURE, b'{"op": "gloo:all_reduce", "in": [[4]]}')
    number, last_ns = 0, time.time_ns() + 60 * 10**9  # all of them lived for a while
    for name, ranks in groups:
        place = ring.add_group(name, f"group {name}", ranks, "gloo", 0, 0, observable=True)
        for seq in (1, 2):
            number += 1
            SLOT_FORMAT.pack_into(
                ring.memory, ring.slot_at(number), number, last_ns, 0, 0, seq, 0, number, 7,
                place, signature, 0, -1, -1, 5, 1000, 4, 4, 2 if seq == 1 else 0, 0, number,
            )  # fmt: skip
            ring.cells[LAST_RECORD_CELL] = number


def _told(trace: Trace) -> list[tuple[object, ...]]:
    rows = [
        (int(r["rank"]), trace.groups[int(r["group"])].name, int(r["collective_seq"]))
        for r in trace.records
    ]
    members = [
        (int(m["rank"]), trace.groups[int(m["group"])].name, int(m["enqueued"]))
        for m in trace.members
    ]
    return [*rows, *members]


@pytest.mark.parametrize("names", ["abcd", "dcba", "cadb"])
@pytest.mark.parametrize("bare", [(), (1,), (0, 3)])
def test_rows_of_a_common_table_of_groups(
    tmp_path: Path, names: str, bare: tuple[int, ...]
) -> None:
    """Whatever is read first, and if some ranks do not know the members of their groups."""
    for rank in range(WORLD):
        half = [0, 1] if rank < 2 else [2, 3]
        groups = [("0", list(range(WORLD))), (f"half {rank // 2}", half), (f"own {rank}", [rank])]
        if rank in bare:
            groups[1] = (groups[1][0], [])
        order = groups[rank % 3 :] + groups[: rank % 3]
        _ring(tmp_path / f"{names[rank]}.ring", rank, order)
    together = load_trace([tmp_path])
    alone = merge(read_ring(path) for path in sorted(tmp_path.glob("*.ring")))
    assert _told(together) == _told(alone)
    assert len(together.records) == WORLD * 6
    per_rank = [sorted(set(together.records["group"][i * 6 : i * 6 + 6])) for i in range(WORLD)]
    assert [len(used) for used in per_rank] == [3] * WORLD


def test_ring_assigned_to_another_rank_keeps_its_groups(tmp_path: Path) -> None:
    """Launcher's numbers and the job's own: counters follow the rank as the rows do."""
    for rank in range(3):
        _ring(tmp_path / f"{rank}.ring", rank, [("0", [0, 1, 2, 3]), (f"{rank}", [rank])])
    _ring(tmp_path / "x.ring", 0, [("own", [3]), ("0", [0, 1, 2, 3])], declared=False)
    trace = load_trace([tmp_path])
    last = [(g, s) for r, g, s in _told(trace) if r == 3]
    assert last == [("own", 1), ("own", 2), ("0", 1), ("0", 2), ("0", 2), ("own", 2)]
