"""Batches: several operations that a backend issues as one, as NCCL does with sends and receives.

Gloo makes none, so the fake backend stands in for NCCL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from hangscope.recording import signatures
from hangscope.recording.groups import DeviceBackend
from hangscope.recording.session import Session
from hangscope.ring.layout import SlotFlag
from hangscope.trace.rings.read import read_ring

CPU = torch.device("cpu")
MEMBER, BATCH, PAIR = SlotFlag.COALESCED_MEMBER, SlotFlag.COALESCED_BATCH, SlotFlag.P2P
ASYNC, UNOBSERVED = SlotFlag.ASYNC, SlotFlag.UNOBSERVED


@contextmanager
def batch() -> Iterator[None]:
    dist.group.WORLD._start_coalescing(CPU)
    yield
    dist.group.WORLD._end_coalescing(CPU)


def reduce(count: int = 2) -> None:
    dist.all_reduce(torch.ones(count))


def exchange() -> None:
    group = dist.group.WORLD
    group.send([torch.ones(2)], 1, 0)
    group.recv([torch.ones(2)], 2, 0)


def recorded(session: Session) -> list[tuple[str, int, int, SlotFlag]]:
    """(operation, collective and p2p sequence number, flags that mark a batch) of each record."""
    fragment = read_ring(session.ring.path)
    return [
        (
            fragment.signatures[row["signature"]].op,
            int(row["collective_seq"]),
            int(row["p2p_seq"]),
            SlotFlag(int(row["flags"])) & (MEMBER | BATCH | PAIR),
        )
        for row in fragment.records
    ]


def test_batch_of_collectives_has_one_number(recording: Session) -> None:
    reduce()
    with batch():
        reduce(3)
        reduce(4)
    reduce()
    assert recorded(recording) == [
        ("all_reduce", 1, 0, SlotFlag(0)),
        ("all_reduce", 2, 0, MEMBER),
        ("all_reduce", 2, 0, MEMBER),
        ("coalesced", 2, 0, BATCH),
        ("all_reduce", 3, 0, SlotFlag(0)),
    ]
    fragment = read_ring(recording.ring.path)
    assert int(fragment.members[0]["enqueued"]) == 3
    flags = SlotFlag(int(fragment.records["flags"][3]))
    assert flags == BATCH | ASYNC | UNOBSERVED, "the stand-in is a device: nobody polls it"


def test_batch_of_p2p_has_one_number_of_its_own(recording: Session) -> None:
    for _ in range(2):
        with batch():
            exchange()
    exchange()
    assert recorded(recording) == [
        ("send", 0, 1, MEMBER | PAIR),
        ("recv", 0, 1, MEMBER | PAIR),
        ("coalesced", 0, 1, BATCH | PAIR),
        ("send", 0, 2, MEMBER | PAIR),
        ("recv", 0, 2, MEMBER | PAIR),
        ("coalesced", 0, 2, BATCH | PAIR),
        ("send", 0, 3, PAIR),
        ("recv", 0, 4, PAIR),
    ]


def test_mixed_batch_has_a_number_of_each_kind(recording: Session) -> None:
    with batch():
        exchange()
        reduce()
    assert recorded(recording) == [
        ("send", 0, 1, MEMBER | PAIR),
        ("recv", 0, 1, MEMBER | PAIR),
        ("all_reduce", 1, 1, MEMBER),
        ("coalesced", 1, 1, BATCH),
    ]


def test_empty_batch_leaves_no_record(recording: Session) -> None:
    with batch():
        pass
    reduce()
    assert recorded(recording) == [("all_reduce", 1, 0, SlotFlag(0))]


def test_operations_of_other_threads_are_not_in_the_batch(recording: Session) -> None:
    with batch():
        reduce()
        other = threading.Thread(target=reduce)
        other.start()
        other.join()
        reduce()
    assert [(seq, flags) for _, seq, _, flags in recorded(recording)] == [
        (1, MEMBER),
        (2, SlotFlag(0)),
        (2, MEMBER),
        (2, BATCH),
    ]


def test_history_includes_the_members_but_not_the_batch(recording: Session) -> None:
    """Members of a group whose batches differ have different histories from there on."""
    with batch():
        reduce(3)
        reduce(3)
    (agreement,) = {
        known.agreement
        for key, known in recording.recorder._signatures.known.items()
        if key[0] != "coalesced"
    }
    history = 0
    expected = [history := signatures.extend_history(history, a) for a in (agreement, agreement, 0)]
    assert read_ring(recording.ring.path).records["history"].tolist() == expected


def test_completion_of_an_observable_batch_is_recorded(recording: Session) -> None:
    reduce()
    (state,) = recording.recorder.groups.states()
    state.backends["cpu"] = DeviceBackend("gloo", True, 0)
    dist.group.WORLD._start_coalescing(CPU)
    reduce()
    work = dist.group.WORLD._end_coalescing(CPU)
    open_ = read_ring(recording.ring.path).records[-1]
    assert SlotFlag(int(open_["flags"])) & (UNOBSERVED | BATCH) == BATCH
    assert int(open_["state"]) == 0
    dist.Work.wait(work)  # the stand-in overrides it with one that is not watched
    assert int(read_ring(recording.ring.path).records[-1]["state"]) == 2
