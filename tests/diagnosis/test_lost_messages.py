"""Jobs that end well although a message was never received, or taken for another one."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.diagnosis.builder import Job
from tests.diagnosis.ended_jobs import finished


def exchanged(sent: int, received: int, *, ended: bool = True, **facts: object) -> Diagnosis:
    """The diagnosis after rank 0 has sent rank 1 messages, in steps of one each."""
    job = Job(3)
    for step in range(max(sent, received)):
        if step < sent:
            job.op(0, "send", peer=1)
        if step < received:
            job.op(1, "recv", peer=0)
        job.all()
    for rank in range(3):
        if ended:
            finished(job, rank, at_s=2)
        job.rank(rank, **facts)
    return diagnose(job.trace())


@pytest.mark.parametrize(("sent", "received"), [(12, 11), (11, 12)])
def test_remark_names_both_ranks_and_counts(sent: int, received: int) -> None:
    found = exchanged(sent, received)
    assert (found.verdict.value, found.culprits) == ("healthy", ())
    (note,) = found.notes
    assert note.startswith(f"rank 0 sent rank 1 {sent} messages in")
    assert f"which received {received}:" in note


def test_nothing_is_said_if_all_was_received() -> None:
    assert exchanged(12, 12).notes == ()


def test_nothing_is_said_while_more_may_come() -> None:
    assert not any("messages" in note for note in exchanged(12, 11, ended=False).notes)


def test_nothing_is_said_if_the_beginning_is_overwritten() -> None:
    assert exchanged(12, 11, oldest_record_id=7).notes == ()


def test_receive_from_any_source_may_have_taken_it() -> None:
    job = Job(3)
    for _ in range(3):
        job.op(0, "send", peer=1)
        job.op(1, "recv", peer=-1)
        job.all()
    for rank in range(3):
        finished(job, rank, at_s=2)
    assert diagnose(job.trace()).notes == ()
