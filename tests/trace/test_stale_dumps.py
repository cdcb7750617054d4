"""A dump of an earlier attempt among those of the newest, for a rank that is missing there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

HOURS = 3600 * 10**9


def _write(
    folder: Path,
    rank: int,
    entries: list[dict[str, object]],
    shift_ns: int = 0,
    *,
    world: int = 4,
    dated: bool = True,
) -> None:
    for one in entries:
        for name in ("time_created_ns", "time_discovered_completed_ns"):
            if one[name]:
                one[name] = int(str(one[name])) + shift_ns
    path = write(folder, f"_dump_{rank}", dump(entries, world=world))
    moment = BASE_NS + shift_ns + 700 * 10**9
    if dated:
        os.utime(path, ns=(moment, moment))


def test_stale_dump_is_left_out_and_its_rank_is_missing(tmp_path: Path) -> None:
    """The old dump's rank hung in #2 then; its new process left nothing."""
    for rank in (0, 1, 2):
        _write(tmp_path, rank, [entry(1), entry(2), entry(3), pending(4)])
    _write(tmp_path, 3, [entry(1), pending(2)], -5 * HOURS)
    trace = load_trace([tmp_path])
    assert 3 not in trace.ranks
    assert any("_dump_3: of an earlier attempt" in w for w in trace.warnings)
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (3,))


@pytest.mark.parametrize(("whole", "left_out"), [(True, True), (False, False)])
def test_job_restarted_within_minutes(tmp_path: Path, whole: bool, left_out: bool) -> None:
    """Rank 3's file is 80 s older than the first record of the others. If those are incomplete,
    they may have begun long before, or a clock may be wrong by that much."""
    for rank in (0, 1, 2):
        rows = [entry(1), entry(2), entry(3), pending(4)]
        for place, one in enumerate(rows):
            one["record_id"] = place + (0 if whole else 3000)
        _write(tmp_path, rank, rows)
    _write(tmp_path, 3, [entry(1), pending(2)], -780 * 10**9)
    assert (3 not in load_trace([tmp_path]).ranks) == left_out


def test_clock_wrong_by_hours_makes_its_rank_less_certain(tmp_path: Path) -> None:
    """Rank 3 is where the others wait for it, but its dump could as well be an old one."""
    for rank in (0, 1, 2):
        _write(tmp_path, rank, [entry(1), entry(2), pending(3)])
    _write(tmp_path, 3, [entry(1), entry(2)], -5 * HOURS)
    found = diagnose(load_trace([tmp_path]))
    assert found.culprits == (3,)
    assert found.confidence is Confidence.LIKELY


def test_half_of_the_dumps_are_not_left_out(tmp_path: Path) -> None:
    """Two against two: nothing shows which of them are of the newest attempt."""
    for rank in (0, 1):
        _write(tmp_path, rank, [entry(1), entry(2), pending(3)])
    for rank in (2, 3):
        _write(tmp_path, rank, [entry(1), entry(2)], -5 * HOURS)
    assert sorted(load_trace([tmp_path]).ranks) == [0, 1, 2, 3]


def test_dump_of_a_rank_that_timed_out_long_before_is_kept(tmp_path: Path) -> None:
    """Rank 0's timeout is short: it wrote its dump an hour before the others wrote theirs."""
    _write(tmp_path, 0, [entry(1), pending(2)])
    for rank in (1, 2):
        _write(tmp_path, rank, [entry(1), pending(2)])
        moment = BASE_NS + HOURS
        os.utime(tmp_path / f"_dump_{rank}", ns=(moment, moment))
    _write(tmp_path, 3, [entry(1)])
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("before", [4, 6, 9])
def test_attempt_with_more_ranks_leaves_stale_dumps(
    tmp_path: Path, before: int, dated: bool
) -> None:
    """Three ranks continue where more had hung before: the dumps of the rest are still there."""
    for rank in range(3, before):
        last = [pending(2)] if rank > 3 else []
        _write(tmp_path, rank, [entry(1), *last], -5 * HOURS, world=before, dated=dated)
    for rank in range(3):
        last = [pending(3)] if rank != 1 else []
        _write(tmp_path, rank, [entry(1), entry(2), *last], world=3, dated=dated)
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2]
    assert sum("of an earlier attempt" in w for w in trace.warnings) == before - 3
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))


def test_old_dump_without_a_default_group_is_of_no_smaller_world(tmp_path: Path) -> None:
    """Nothing says of how many ranks its job was; two dumps show no usual time, either."""
    _write(tmp_path, 0, [entry(1), entry(2), pending(3)])
    rows = [entry(1), pending(2)]
    document = dump(rows, pg_config={"0": {"name": "0", "desc": "tp", "ranks": "[0, 1, 2, 3]"}})
    for row in rows:
        row["time_created_ns"] -= 5 * HOURS
    write(tmp_path, "_dump_1", document)
    assert 1 in load_trace([tmp_path]).ranks


def test_worlds_of_one_time_are_unchanged(tmp_path: Path) -> None:
    for rank in range(4):
        _write(tmp_path, rank, [entry(1), pending(2)], world=3 if rank < 3 else 4)
    assert sorted(load_trace([tmp_path]).ranks) == [0, 1, 2, 3]


@pytest.mark.parametrize(("pause_s", "kept"), [(3600, [0, 2, 3]), (20, [0, 1, 2, 3])])
def test_dump_followed_by_progress_of_the_others_shows_no_hang(
    tmp_path: Path, pause_s: int, kept: list[int]
) -> None:
    """Rank 1 was dumped while the job ran, and not again when all waited for rank 3."""
    pause_ns = pause_s * 10**9
    for rank in (0, 2, 3):
        rows = [entry(1), entry(2), *([pending(3)] if rank != 3 else [])]
        for one in rows:
            one["time_created_ns"] += pause_ns if one["collective_seq_id"] == 3 else 0
        path = write(tmp_path, f"_dump_{rank}", dump(rows, world=4))
        moment = BASE_NS + pause_ns + 700 * 10**9
        os.utime(path, ns=(moment, moment))
    path = write(tmp_path, "_dump_1", dump([entry(1), entry(2)], world=4))
    moment = BASE_NS + 5 * 10**9
    os.utime(path, ns=(moment, moment))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == kept
    if 1 not in kept:
        assert diagnose(trace).culprits == (3,)


def test_stale_dump_with_a_renewed_date_is_left_out(tmp_path: Path) -> None:
    """Its records end hours before those of the others begin, and none of those are overwritten."""
    for rank in (0, 1, 2):
        _write(tmp_path, rank, [entry(1), entry(2), entry(3), pending(4)], dated=False)
    _write(tmp_path, 3, [entry(1), pending(2)], -5 * HOURS, dated=False)
    for path in tmp_path.iterdir():
        os.utime(path, ns=(BASE_NS + 24 * HOURS, BASE_NS + 24 * HOURS))
    trace = load_trace([tmp_path])
    assert 3 not in trace.ranks


@pytest.mark.parametrize("whole", [0, 1])
def test_dump_with_overwritten_first_records_shows_no_start(tmp_path: Path, whole: int) -> None:
    """Rank 3 may have been blocked for hours while the others proceeded; that a minority of those
    has all its records does not show that the job began with them."""
    for rank in (0, 1, 2):
        left = [entry(n, record_id=n + 500) for n in (3, 4)]
        everything = [entry(n) for n in (1, 2, 3, 4)]
        _write(tmp_path, rank, everything if rank < whole else left, dated=False)
    _write(tmp_path, 3, [entry(1), pending(2)], -5 * HOURS, dated=False)
    for path in tmp_path.iterdir():
        os.utime(path, ns=(BASE_NS + 24 * HOURS, BASE_NS + 24 * HOURS))
    assert 3 in load_trace([tmp_path]).ranks


def test_copied_empty_dump_of_an_older_folder_is_not_newer(tmp_path: Path) -> None:
    old, new = tmp_path / "attempt_0", tmp_path
    for rank in range(3):
        _write(new, rank, [entry(1), entry(2), pending(3)] if rank else [entry(1), entry(2)])
        _write(old, rank, [entry(1)] if rank == 0 else [], -HOURS)
    for path in [*old.iterdir(), *new.glob("_dump_*")]:
        os.utime(path, ns=(BASE_NS + 24 * HOURS, BASE_NS + 24 * HOURS))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (0,))
