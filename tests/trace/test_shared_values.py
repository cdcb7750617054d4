"""What a worker sends: shared values once, and nothing lost on the way."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.trace.loading import shared_values
from hangscope.trace.loading.shared_values import Receiver, Sender
from hangscope.trace.model import Fragment, Frame, Group, RankFacts, Signature, Source, Stack

EVERYBODY = tuple(range(5000))
LOSS = Signature("all_reduce", "nccl:all_reduce", "nccl", ((1,),), ((1,),))

lists = st.one_of(
    st.lists(st.integers(0, 9), unique=True).map(tuple),
    st.integers(30, 40).map(lambda n: tuple(range(n))),
)
groups = st.builds(Group, name=st.sampled_from("abc"), ranks=lists, epoch=st.integers(0, 2))
frames = st.builds(Frame, st.sampled_from("fg"), st.just("train.py"), st.integers(1, 3))
stacks = st.lists(frames, max_size=3).map(tuple)
signatures = st.builds(
    Signature, st.sampled_from(["broadcast", "send"]), input_numel=st.integers(0, 2)
)
fragments = st.builds(
    Fragment,
    st.just(Source("a dump", "flight-recorder-pickle")),
    st.builds(RankFacts, st.integers(0, 3)),
    groups=st.lists(groups, max_size=4).map(tuple),
    signatures=st.lists(signatures, max_size=4).map(tuple),
    stacks=st.lists(stacks, max_size=4).map(tuple),
)
files = st.lists(st.lists(fragments, max_size=2), max_size=6)


def through(sender: Sender, receiver: Receiver, sent: list[Fragment]) -> tuple[Fragment, ...]:
    return receiver.unpack(pickle.loads(pickle.dumps(sender.pack(sent))))


def same(found: tuple[Fragment, ...], sent: list[Fragment]) -> bool:
    return [(f.facts, f.groups, f.signatures, f.stacks) for f in found] == [
        (f.facts, f.groups, f.signatures, f.stacks) for f in sent
    ]


@given(files)
def test_packed_value_survives_a_round_trip(files: list[list[Fragment]]) -> None:
    sender, receiver = Sender(), Receiver()
    for sent in files:
        assert same(through(sender, receiver, sent), sent)


@pytest.mark.long
@given(files, st.integers(0, 20))
def test_packed_value_survives_with_a_full_sender_cache(
    files: list[list[Fragment]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_values, "_MOST_ITEMS", most)
        sender, receiver = Sender(), Receiver()
        for sent in files:
            assert same(through(sender, receiver, sent), sent)


def test_value_is_sent_once() -> None:
    sender, receiver = Sender(), Receiver()
    stack: Stack = tuple(Frame(f"layer_{i}", "model.py", i) for i in range(200))
    sizes, found = [], []
    for rank in range(3):
        group = Group("0", ranks=tuple(range(5000)))
        sent = Fragment(
            Source(f"{rank}", "flight-recorder-pickle"),
            RankFacts(rank),
            groups=(group, Group("1", ranks=(0, 1))),
            signatures=(replace(LOSS),),
            stacks=(tuple([Frame(*frame) for frame in stack]),),
        )
        packed = pickle.dumps(sender.pack([sent]))
        sizes.append(len(packed))
        found += receiver.unpack(pickle.loads(packed))
    assert sizes[0] > 15_000 > 2_000 > sizes[1]
    assert found[0].groups[0].ranks is found[2].groups[0].ranks
    assert found[2].groups[0].ranks == EVERYBODY
    assert found[0].stacks[0] is found[2].stacks[0]
    assert found[2].stacks[0] == stack
    assert found[0].signatures[0] is found[2].signatures[0]
    assert found[2].signatures == (LOSS,)


def test_stacks_that_are_no_tuple_are_unchanged() -> None:
    own = Fragment(Source("a", "ring"), RankFacts(0), stacks=[(Frame("f", "a.py", 1),)])
    (found,) = through(Sender(), Receiver(), [own])
    assert found.stacks == own.stacks
