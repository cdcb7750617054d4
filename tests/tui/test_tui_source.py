"""A live look diagnoses only if something has changed, and otherwise ages the last verdict."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangscope.diagnosis import engine
from hangscope.diagnosis.model import Diagnosis
from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.trace.model import Trace
from hangscope.tui import source
from hangscope.tui.source import LiveSource, Source, later
from tests import view_samples as samples
from tests.live_rings import RingRank


class Run:
    """A job that stays the same until the test changes it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = replace(trace, live=True, looks=2)
        self.moved = False
        self.is_partial = False
        self.asked = 0
        self.read_all = 0

    def look(self) -> Trace:
        return self.trace

    def look_at_all(self) -> Trace:
        self.read_all += 1
        return self.trace

    def ask_for_stacks(self, wanted: object) -> int:
        self.asked += 1
        return 0


def look(at: Source) -> Diagnosis:
    """Look at a source, and have that look diagnosed."""
    return at.judge(at.look())


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    seen: list[Trace] = []
    real = engine.diagnose

    def counted(trace: Trace) -> object:
        seen.append(trace)
        return real(trace)

    monkeypatch.setattr(engine, "diagnose", counted)
    return seen


def test_stalled_job_is_diagnosed_once(judged: list[Trace]) -> None:
    live = LiveSource(Run(samples.hang(8, culprit=3, steps=4).trace), "job")
    first = look(live)
    second = look(live)
    assert len(judged) == 1
    assert second.culprits == first.culprits == (3,)
    assert second.stalled_s is not None
    assert first.stalled_s is not None
    assert second.stalled_s > first.stalled_s
    waits = [(a.waiting_s, b.waiting_s) for a, b in zip(first.ranks, second.ranks, strict=True)]
    assert any(a is not None for a, _ in waits)
    assert all((a is None) == (b is None) for a, b in waits)
    assert all(b > a for a, b in waits if a is not None and b is not None)
    assert replace(second, stalled_s=0.0, ranks=(), findings=()) == replace(
        first, stalled_s=0.0, ranks=(), findings=()
    )


def test_changed_job_is_diagnosed(judged: list[Trace]) -> None:
    run = Run(samples.hang(8, culprit=3, steps=4).trace)
    live = LiveSource(run)
    look(live)
    facts = dict(run.trace.ranks)
    facts[3] = replace(facts[3], process_state="stopped")
    run.trace = replace(run.trace, ranks=facts)
    look(live)
    assert len(judged) == 2
    run.moved = True
    look(live)
    assert len(judged) == 3


def test_verdict_is_recomputed_after_a_while(
    judged: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now_s))
    live = LiveSource(Run(samples.hang(8, culprit=3, steps=4).trace))
    look(live), look(live)
    assert len(judged) == 1
    now_s += source._STANDS_S + 1
    look(live)
    assert len(judged) == 2
    now_s += source._STANDS_S + 1
    look(live)
    assert len(judged) == 2, "twice the time must pass now"
    now_s += source._STANDS_S
    look(live)
    assert len(judged) == 3


def test_healthy_job_is_diagnosed_at_every_look(judged: list[Trace]) -> None:
    """A wait becomes a hang merely by lasting."""
    live = LiveSource(Run(samples.healthy().trace))
    for _ in range(3):
        diagnosis = look(live)
        assert not diagnosis.findings
    assert len(judged) == 3


def test_finding_among_the_newest_records_is_checked_against_all(judged: list[Trace]) -> None:
    run = Run(samples.hang(8, culprit=3, steps=4).trace)
    run.is_partial = True
    live = LiveSource(run)
    look(live), look(live)
    assert run.read_all == 1
    assert len(judged) == 2


def test_unknown_time_stays_unknown() -> None:
    diagnosis = replace(samples.hang(4, culprit=1, steps=3).diagnosis, stalled_s=None)
    assert later(diagnosis, 5.0).stalled_s is None


def test_run_that_is_over_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hangscope.trace.live.follow import LiveRun
    from hangscope.tui.source import LiveSource, StaticSource, open_source

    over, running = tmp_path / "over", tmp_path / "running"
    for folder, pid in ((over, 2**22 + 1), (running, os.getpid())):
        folder.mkdir()
        one = RingRank(
            folder, 0, 1, pid=pid, boot_id=boot_id(), pid_namespace=pid_namespace(),
            start_ticks=start_ticks(pid) if pid == os.getpid() else 1,
        )  # fmt: skip
        one.finish(one.issue(one.join("0", "default_pg", range(1))))
    assert isinstance(open_source([str(running)]), LiveSource)
    monkeypatch.setattr(LiveRun, "look", lambda run: pytest.fail("a second reading"))
    assert isinstance(open_source([str(over)]), StaticSource)


def test_fixture_is_not_live() -> None:
    """A fixture's journal says that its processes were alive, but that was then."""
    from hangscope.tui.source import StaticSource, open_source

    fixture = Path(__file__).resolve().parents[2] / "fixtures" / "loader-asleep" / "dumps"
    opened = open_source([str(fixture)])
    assert isinstance(opened, StaticSource)
    diagnosis = look(opened)
    assert diagnosis.culprits == (2,)
    assert diagnosis.stalled_s is not None
    assert diagnosis.stalled_s < 60
