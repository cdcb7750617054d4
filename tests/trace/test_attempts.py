"""Several attempts of a job in one place: the newest is read, the others are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hangscope.trace.job_selection.newest_attempt import keep_newest
from hangscope.trace.model import Claim, Fragment, RankFacts, Source

HOUR = 3600 * 10**9


def ring(rank: int, run: str, attempt: int, at: int, folder: str = "runs") -> Fragment:
    path = f"{folder}/rank_{rank}.{attempt}.ring"
    facts = RankFacts(rank=rank, run_id=run, attempt=attempt, heartbeat_ns=at)
    return Fragment(Source(path, "hangscope-ring", rank=rank), facts)


def log(path: str) -> Fragment:
    claims = (Claim("timeout", reporter=0),)
    return Fragment(Source(path, "job-log"), RankFacts(rank=0), claims=claims)


def empty_dump(path: str) -> Fragment:
    return Fragment(Source(path, "flight-recorder-pickle", rank=0), RankFacts(rank=0))


@pytest.mark.parametrize("record", [ring(0, "new", 0, HOUR), empty_dump("trace_0"), None])
def test_earlier_attempt_in_a_log_is_ignored_beside_records(record: Fragment | None) -> None:
    """They are of the newest; without them, the earlier one is all that is known."""
    old = replace(log("job.log"), of_earlier_attempt=True)
    kept, notes = keep_newest([*filter(None, [record]), old])
    assert (old in kept) == (record is None)
    assert any("says nothing of its newest attempt" in note for note in notes) == bool(record)


def test_newest_attempt_of_the_newest_run_is_selected() -> None:
    fragments = [
        *(ring(r, "new", 0, 5 * HOUR) for r in range(2)),
        *(ring(r, "new", 1, 6 * HOUR) for r in range(2)),
        ring(0, "old", 7, HOUR),
    ]
    kept, notes = keep_newest(fragments)
    assert {(f.facts.run_id, f.facts.attempt) for f in kept} == {("new", 1)}
    assert len(notes) == 2
    assert "also holds attempt 0 of 2 ranks" in notes[0]
    assert "also holds run old attempt 7 of 1 rank" in notes[1]


def test_folder_of_many_runs_is_one_line() -> None:
    fragments = [ring(0, f"run{n}", 0, n * HOUR, f"runs/{n}") for n in range(1, 30)]
    kept, notes = keep_newest(fragments)
    assert [f.facts.run_id for f in kept] == ["run29"]
    assert notes == [
        "this report is about run run29 attempt 0; 28 other runs and attempts were found beside it"
    ]


def test_files_beside_an_old_run_belong_to_it() -> None:
    fragments = [
        ring(0, "new", 0, 6 * HOUR, "runs/new"),
        log("runs/new/job.log"),
        ring(0, "old", 0, HOUR, "runs/old"),
        log("runs/old/job.log"),
        empty_dump("runs/old/trace_0"),
        log("elsewhere/job.log"),
    ]
    kept, _ = keep_newest(fragments)
    assert sorted(f.source.path for f in kept) == [
        "elsewhere/job.log",
        "runs/new/job.log",
        "runs/new/rank_0.0.ring",
    ]


def test_single_attempt_is_unchanged() -> None:
    fragments = [ring(r, "one", 0, HOUR) for r in range(4)]
    assert keep_newest(fragments) == (fragments, [])


def dump(rank: int, folder: str, at: int) -> Fragment:
    return Fragment(
        Source(f"{folder}/trace_{rank}", "flight-recorder-pickle", rank=rank),
        RankFacts(rank=rank, observed_ns=at),
    )


def test_folders_with_different_ranks_are_one_job() -> None:
    fragments = [dump(r, f"node{r // 2}", HOUR + r) for r in range(4)]
    kept, notes = keep_newest(fragments)
    assert len(kept) == 4
    assert notes == []


def test_older_folder_with_the_same_ranks_is_another_attempt() -> None:
    new = [dump(r, f"node{r // 2}", 9 * HOUR) for r in range(4)]
    old = [dump(r, "old", HOUR) for r in range(4)]
    kept, notes = keep_newest([*old, *new])
    assert {f.source.path.split("/")[0] for f in kept} == {"node0", "node1"}
    assert notes == ["old: holds older dumps of 4 ranks; ignored as another attempt"]


def test_older_dump_of_one_rank_in_the_same_folder_is_left_out() -> None:
    late = dump(0, "x", 9 * HOUR)
    early = replace(
        late,
        source=replace(late.source, path="x/trace_0.old"),
        facts=RankFacts(rank=0, observed_ns=HOUR),
    )
    kept, notes = keep_newest([early, late])
    assert kept == [late]
    assert "an older dump of rank 0" in notes[0]
    assert np.all([len(f.records) == 0 for f in kept])
