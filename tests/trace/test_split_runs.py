"""A job whose launchers were given several addresses, or one address under several names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.job_selection.incarnations import runs_of_same_job
from hangscope.trace.job_selection.processes import RankProcess
from hangscope.trace.load import load_trace

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def _ring(
    directory: Path, rank: int, *, met_at: str, met: bool = False, run: str = "", last_s: int = 60
) -> None:
    """A rank of four, which meets the others at an address, or waits there for them."""
    identity = RingIdentity(
        run_id=run or f"run-{met_at}", rank=rank, world_size=4, host=f"node{rank}", pid=10 + rank,
        boot_id=f"boot{rank}",
    )  # fmt: skip
    directory.mkdir(exist_ok=True)
    ring = RingWriter(directory / f"rank_{rank}.{run}.ring", identity, 64, group_count=8)
    ring.put_world(rank, 4)
    ring.put_u4("rendezvous", ring.text(f"tcp://{met_at}"))
    ring.put_u4("initialized", int(met))
    if not met:
        ring.set_phases([(ring.text("init_process_group"), 0, START + rank * SECOND)])
    ring.put_i8("created_ns", START + rank * SECOND)
    ring.put_i8("heartbeat_ns", START + last_s * SECOND)


def test_ranks_with_another_port_are_reported_and_not_lost(tmp_path: Path) -> None:
    for rank in range(4):
        met_at = "node0:29999" if rank == 3 else "node0:29500"
        _ring(tmp_path / f"node{rank}", rank, met_at=met_at)
    found = diagnose(load_trace(sorted(tmp_path.iterdir())))
    assert (found.verdict, found.culprits) == (Verdict.ARGUMENT_MISMATCH, (3,))
    assert "29999" in found.summary
    assert not any("also holds" in warning for warning in found.warnings)


def test_host_with_several_names_is_one(tmp_path: Path) -> None:
    for rank, name in enumerate(("127.0.0.1", "node0", "node0.local", "node0")):
        _ring(tmp_path / f"node{rank}", rank, met_at=f"{name}:29500", met=True)
    trace = load_trace(sorted(tmp_path.iterdir()))
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert not trace.warnings


def test_concurrent_job_is_no_part_of_this_one(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _ring(tmp_path / "a", rank, met_at="node0:1", met=True, run="a", last_s=70)
    for rank in (0, 1, 2):
        _ring(tmp_path / "b", rank, met_at="node0:2", met=True, run="b")
    trace = load_trace([tmp_path / "a", tmp_path / "b"])
    assert sorted(trace.ranks) == [0, 1, 3]
    assert any("also holds run b" in warning for warning in trace.warnings)


def _run(ranks: set[int], world: int, began_ns: int, last_ns: int) -> list[RankProcess]:
    return [RankProcess(rank, ("a", rank), began_ns, last_ns, world_size=world) for rank in ranks]


@pytest.mark.parametrize(
    ("other", "is_part"),
    [
        (_run({2, 3}, 4, 5, 90), True),
        (_run({1, 2}, 4, 5, 90), False),  # a rank of both
        (_run({2, 3}, 8, 5, 90), False),  # of a larger job
        (_run({2, 3}, 4, 0, 5), False),  # over before
        (_run({2, 9}, 4, 5, 90), False),  # no rank of four
    ],
)
def test_parts_of_a_job_belong_together(other: list[RankProcess], is_part: bool) -> None:
    main = _run({0, 1}, 4, 10, 100)
    assert (
        runs_of_same_job({"main": main, "other": other}, "main") == ["main", "other"][: 1 + is_part]
    )
