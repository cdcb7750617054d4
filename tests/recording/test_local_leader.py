"""If no launcher assigns local ranks, a node's first process starts the monitor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.recording.identity import place_from_arguments, ring_identity
from hangscope.recording.local_leader import is_local_leader
from hangscope.ring.job_place import JobPlace, place_from_environment
from hangscope.ring.process_identity import start_ticks
from hangscope.ring.writer import RingIdentity, RingWriter


@pytest.fixture
def neighbour() -> Iterator[int]:
    """The pid of another process on this machine."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        yield process.pid
        process.stdin.close()


def ring(folder: Path, rank: int, created_ns: int, **changes: object) -> Path:
    own = ring_identity(
        JobPlace(rank, 4, rank, 0, 0, 0), "run", timeout_s=9.0, heartbeat_interval_s=1.0
    )
    identity = RingIdentity(**{**{n: getattr(own, n) for n in own.__dataclass_fields__}, **changes})
    path = folder / f"rank_{rank}.ring"
    RingWriter(path, identity, 64).put_i8("created_ns", created_ns)
    return path


def test_first_process_is_the_local_leader(tmp_path: Path, neighbour: int) -> None:
    of_neighbour = {"pid": neighbour, "start_ticks": start_ticks(neighbour)}
    own = ring(tmp_path, 2, 50)
    assert is_local_leader(own)
    later = ring(tmp_path, 0, 60, **of_neighbour)
    assert is_local_leader(own)
    assert not is_local_leader(later)
    ring(tmp_path, 1, 40, **of_neighbour)
    assert not is_local_leader(own)


@pytest.mark.parametrize(
    "elsewhere",
    [{"boot_id": "another"}, {"pid_namespace": 7}, {"start_ticks": 1}, {"run_id": "b"}],
    ids=["another host", "another container", "a process that is gone", "another run"],
)
def test_processes_of_other_nodes_do_not_count(
    tmp_path: Path, neighbour: int, elsewhere: dict[str, object]
) -> None:
    known = {"pid": neighbour, "start_ticks": start_ticks(neighbour), **elsewhere}
    ring(tmp_path, 0, 10, **known)
    assert is_local_leader(ring(tmp_path, 1, 20))


def test_launcher_assigns_local_ranks() -> None:
    alone = {"RANK": "2", "WORLD_SIZE": "4"}
    by_hand, told = (place_from_environment(e) for e in (alone, {**alone, "LOCAL_RANK": "0"}))
    assert by_hand is not None
    assert told is not None
    assert (by_hand.is_numbered, by_hand.local_world_size) == (False, 0)
    assert (told.is_numbered, told.local_world_size) == (True, 0)
    assert not place_from_arguments(2, 4, {}).is_numbered
