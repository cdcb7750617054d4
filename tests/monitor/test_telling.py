"""A verdict reaches a webhook and a command, once, and what fails is a line in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.model import Confidence, Side, Verdict
from hangscope.monitor import telling
from hangscope.monitor.telling import Telling
from hangscope.recording.settings import read_settings
from hangscope.report.action import action_of
from hangscope.trace.model import Frame
from tests.monitor.test_report_policy import HEALTHY, diagnosis
from tests.monitor.web_server import posts_to


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A real web server, and what it was sent."""
    with posts_to(lambda path: 500 if path == "/broken" else 204, json.loads) as found:
        yield found


def test_webhook_and_command_get_the_event(
    hook: tuple[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    url, received = hook
    said: list[str] = []
    file = tmp_path / "Event.json"
    environ = {
        "HANGSCOPE_NOTIFY": f"{url}/token {url}/broken nosuch://secret",
        "HANGSCOPE_ON_HANG": f"exec:cat > {file}",
    }
    warned: list[str] = []
    assert read_settings(environ, warned.append).on_hang == "report"
    assert not warned
    asked = Telling.of(environ, said.append)
    asked.tell(diagnosis(Verdict.MISSING_RANK, 2), "job7")
    asked.finish()
    assert [event["headline"] for event in received] == [received[0]["headline"]] * 2
    event = json.loads(file.read_text())
    assert {**event, "at": 0} == {**received[0], "at": 0}
    assert (event["schema"], event["run"]) == ("hangscope/event/1", "job7")
    assert (event["verdict"], event["culprits"]) == ("missing_rank", [2])
    assert len(said) == 2, "the webhook that fails, and the service that is not there"
    assert not any("token" in line or "secret" in line or "/broken" in line for line in said)


def test_command_that_fails_or_hangs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "COMMAND_LIMIT_S", 0.3)
    for command, why in (("echo no >&2; exit 3", "no"), ("sleep 60", "timed out")):
        said: list[str] = []
        asked = Telling((), command, said.append)
        asked.tell(diagnosis(Verdict.MISSING_RANK, 2), "job7")
        asked.finish()
        assert len(said) == 1
        assert why in said[0]


def test_nothing_is_told_unless_asked() -> None:
    asked = Telling.of({"HANGSCOPE_ON_HANG": "kill"}, print)
    asked.tell(diagnosis(Verdict.MISSING_RANK, 2), "job7")
    assert not asked._threads


def test_action_follows_from_the_finding() -> None:
    def act(
        verdict: Verdict, confidence: Confidence = Confidence.CERTAIN, **more: object
    ) -> object:
        given = diagnosis(verdict, 2)
        finding = replace(given.findings[0], confidence=confidence, **more)  # type: ignore[arg-type]
        found = action_of(replace(given, findings=(finding,)))
        assert found is not None
        return {key: value for key, value in found.items() if key != "why"}

    here = Side((2,), stack=(Frame("load_batch", "/job/data.py", 41),))
    assert action_of(HEALTHY) is None
    assert act(Verdict.MISSING_RANK, sides=(here,)) == {"do": "fix", "at": "/job/data.py:41"}
    assert act(Verdict.RANK_LOST, hosts=("node7",)) == {"do": "exclude", "hosts": ["node7"]}
    silent = act(Verdict.RANK_CRASHED, hosts=("node7",), hosts_silent=True)
    assert silent == {"do": "exclude", "hosts": ["node7"]}
    assert act(Verdict.STUCK_COLLECTIVE) == {"do": "restart"}
    assert act(Verdict.INCONCLUSIVE) == {"do": "wait"}
    assert act(Verdict.RANK_LOST, Confidence.AMBIGUOUS, hosts=("node7",)) == {"do": "wait"}
    both = {
        "sides": (here, Side((3,), stack=(Frame("sync", "/job/rl.py", 9),))),
        "culprits": (2, 3),
    }
    tie = act(Verdict.DEADLOCK_CYCLE, Confidence.AMBIGUOUS, **both)
    assert tie == {"do": "fix", "at": "/job/data.py:41", "or_at": ["/job/rl.py:9"]}
    unsure = act(Verdict.DEADLOCK_CYCLE, Confidence.AMBIGUOUS, unknowns=("rank 1",), **both)
    assert unsure == {"do": "wait"}
