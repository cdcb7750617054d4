"""When the monitor reports: two looks agree, no progress, once per cause."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, GroupRef, Verdict
from hangscope.monitor.report_policy import ReportPolicy, cause_of


def diagnosis(verdict: Verdict, *culprits: int, seq: int | None = 7) -> Diagnosis:
    finding = Finding(
        verdict=verdict,
        culprits=culprits,
        victims=(0,) if culprits != (0,) else (1,),
        confidence=Confidence.CERTAIN,
        summary="",
        group=GroupRef("0", "dp", (0, 1)),
        seq=seq,
    )
    return Diagnosis(verdict, culprits, Confidence.CERTAIN, "", findings=(finding,))


HEALTHY = Diagnosis(Verdict.HEALTHY, (), Confidence.CERTAIN, "")
MISSING = diagnosis(Verdict.MISSING_RANK, 1)


def test_hang_is_reported_when_two_looks_agree() -> None:
    policy = ReportPolicy()
    assert not policy.should_report(MISSING, {0: "still"}, final=False)
    assert policy.should_report(MISSING, {0: "still"}, final=False)


def test_progress_between_two_looks_is_no_hang() -> None:
    policy = ReportPolicy()
    assert not policy.should_report(MISSING, {0: "step 7"}, final=False)
    assert not policy.should_report(
        diagnosis(Verdict.MISSING_RANK, 1, seq=8), {0: "step 8"}, final=False
    )


def test_without_sequence_number_waiting_ranks_must_not_move() -> None:
    somewhere = diagnosis(Verdict.MISSING_RANK, 1, seq=None)
    policy = ReportPolicy()
    assert not policy.should_report(somewhere, {0: "then"}, final=False)
    assert not policy.should_report(somewhere, {0: "now"}, final=False)
    assert policy.should_report(somewhere, {0: "now"}, final=False)


def test_different_cause_at_the_second_look_is_not_confirmed() -> None:
    policy = ReportPolicy()
    policy.should_report(diagnosis(Verdict.MISSING_RANK, 0), {0: "still"}, final=False)
    assert not policy.should_report(MISSING, {0: "still"}, final=False)


def test_final_findings_need_no_second_look() -> None:
    assert ReportPolicy().should_report(diagnosis(Verdict.SHAPE_MISMATCH, 1), {0: "x"}, final=False)
    assert ReportPolicy().should_report(diagnosis(Verdict.RANK_CRASHED, 1), {0: "x"}, final=False)


def test_every_cause_is_reported_once() -> None:
    policy = ReportPolicy()
    policy.should_report(MISSING, {0: "still"}, final=False)
    assert policy.should_report(MISSING, {0: "still"}, final=False)
    policy.mark_reported(MISSING)
    assert not policy.should_report(MISSING, {0: "still"}, final=False)
    assert not policy.should_report(MISSING, {0: "still"}, final=True)


def test_cause_without_culprits_is_reported_once() -> None:
    stuck, elsewhere = (diagnosis(Verdict.STUCK_COLLECTIVE, seq=seq) for seq in (7, 8))
    policy = ReportPolicy()
    policy.should_report(stuck, {0: "still"}, final=False)
    assert policy.should_report(stuck, {0: "still"}, final=False)
    policy.mark_reported(stuck)
    assert not policy.should_report(stuck, {0: "still"}, final=False)
    policy.should_report(elsewhere, {0: "still"}, final=False)
    assert policy.should_report(elsewhere, {0: "still"}, final=False), "it is another one"


def test_culprit_already_reported_is_not_reported_for_a_later_wait() -> None:
    """The same rank is still missing, and other members now wait at another number."""
    later = diagnosis(Verdict.MISSING_RANK, 1, seq=9)
    policy = ReportPolicy()
    policy.mark_reported(MISSING)
    policy.should_report(later, {0: "still"}, final=False)
    assert not policy.should_report(later, {0: "still"}, final=False)


def test_different_cause_without_sequence_number_is_not_confirmed() -> None:
    """Although the waiting ranks have not moved between the two looks."""
    policy = ReportPolicy()
    ranks = {0: "still", 1: "still"}
    policy.should_report(diagnosis(Verdict.MISSING_RANK, 0, seq=None), ranks, final=False)
    somewhere = diagnosis(Verdict.MISSING_RANK, 1, seq=None)
    assert not policy.should_report(somewhere, ranks, final=False)
    assert policy.should_report(somewhere, ranks, final=False)


def test_same_sequence_number_in_another_group_is_another_cause() -> None:
    finding = MISSING.findings[0]
    others = [replace(finding, group=GroupRef("1", "tp", (0, 1))), replace(finding, group=None)]
    assert len({cause_of(f) for f in (finding, *others)}) == 3


def test_end_of_an_explained_job_is_not_reported() -> None:
    policy = ReportPolicy()
    policy.mark_reported(MISSING)
    assert not policy.should_report(
        diagnosis(Verdict.RANK_CRASHED, 0, 2, 3), {0: "gone"}, final=True
    )


def test_end_of_an_unexplained_job_is_reported() -> None:
    assert ReportPolicy().should_report(MISSING, {0: "gone"}, final=True)


def test_healthy_is_never_reported() -> None:
    policy = ReportPolicy()
    assert not policy.should_report(HEALTHY, {0: "x"}, final=False)
    assert not policy.should_report(HEALTHY, {0: "x"}, final=True)
    with_findings = replace(MISSING, verdict=Verdict.HEALTHY)
    assert not policy.should_report(with_findings, {0: "x"}, final=True)


def test_job_reported_by_another_node_is_not_reported_again() -> None:
    policy = ReportPolicy()
    policy.suppress()
    policy.should_report(MISSING, {0: "still"}, final=False)
    assert not policy.should_report(MISSING, {0: "still"}, final=False)
    assert not policy.should_report(diagnosis(Verdict.RANK_CRASHED, 0), {0: "gone"}, final=True)


def test_hang_is_reported_although_other_threads_and_ranks_progress() -> None:
    policy = ReportPolicy()
    policy.should_report(MISSING, {0: "beat 7", 7: "step 7"}, final=False)
    assert policy.should_report(MISSING, {0: "beat 8", 7: "step 8"}, final=False)


def undated(summary: str) -> Diagnosis:
    found = diagnosis(Verdict.MISSING_RANK, 1, seq=None)
    finding = replace(found.findings[0], summary=summary, unchanged_s=4.0)
    return replace(found, summary=summary, findings=(finding,))


def test_undated_finding_is_reported_after_lasting_long_enough() -> None:
    policy = ReportPolicy()
    for now_s in (0.0, 2.0, 3.9):
        assert not policy.should_report(undated("at a"), {0: "x"}, final=False, now_s=now_s)
    assert not policy.should_report(undated("at b"), {0: "x"}, final=False, now_s=4.0)
    assert not policy.should_report(HEALTHY, {0: "x"}, final=False, now_s=7.0)
    assert not policy.should_report(undated("at b"), {0: "x"}, final=False, now_s=8.5)
    assert policy.should_report(undated("at b"), {0: "x"}, final=False, now_s=12.5)


def test_undated_finding_is_not_reported_for_an_ended_job() -> None:
    policy = ReportPolicy()
    assert not policy.should_report(undated("at a"), {0: "x"}, final=False, now_s=0.0)
    assert not policy.should_report(undated("at a"), {0: "x"}, final=True, now_s=60.0)


def test_nothing_that_names_nobody_follows_an_end() -> None:
    """The others' devices stand still because that rank is gone: that is no second cause."""
    policy = ReportPolicy()
    ended = diagnosis(Verdict.RANK_EXITED, 1)
    assert policy.should_report(ended, {0: "x"}, final=False)
    policy.mark_reported(ended)
    stuck = diagnosis(Verdict.STUCK_COLLECTIVE, seq=6)
    assert not any(policy.should_report(stuck, {0: "x"}, final=False) for _ in range(3))
    assert not policy.should_report(MISSING, {0: "x"}, final=False)
    other = diagnosis(Verdict.MISSING_RANK, 0)
    assert [policy.should_report(other, {0: "x"}, final=False) for _ in range(2)] == [False, True]


def test_end_of_a_job_that_had_gone_on_is_reported() -> None:
    policy = ReportPolicy()
    policy.mark_reported(diagnosis(Verdict.QUIESCENT, seq=None))
    died = diagnosis(Verdict.RANK_CRASHED, 1)
    assert not policy.should_report(died, {}, final=True)
    policy.moves_again(6.0)
    assert policy.should_report(died, {}, final=True)


def test_another_hang_of_the_same_rank_is_reported_if_it_lasts_longer() -> None:
    policy = ReportPolicy()
    policy.mark_reported(MISSING)
    policy.moves_again(6.0)
    later = diagnosis(Verdict.MISSING_RANK, 1, seq=70)
    later = replace(later, findings=(replace(later.findings[0], summary="#70"),))
    said = [policy.should_report(later, {}, final=False, now_s=100.0 + s) for s in (0, 5, 11, 12)]
    assert said == [False, False, False, True]
