"""Device rings as four ranks on one H200 left them, with NCCL 2.28.9 (`tools.gpu_faults`)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from hangscope.ring.device_layout import OperationFlag
from hangscope.ring.device_reader import DeviceRing, read_device_ring
from hangscope.trace.nccl.progress import progress_of
from hangscope.trace.nccl.proxies import proxy_waits

RECORDINGS = Path(__file__).parent / "recordings"


def rings(name: str, folder: Path) -> list[DeviceRing]:
    with tarfile.open(RECORDINGS / f"device_rings_{name}.tar.gz") as archive:
        archive.extractall(folder)
    return [read_device_ring(folder / f"rank_{rank}.device") for rank in range(4)]


@pytest.mark.parametrize("rank", range(4))
def test_nothing_is_open_at_the_end_of_a_sound_job(rank: int, tmp_path: Path) -> None:
    ring = rings("none", tmp_path)[rank]
    found = progress_of(ring)
    assert not found.open.any()
    ended = (found.ended_ns > 0) | found.uncertain
    assert ended.all()
    assert (found.ended_ns[found.ended_ns > 0] >= ring.operations["enqueued_ns"][0]).all()


def test_a_receive_waits_although_the_device_counts_it_as_ended(tmp_path: Path) -> None:
    """Rank 1 never sends to rank 2."""
    ring = rings("p2p", tmp_path)[2]
    receives = np.flatnonzero(
        (ring.operations["func"] == b"Recv") & (ring.operations["count"] == 512)
    )
    last = receives[-1]
    assert ring.operations["root_or_peer"][last] == 1
    assert ring.operations["channels_ended"][last] == 1
    found = progress_of(ring)
    assert found.open[last]
    assert found.ended_ns[last] == 0
    assert not found.open[receives[:-1]].any()


def told_by_proxies(name: str, folder: Path) -> list[set[tuple[str, int, str]]]:
    """Per rank, for whom or whose data its proxies wait."""
    found = []
    for ring in rings(name, folder):
        everybody = {int(h): {n: n for n in range(4)} for h in ring.communicators["hash"]}
        waits = [wait for wait in proxy_waits(ring, everybody) if not wait.own]
        found.append({(w.op, w.peer, "to take" if w.is_send else "data") for w in waits})
    return found


def test_proxies_say_whose_data_is_missing(tmp_path: Path) -> None:
    """Rank 1 never sends to rank 2, and all others wait for that one."""
    assert told_by_proxies("p2p", tmp_path) == [
        {("all_reduce", 2, "data")},
        {("all_reduce", 2, "data")},
        {("recv", 1, "data")},
        {("all_reduce", 2, "data")},
    ]


def test_proxies_say_who_does_not_take_part(tmp_path: Path) -> None:
    """Rank 1's device is kept from the replayed all-reduce; its neighbours in the ring know."""
    assert told_by_proxies("graph-kernel", tmp_path) == [
        {("all_reduce", 1, "to take")},
        set(),
        {("all_reduce", 1, "data"), ("all_reduce", 3, "to take")},
        {("all_reduce", 0, "to take")},
    ]


def test_proxies_of_a_sound_job_wait_for_nothing(tmp_path: Path) -> None:
    assert told_by_proxies("none", tmp_path) == [set()] * 4


def test_after_a_replay_counts_of_the_same_communicator_are_not_believed(tmp_path: Path) -> None:
    """NCCL then takes the all-reduce of one element for one that has long run."""
    for ring in rings("graph-kernel", tmp_path):
        found = progress_of(ring)
        single = (ring.operations["func"] == b"AllReduce") & (ring.operations["count"] == 1)
        assert single.sum() == 7
        assert found.uncertain[single].all()
        replayed = (ring.operations["flags"] & OperationFlag.REPLAYED) != 0
        assert (found.begun_ns[replayed] == 0).all()


def test_a_copy_to_itself_is_nothing_that_the_device_would_tell(tmp_path: Path) -> None:
    for rank, ring in enumerate(rings("p2p", tmp_path)):
        own = (ring.operations["flags"] & OperationFlag.P2P != 0) & (
            ring.operations["root_or_peer"] == rank
        )
        assert own.any()
        assert not progress_of(ring).open[own].any()
