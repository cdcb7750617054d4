"""Dumps of jobs that ran at the same time, collected in one place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.job_selection import concurrent_jobs
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.model import Fragment
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

SECOND = 10**9


def _run(
    folder: Path, name: str, begin_s: float, *, late: int | None, dumped_s: float, ranks: int = 4
) -> None:
    """Twelve steps of a second; rank ``late`` does not come to the last one."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        rows: list[dict[str, Any]] = []
        for step in range(1, 13):
            at = BASE_NS + int((begin_s + step) * SECOND) + rank
            end = {"time_discovered_completed_ns": at + SECOND // 2}
            if step < 12 or late is None:
                rows.append(entry(step, time_created_ns=at, **end))
            elif rank != late:
                rows.append(pending(step, time_created_ns=at))
        path = write(folder, name.format(rank), dump(rows, 4))
        os.utime(path, ns=(BASE_NS + int(dumped_s * SECOND),) * 2)


def _judged(folder: Path) -> tuple[str, tuple[int, ...]]:
    found = diagnose(load_trace([folder]))
    return found.verdict.value, found.culprits


@pytest.mark.parametrize("began", [-3.25, 3.25])
def test_job_that_ended_cleanly_beside_a_hung_one(tmp_path: Path, began: float) -> None:
    """The rank whose dump is missing is not taken from the other job."""
    _run(tmp_path / "a", "trace_{}", 0, late=2, dumped_s=640)
    (tmp_path / "a" / "trace_3").unlink()
    _run(tmp_path / "b", "trace_{}", began, late=None, dumped_s=20)
    trace = load_trace([tmp_path])
    assert trace.missing_ranks == (3,)
    assert any("another job that ran at the same time" in text for text in trace.warnings)
    assert 2 in diagnose(trace).culprits


def test_job_that_ran_while_another_hung(tmp_path: Path) -> None:
    _run(tmp_path / "a", "trace_{}", 0, late=2, dumped_s=640)
    _run(tmp_path / "b", "trace_{}", 300, late=None, dumped_s=320)
    assert _judged(tmp_path) == ("missing_rank", (2,))


def test_file_names_separate_jobs_of_one_folder(tmp_path: Path) -> None:
    _run(tmp_path, "blue_rank_{}", 0, late=1, dumped_s=640)
    _run(tmp_path, "red_rank_{}", 2.5, late=None, dumped_s=640)
    assert _judged(tmp_path) == ("missing_rank", (1,))


def test_jobs_in_files_of_one_pattern_are_not_told_apart(tmp_path: Path) -> None:
    """Nor is one of them, then, another job than that of a second folder."""
    _run(tmp_path / "a", "job1_rank_{}", 0, late=1, dumped_s=640)
    _run(tmp_path / "a", "job2_rank_{}", 0.25, late=None, dumped_s=640)
    _run(tmp_path / "b", "job_rank_{}", 0.5, late=None, dumped_s=640)
    trace = load_trace([tmp_path])
    assert not any("another job" in text for text in trace.warnings)


def test_consecutive_attempts_are_separated(tmp_path: Path) -> None:
    """The first attempt hung and was dumped; the second began after that, and is the newest."""
    _run(tmp_path / "a", "trace_{}", 0, late=2, dumped_s=640)
    _run(tmp_path / "b", "trace_{}", 700, late=None, dumped_s=1400)
    assert _judged(tmp_path)[1] == ()


def test_two_dumps_of_one_process_are_one_job(tmp_path: Path) -> None:
    """Dumped on demand, and by its watchdog ten minutes later."""
    _run(tmp_path / "early", "trace_{}", 0, late=2, dumped_s=30)
    _run(tmp_path / "late", "trace_{}", 0, late=2, dumped_s=640)
    trace = load_trace([tmp_path])
    assert not any("another job" in text for text in trace.warnings)
    assert diagnose(trace).culprits == (2,)


def test_many_dumps_of_one_process_are_not_all_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some collectors dump every few seconds, for days."""
    compared = 0
    beside = concurrent_jobs._ran_concurrently

    def counting(a: Fragment, b: Fragment) -> bool:
        nonlocal compared
        compared += 1
        return beside(a, b)

    monkeypatch.setattr(concurrent_jobs, "_ran_concurrently", counting)
    many = 100
    for number in range(many):
        at = BASE_NS + number * SECOND
        path = write(tmp_path, f"dump_{number}_rank_0", dump([entry(1, time_created_ns=at)], 2))
        os.utime(path, ns=(at + 2 * SECOND,) * 2)
    load_trace([tmp_path])
    assert many <= compared <= many * concurrent_jobs._NEXT


@pytest.mark.parametrize("as_one_file", [False, True])
def test_local_ranks_are_not_taken_for_ranks(tmp_path: Path, as_one_file: bool) -> None:
    """Two hosts of two ranks in a world of four; rank 3 is late, which is called 1 there."""
    found: dict[str, dict[str, Any]] = {"host0": {}, "host1": {}}
    for rank in range(4):
        rows = [entry(n, time_created_ns=BASE_NS + n * SECOND + rank) for n in range(1, 12)]
        if rank != 3:
            rows.append(pending(12, time_created_ns=BASE_NS + 12 * SECOND + rank))
        found[f"host{rank // 2}"][str(rank % 2)] = dump(rows, 4)
    if as_one_file:
        write(tmp_path, "all.json", found)
    else:
        for host, dumps in found.items():
            for name, document in dumps.items():
                write(tmp_path / host, f"trace_{name}.json", document)
    with pytest.raises(NothingReadable, match="count within a host"):
        load_trace([tmp_path])


def _of_one_group(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    own = [row for row in rows if row["process_group"][0] == name]
    config = {name: {"name": name, "desc": "", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": own}


@pytest.mark.parametrize("name", ["rank_{rank}_pg_{group}.json", "{group}/rank_{rank}.json"])
def test_one_file_for_each_group_of_a_rank_is_one_process(tmp_path: Path, name: str) -> None:
    """The recorder's ids show it: each is in one of the files, in the order of the times."""
    for rank in range(4):
        rows = []
        for step in range(1, 13):
            of_group = {"process_group": (str(step % 2), ""), "pg_id": step % 2}
            row = {
                "record_id": step - 1,
                "collective_seq_id": (step + 1) // 2,
                "time_created_ns": BASE_NS + step * SECOND + rank,
                **of_group,
            }
            if step < 12:
                rows.append(entry(step, **row))
            elif rank != 2:
                rows.append(pending(step, **row))
        for group in "01":
            file = tmp_path / name.format(rank=rank, group=group)
            path = write(file.parent, file.name, _of_one_group(rows, group))
            os.utime(path, ns=(BASE_NS + 640 * SECOND,) * 2)
    trace = load_trace([tmp_path])
    assert len(trace.records) == 4 * 12 - 1
    assert not any("another job" in text for text in trace.warnings)
    assert _judged(tmp_path) == ("missing_rank", (2,))
