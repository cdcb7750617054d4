"""A monitor that sees part of a job does not accuse ranks that it cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.model import RankReport, Verdict, WaitEdge
from hangscope.monitor.partial_view import restricted_to_seen
from hangscope.monitor.report_claims import claim_report
from hangscope.monitor.report_policy import cause_of
from hangscope.trace.live.open_ring import RunKey
from tests.monitor.test_report_policy import HEALTHY, MISSING, diagnosis


def test_observed_ranks_may_be_accused() -> None:
    assert restricted_to_seen(MISSING, {0, 1}) is MISSING
    assert restricted_to_seen(HEALTHY, {0}) is HEALTHY


def test_unobserved_ranks_are_not_accused() -> None:
    local = restricted_to_seen(diagnosis(Verdict.RANK_LOST, 4, 5), {0, 1, 2, 3})
    assert local.verdict is Verdict.INCONCLUSIVE
    assert local.culprits == ()
    assert "other nodes" in local.summary
    assert "all nodes" in local.findings[0].fix


def test_row_of_an_unobserved_rank_shows_no_role() -> None:
    rows = (RankReport(0, role="victim"), RankReport(4, role="culprit"))
    given = replace(diagnosis(Verdict.RANK_LOST, 4), ranks=rows)
    local = restricted_to_seen(given, {0, 1})
    assert [(row.rank, row.role) for row in local.ranks] == [(0, "victim"), (4, "bystander")]
    assert local.summary.startswith("Rank 0 waits for rank 4 on other nodes"), "no operation known"


def test_inconclusive_names_the_unobserved_ranks_waited_for() -> None:
    given = diagnosis(Verdict.INCONCLUSIVE)
    waits = tuple(WaitEdge(0, on, "0", 7, "all_reduce") for on in (1, 2, 3))
    local = restricted_to_seen(replace(given, wait_for=waits), {0, 1})
    assert "ranks 2, 3 on other nodes" in local.summary
    assert restricted_to_seen(replace(given, wait_for=waits), range(4)).findings == given.findings


def test_observed_cause_comes_before_unobserved_one() -> None:
    seen = diagnosis(Verdict.RANK_CRASHED, 1)
    both = replace(seen, findings=(*seen.findings, *diagnosis(Verdict.RANK_LOST, 9).findings))
    assert restricted_to_seen(both, {0, 1}).verdict is Verdict.RANK_CRASHED


def test_only_one_monitor_claims_a_cause(tmp_path: Path) -> None:
    cause = cause_of(MISSING.findings[0])
    key = RunKey("run", 0)
    assert claim_report(tmp_path, key, cause)
    assert not claim_report(tmp_path, key, cause)
    assert claim_report(tmp_path, RunKey("run", 1), cause), "another attempt is another job"
    assert claim_report(tmp_path / "missing", key, cause), "an unwritable directory silences nobody"
    assert claim_report(tmp_path, key, cause, 5), "another job under the same name"
    assert not claim_report(tmp_path, RunKey("run", 1), cause, 5), (
        "nodes may count attempts differently"
    )
    assert claim_report(tmp_path, RunKey("other", 1), cause, 5)
