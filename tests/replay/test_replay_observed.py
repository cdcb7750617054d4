"""Observations of live processes are kept, and read back unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.replay.observed import NAME, read_dump_time, read_moment, write_observed
from hangscope.replay.redact import Redactor
from hangscope.replay.verify import load_recorded
from hangscope.trace.external_reports.journal import read_journal
from hangscope.trace.model import Frame, ThreadStack, Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def _trace() -> Trace:
    return load_recorded(FIXTURES / "gil-holder" / "dumps")


def test_live_job_keeps_its_observed_state() -> None:
    trace = _trace()
    assert trace.live
    assert trace.looks == 2
    assert [f.alive for f in trace.ranks.values()] == [True] * 4
    assert [f.gil_blocked for f in trace.ranks.values()] == [False, True, False, False]
    assert any(t.source == "signal" for t in trace.ranks[1].threads)
    newest = max(f.observed_ns for f in trace.ranks.values())
    assert abs(trace.observed_ns - newest) < 10**9


def test_observation_survives_a_round_trip(tmp_path: Path) -> None:
    trace = _trace()
    signal = ThreadStack(
        "MainThread", True, (Frame("hold", "/home/ann/x.py", 7),), 5, source="signal"
    )
    facts = replace(
        trace.ranks[1],
        process_state="stopped",
        held_by="gdb (pid 7)",
        cpu_busy=0.25,
        stack_moved=True,
        threads=(signal,),
    )
    trace = replace(trace, ranks={**trace.ranks, 1: facts})
    redactor = Redactor()
    assert write_observed(trace, tmp_path / NAME, redactor)
    read = {f.facts.rank: f.facts for f in read_journal(tmp_path / NAME)}
    again = read[1]
    assert (again.alive, again.process_state, again.gil_blocked) == (True, "stopped", True)
    assert (again.cpu_busy, again.stack_moved) == (0.25, True)
    assert again.held_by == "gdb (pid 7)"
    assert (again.run_id, again.attempt) == (redactor.prose(facts.run_id), facts.attempt)
    assert again.threads == (replace(signal, stack=(Frame("hold", "/redacted/1/x.py", 7),)),)
    moment = read_moment(tmp_path)
    assert moment is not None
    assert (moment.observed_ns, moment.looks) == (trace.observed_ns, 2)


def test_ended_process_stays_ended(tmp_path: Path) -> None:
    trace = _trace()
    facts = replace(trace.ranks[2], alive=False, process_state="gone")
    write_observed(replace(trace, ranks={2: facts}, live=False), tmp_path / NAME)
    (fragment,) = read_journal(tmp_path / NAME)
    assert fragment.facts.alive is False
    assert fragment.facts.exit is not None
    assert fragment.facts.exit.kind == "unknown"
    assert read_moment(tmp_path) is None


def test_damaged_observations_are_skipped(tmp_path: Path) -> None:
    head = {"hangscope": "journal/1", "run_id": "r", "attempt": 0, "live": True}
    events = [
        {"event": "seen"},
        {"event": "seen", "rank": "0", "alive": True},
        {"event": "seen", "rank": 0, "alive": "yes"},
        {
            "event": "seen",
            "rank": 1,
            "alive": True,
            "cpu_busy": "much",
            "threads": [{"name": 3}, 7],
        },
        {"event": "unheard of", "rank": 2},
    ]
    text = "".join(json.dumps(line) + "\n" for line in (head, *events))
    (tmp_path / NAME).write_text(text + '{"event": "se')
    (fragment,) = read_journal(tmp_path / NAME)
    assert fragment.facts.rank == 1
    assert fragment.facts.cpu_busy is None
    assert fragment.facts.threads == ()
    assert read_moment(tmp_path) is None  # says no time


@pytest.mark.parametrize(
    "first",
    ["[" * 200_000, "[1]", "{", '{"live": true, "observed_ns": [], "dumped_ns": {}}', "\x00"],
    ids=["nested", "a list", "cut", "no numbers", "binary"],
)
def test_damaged_first_line_of_observations_says_no_time(tmp_path: Path, first: str) -> None:
    (tmp_path / NAME).write_text(first + "\n")
    assert read_moment(tmp_path) is None
    assert read_dump_time(tmp_path) == 0


def test_nothing_is_written_without_observed_processes(tmp_path: Path) -> None:
    trace = load_recorded(FIXTURES / "log-exception" / "dumps")
    assert not write_observed(trace, tmp_path / NAME)
    assert not (tmp_path / NAME).exists()
