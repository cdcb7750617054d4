"""Which run directories belong to one job whose ranks disagree about where to meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangscope.monitor import sibling_runs
from hangscope.monitor.sibling_runs import SiblingRuns
from hangscope.ring.run_directory import RUNS
from hangscope.trace.live.rings import RingFolder
from tests.live_rings import RingRank
from tests.ring_processes import claimed_ring


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_runs, "SETTLED_S", 0.0)
    monkeypatch.setattr(sibling_runs, "LOOK_S", 0.0)


def run_of(base: Path, name: str, *ranks: int, world: int = 4, pid: int = 0) -> list[RingRank]:
    """Rings of ranks that wait in ``init_process_group``."""
    folder = base / RUNS / name
    folder.mkdir(parents=True)
    rings = [claimed_ring(folder, rank, pid or os.getpid(), world, name) for rank in ranks]
    for ring in rings:
        ring.ring.put_u4("initialized", 0)
    return rings


def found(base: Path, name: str) -> tuple[list[int], str]:
    """The ranks that are seen beside those of a directory, and the name of the job's home."""
    siblings = SiblingRuns(base / RUNS / name)
    fragments = siblings.fragments(RingFolder(base / RUNS / name, None).refresh())
    home = siblings.home.directory.name if siblings.home else ""
    return sorted(fragment.facts.rank for fragment in fragments), home


def test_each_side_sees_the_other_and_the_lowest_ranks_speaks(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 3)
    run_of(tmp_path, "b", 0, 1, 2)
    assert found(tmp_path, "a") == ([0, 1, 2], "b")
    assert found(tmp_path, "b") == ([3], "b")


def test_more_than_two_directories(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 3)
    run_of(tmp_path, "b", 0)
    run_of(tmp_path, "c", 1, 2)
    assert found(tmp_path, "c") == ([0, 3], "b")


def test_another_job_with_the_same_ranks_is_none_of_it(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 0, 1, 2)
    run_of(tmp_path, "b", 2, 3)
    assert found(tmp_path, "a") == ([], "")


def test_nor_is_one_that_leaves_ranks_missing(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 0, 1)
    run_of(tmp_path, "b", 3)
    assert found(tmp_path, "a") == ([], "")


def test_nor_one_of_another_size(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 0, 1, 2)
    run_of(tmp_path, "b", 3, world=8)
    assert found(tmp_path, "a") == ([], "")


def test_nor_ranks_that_have_met_or_ended(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 0, 1, 2)
    (met,) = run_of(tmp_path, "b", 3)
    met.ring.put_u4("initialized", 1)
    assert found(tmp_path, "a") == ([], "")
    met.ring.put_u4("initialized", 0)
    assert found(tmp_path, "a") == ([3], "a")
    met.ring.put_i8("pid", 2**22 - 1)  # no such process
    assert found(tmp_path, "a") == ([], "")


def test_a_directory_may_be_the_beginning_of_a_job_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(tmp_path, "a", 0, 1, 2)
    run_of(tmp_path, "b", 3)
    monkeypatch.setattr(sibling_runs, "SETTLED_S", 60.0)
    assert found(tmp_path, "a") == ([], "")


def test_what_the_user_named_is_looked_at_alone(tmp_path: Path) -> None:
    run_of(tmp_path, "a", 0, 1, 2)
    run_of(tmp_path, "b", 3)
    (tmp_path / RUNS).rename(tmp_path / "mine")
    siblings = SiblingRuns(tmp_path / "mine" / "a")
    assert siblings.fragments(RingFolder(tmp_path / "mine" / "a", None).refresh()) == []
