"""Long member lists: sent once, the same object everywhere, and nothing lost on the way."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hangscope.trace.flight_recorder.groups import has_rank, parse_ranks
from hangscope.trace.load import load_trace
from hangscope.trace.model import Fragment, Group, RankFacts, Source
from hangscope.trace.rank_lists import Receiver, Sender, SharedGroups

EVERYBODY = tuple(range(5000))


def fragment(rank: int, *groups: Group) -> Fragment:
    return Fragment(Source(f"{rank}", "flight-recorder-pickle"), RankFacts(rank), groups=groups)


ranks = st.one_of(
    st.lists(st.integers(0, 9), unique=True).map(tuple),
    st.integers(30, 40).map(lambda n: tuple(range(n))),
)
groups = st.builds(Group, name=st.sampled_from("abc"), ranks=ranks, epoch=st.integers(0, 2))


@given(st.lists(st.lists(groups, max_size=4), max_size=6))
def test_what_is_packed_comes_out_as_it_was(files: list[list[Group]]) -> None:
    sender, receiver = Sender(), Receiver()
    for rank, own in enumerate(files):
        sent = (fragment(rank, *own), fragment(rank + 100, *own[:1]))
        found = receiver.unpack(pickle.loads(pickle.dumps(sender.pack(sent))))
        assert [f.groups for f in found] == [f.groups for f in sent]
        assert [f.facts for f in found] == [f.facts for f in sent]


def test_a_long_list_is_sent_once() -> None:
    sender, receiver = Sender(), Receiver()
    sizes, found = [], []
    for rank in range(3):
        own = fragment(rank, Group("0", ranks=tuple(range(5000))), Group("1", ranks=(0, 1)))
        data = pickle.dumps(sender.pack([own]))
        sizes.append(len(data))
        found.append(receiver.unpack(pickle.loads(data))[0])
    assert sizes[0] > 10_000 > 2_000 > sizes[1]
    assert found[0].groups[0].ranks is found[2].groups[0].ranks
    assert found[2].groups[0].ranks == EVERYBODY


def test_equal_groups_become_one() -> None:
    share = SharedGroups()
    first = share(Group("0", ranks=EVERYBODY))
    assert share(Group("0", ranks=tuple(range(5000)))) is first
    other = share(Group("0", ranks=tuple(range(5000)), epoch=1))
    assert other != first
    assert other.ranks is first.ranks
    assert share(replace(first, ranks=EVERYBODY[:-1])) is not first


def test_the_same_text_gives_the_same_list() -> None:
    text = str(list(EVERYBODY))
    assert parse_ranks(text) == EVERYBODY
    assert parse_ranks(text) is parse_ranks("".join(list(text)))
    assert parse_ranks("[1, 99999999999999999999]") == parse_ranks("[1, 1]") == ()
    assert parse_ranks(["3", 2, 1.0]) == (3, 2, 1)
    assert parse_ranks([0, True]) == (0, 1)
    assert parse_ranks("0-3, 8") == (0, 1, 2, 3, 8)


@given(ranks, st.integers(-1, 45))
def test_has_rank_is_membership(members: tuple[int, ...], rank: int) -> None:
    assert has_rank(members, rank) is (rank in members)


def test_lists_of_many_dumps_through_workers(tmp_path: Path) -> None:
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
