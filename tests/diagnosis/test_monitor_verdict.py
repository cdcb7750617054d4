"""The monitor's verdict during the run, if less is left of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace import formats
from hangscope.trace.model import Claim, ClaimDetails, ExitFacts, Source, Trace
from hangscope.trace.verdict_codec import OWN_VERDICT

from .builder import SECOND, START, Job


def _said(after_s: float, **details: Any) -> Claim:
    told: dict[str, Any] = {
        "verdict": "missing_rank",
        "culprits": (1,),
        "confidence": "certain",
        **details,
    }
    at_ns = START + int(after_s * SECOND)
    return Claim(
        OWN_VERDICT,
        text="Rank 1 never came",
        at_ns=at_ns,
        details=ClaimDetails(**told),
        certain=False,
    )


def _killed_at_once(claim: Claim, *, clean: bool = False, stood_s: float = 3.0) -> Trace:
    """Nobody waits for anybody on record, and all end at one moment."""
    job = Job(3)
    job.steps(4)
    for rank in range(3):
        at_ns = START + int((job.now + stood_s) * SECOND)
        end = ExitFacts("clean", 0) if clean else ExitFacts("signal", signal=9, at_ns=at_ns)
        job.rank(rank, alive=False, exit=end)
    return job.trace(claims=(claim,))


@pytest.mark.parametrize("confidence", ["certain", "likely", "ambiguous", ""])
def test_monitor_verdict_is_repeated_if_nothing_else_is_found(confidence: str) -> None:
    found = diagnose(_killed_at_once(_said(2.0, confidence=confidence)))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.confidence.value == ("ambiguous" if confidence == "ambiguous" else "likely")
    assert found.summary == "Rank 1 never came"


@pytest.mark.parametrize(
    ("claim", "clean"),
    [
        (_said(0.0001), False),
        (_said(2.0), True),
        (_said(2.0, verdict="no such verdict"), False),
        (_said(2.0, verdict=None, culprits=()), False),
    ],
    ids=["the job went on", "all ended in order", "unknown verdict", "none"],
)
def test_monitor_verdict_is_dropped_if_no_longer_valid(claim: Claim, clean: bool) -> None:
    assert diagnose(_killed_at_once(claim, clean=clean)).verdict.value == "healthy"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (_said(15.0), ("missing_rank", (1,))),
        (_said(15.0, verdict="quiescent", culprits=()), ("quiescent", ())),
    ],
)
def test_stuck_verdict_yields_to_the_monitors_culprit(
    said: Claim, expected: tuple[str, tuple[int, ...]]
) -> None:
    """The target of a remote call is visible only while the processes live."""
    found = diagnose(_killed_at_once(said, stood_s=30.0))
    assert (found.verdict.value, found.culprits) == expected
    assert found.summary.startswith("Rank 1 never came") == bool(expected[1])


@pytest.mark.parametrize("goes_on", [True, False])
def test_standstill_that_the_job_overcame_is_a_note(goes_on: bool) -> None:
    """A link that was cut for longer than the timeout and came back."""
    cut = replace(_said(2.0, verdict="rank_lost"), text="Host node1 fell silent")
    trace = _killed_at_once(cut, clean=True)
    records = trace.records
    middle_ns = int(np.median(records["created_ns"]))
    if not goes_on:  # one rank has issued nothing since
        records = records[(records["rank"] != 1) | (records["created_ns"] <= middle_ns)]
        assert set(records["rank"]) == {0, 1, 2}
    trace = replace(trace, records=records, claims=(replace(cut, at_ns=middle_ns),))
    note = "HangScope said while the job ran: Host node1 fell silent; the job has gone on since"
    assert (note in diagnose(trace).notes) == goes_on


def test_first_of_several_verdicts_since_the_standstill_counts() -> None:
    said = (_said(2.5, culprits=(0,)), _said(2.0), _said(0.0001, culprits=(2,)))
    trace = replace(_killed_at_once(said[0]), claims=said)
    assert diagnose(trace).culprits == (1,)


def test_remaining_evidence_precedes_the_monitor_verdict() -> None:
    job = Job(3)
    job.steps(4)
    for rank in (0, 1):
        job.op(rank, done=False)
    assert diagnose(job.trace(claims=(_said(2.0),))).culprits == (2,)


def _waiting_for_a_lost_rank(*claims: Claim) -> Trace:
    """Ranks 1 and 2 wait for rank 0, of which only the journal tells."""
    job = Job(3)
    job.steps(4)
    for rank in (1, 2):
        job.op(rank, done=False)
    for rank in range(3):
        at_ns = START + int((job.now + 30.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=at_ns))
    sources = [Source(f"rank_{r}.ring", formats.RING, "1", r, 5) for r in (1, 2)]
    trace = job.trace(sources=(*sources, Source("monitor.journal", formats.JOURNAL, rank=0)))
    records = trace.records[trace.records["rank"] != 0]
    return replace(trace, records=records, claims=claims)


@pytest.mark.parametrize(
    ("claims", "verdict", "culprits"),
    [
        ((), "rank_lost", (0,)),
        ((_said(2.0),), "missing_rank", (1,)),
        ((_said(2.0, verdict="shape_mismatch", culprits=(0,)),), "shape_mismatch", (0,)),
        ((_said(2.0, verdict="deadlock_cycle", culprits=(0, 1, 2)),), "deadlock_cycle", (0, 1, 2)),
    ],
    ids=["nothing said", "another rank", "what the lost rank did", "everybody"],
)
def test_lost_ring_accuses_no_rank_that_the_monitor_had_read(
    claims: tuple[Claim, ...], verdict: str, culprits: tuple[int, ...]
) -> None:
    found = diagnose(_waiting_for_a_lost_rank(*claims))
    assert (found.verdict.value, found.culprits) == (verdict, culprits)
    assert len(found.findings) == 1
    assert "ranks 1, 2 wait in all_reduce #5" in " ".join(found.findings[0].evidence)
    assert found.confidence.value == "likely"
