"""A finding says which hosts it is about; a host whose ranks all left no word fell silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.facts import ExceptionFacts
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.model import Trace
from tests.live_rings import RingRank


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Ranks 0 to 3 wait for 4 and 5, which are gone; two ranks a host."""
    for rank in range(6):
        one = RingRank(tmp_path, rank, 6)
        group = one.join("0", "default_pg", range(6))
        for _ in range(5):
            one.finish(one.issue(group))
        if rank < 4:
            one.issue(group)
        one.ring.beat()
    found = LiveRun(tmp_path).look()
    ranks = {
        r: replace(f, host=f"node{r // 2}", machine=f"m{r // 2}", alive=r < 4, pid=10 + r)
        for r, f in found.ranks.items()
    }
    return replace(found, ranks=ranks, live=True, looks=2)


def test_host_that_is_gone_as_a_whole_fell_silent(trace: Trace) -> None:
    found = diagnose(trace)
    assert set(found.culprits) == {4, 5}
    assert found.hosts == ("node2",)
    assert "Host node2 (ranks 4, 5) fell silent: " in found.headline
    assert found.findings[0].hosts_silent


def test_host_whose_rank_left_a_word_did_not(trace: Trace) -> None:
    error = ExceptionFacts("ValueError", "no such shard", at_ns=trace.observed_ns)
    ranks = {**trace.ranks, 4: replace(trace.ranks[4], exception=error)}
    found = diagnose(replace(trace, ranks=ranks))
    assert "fell silent" not in found.headline
    assert found.hosts == ("node2",)
    assert not found.findings[0].hosts_silent


def test_rank_of_a_living_host(trace: Trace) -> None:
    ranks = {**trace.ranks, 5: replace(trace.ranks[5], alive=True)}
    found = diagnose(replace(trace, ranks=ranks))
    assert "fell silent" not in found.headline


def test_job_on_one_host_names_none(trace: Trace) -> None:
    ranks = {r: replace(f, host="node0", machine="") for r, f in trace.ranks.items()}
    found = diagnose(replace(trace, ranks=ranks))
    assert found.hosts == ()
    assert found.verdict is not Verdict.HEALTHY
