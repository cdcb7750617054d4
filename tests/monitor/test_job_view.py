"""The whole job as node 0 sees it: of a large one, the answer is there when the timeout passes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hangscope.diagnosis.model import Diagnosis
from hangscope.monitor import job_view
from hangscope.monitor.node_reports import Reports
from hangscope.trace.digests.codec import encode
from hangscope.trace.digests.digest import Node
from hangscope.trace.digests.hosts import HostMap
from hangscope.trace.digests.make import digest_of
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.model import Trace
from tests.live_rings import RingRank

TIMEOUT_S = 1.5


class Others:
    """What the other nodes have said."""

    def __init__(self, report: bytes) -> None:
        self.version, self.state, self.reported, self.hosts = 1, None, 1, HostMap()
        self._reports = Reports()
        self._reports.put("node_1", report)

    def fragments(self) -> Any:
        return self._reports.fragments(0, {})

    def notes(self) -> list[str]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


def _stuck(folder: Path, ranks: range) -> LiveRun:
    """All of four ranks but number 3 wait for each other."""
    folder.mkdir()
    for number in ranks:
        rank = RingRank(folder, number, 4, timeout_s=TIMEOUT_S, local_world_size=2)
        group = rank.join("0", "default_pg", range(4))
        if number != 3:
            rank.issue(group)
    return LiveRun(folder)


@pytest.mark.parametrize("changes", [False, True])
def test_what_the_timeout_will_show_is_diagnosed_before_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    there, began_s = _stuck(tmp_path / "there", range(2, 4)), time.monotonic()
    others = Others(encode(digest_of(there.look(), range(2, 4), Node("there"))))
    seen = {0: os.getpid(), 1: os.getpid()}
    ranks: Any = SimpleNamespace(
        seen=seen, known={*seen}, local_world_size=2, rings=[], journal=None,
        are_incomplete=lambda: False, note_ends=lambda wait_s: False,
    )  # fmt: skip
    siblings: Any = SimpleNamespace(fragments=lambda rings: [])
    here = _stuck(tmp_path / "here", range(2))
    view = job_view.JobView(here, ranks, siblings, TIMEOUT_S, lambda line: None)
    monkeypatch.setattr(view, "others", others)
    monkeypatch.setattr(job_view, "LARGE", 3)
    calls: list[Diagnosis] = []
    diagnose = job_view.diagnose

    def counted(trace: Trace) -> Diagnosis:
        calls.append(diagnose(trace))
        return calls[-1]

    monkeypatch.setattr(job_view, "diagnose", counted)
    _, found = view.diagnosed(time.monotonic() - began_s)
    assert not found.findings, "nobody has waited for long enough"
    assert [bool(one.findings) for one in calls] == [False, True]
    view.diagnosed(time.monotonic() - began_s)
    assert len(calls) == 2, "nothing has changed"
    others.version += changes
    time.sleep(max(0.0, began_s + TIMEOUT_S + 0.5 - time.monotonic()))
    trace, found = view.diagnosed(time.monotonic() - began_s)
    assert found.culprits == (3,)
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert len(calls) == 2 + changes
