"""Long member lists: the same object everywhere, and nothing lost on the way."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hangscope.trace.flight_recorder.groups import has_rank, parse_ranks
from hangscope.trace.interning import GroupInterner
from hangscope.trace.load import load_trace
from hangscope.trace.model import Group

EVERYBODY = tuple(range(5000))


ranks = st.one_of(
    st.lists(st.integers(0, 9), unique=True).map(tuple),
    st.integers(30, 40).map(lambda n: tuple(range(n))),
)


def test_equal_groups_become_one() -> None:
    share = GroupInterner()
    first = share(Group("0", ranks=EVERYBODY))
    assert share(Group("0", ranks=tuple(range(5000)))) is first
    other = share(Group("0", ranks=tuple(range(5000)), epoch=1))
    assert other != first
    assert other.ranks is first.ranks
    assert share(replace(first, ranks=EVERYBODY[:-1])) is not first


def test_equal_text_gives_the_same_list() -> None:
    text = str(list(EVERYBODY))
    assert parse_ranks(text) == EVERYBODY
    assert parse_ranks(text) is parse_ranks("".join(list(text)))
    assert parse_ranks("[1, 99999999999999999999]") == parse_ranks("[1, 1]") == ()
    assert parse_ranks(["3", 2, 1.0]) == (3, 2, 1)
    assert parse_ranks([0, True]) == (0, 1)
    assert parse_ranks("0-3, 8") == ()


@given(ranks, st.integers(-1, 45))
def test_has_rank_is_membership(members: tuple[int, ...], rank: int) -> None:
    assert has_rank(members, rank) is (rank in members)


def test_lists_of_many_dumps_are_shared_across_workers(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(64)))}}
    for rank in range(64):
        entry = {
            "record_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "output_sizes": [[4]],
            "state": "scheduled", "time_created_ns": 1_750_000_000_000_000_000,
        }  # fmt: skip
        document = {"version": "2.4", "pg_config": config, "entries": [entry]}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    trace = load_trace([tmp_path])
    assert [g.ranks for g in trace.groups] == [tuple(range(64))]
    assert len(trace.records) == 64
