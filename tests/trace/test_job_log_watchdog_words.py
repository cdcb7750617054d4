"""Single watchdog sentences, and sentences that only look like them."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.observability import partly_recorded
from hangscope.trace.model import Claim
from tests.trace.logs import trace_of

_HEAD = "[rank{r}]:[E816 12:10:03.111111111 ProcessGroupNCCL.cpp:700] "
_LABEL = "[PG ID 0 PG GUID 0(default_pg) Rank {r}] "
_PREPARES = "ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"
_GIVES_UP = "To avoid data inconsistency, we are taking the entire process down.\n"
_OBSERVED = "Observed flight recorder dump signal from another rank via TCPStore.\n"


def _said(*sentences: str, rank: int = 2) -> str:
    return "".join((_HEAD + _LABEL).format(r=rank) + sentence for sentence in sentences)


def _claims(text: str, kind: str) -> list[Claim]:
    return [claim for claim in trace_of(text).claims if claim.kind == kind]


@pytest.mark.parametrize("sentence", [_PREPARES, _GIVES_UP])
def test_rank_that_dumps_or_times_out_has_waited_in_an_unknown_operation(sentence: str) -> None:
    assert partly_recorded(trace_of(_said(sentence))) == {2}


@pytest.mark.parametrize(
    "sentence",
    [
        "ProcessGroupNCCL preparing the dump of its settings\n",
        "ProcessGroupNCCL is going to dump debug info\n",
        "the entire process took 3 s of work\n",
    ],
)
def test_other_process_group_messages_show_no_wait(sentence: str) -> None:
    assert partly_recorded(trace_of(_said(sentence))) == frozenset()


def test_timeout_of_a_rank_is_recorded_once() -> None:
    """A rank that has printed that it dumps has timed out already."""
    gave_up = [c.reporter for c in _claims(_said(_GIVES_UP), "other") if c.details.gave_up]
    assert gave_up == [2]
    both = _claims(_said(_PREPARES, _GIVES_UP), "other")
    assert not any(c.details.gave_up for c in both)


def test_writer_without_a_rank_times_out_as_well() -> None:
    (claim,) = _claims(_HEAD[11:] + _GIVES_UP, "other")
    assert (claim.reporter, claim.details.gave_up) == (None, True)
    assert partly_recorded(trace_of(_HEAD[11:] + _GIVES_UP)) == frozenset()


@pytest.mark.parametrize(
    ("sentence", "reporters"),
    [
        (_OBSERVED, [2]),
        ("Observed a slow collective and no signal\n", []),
        ("A flight recorder dump signal from another rank is sent\n", []),
    ],
)
def test_rank_asked_for_a_dump_has_not_asked(sentence: str, reporters: list[int]) -> None:
    assert [claim.reporter for claim in _claims(_said(sentence), "dump_signal")] == reporters


@pytest.mark.parametrize(
    ("tag", "op"),
    [
        ("", None),
        (" tag[AllReduce_10.1.2.3]", "all_reduce"),
        (" tag[SomethingElse]", "something_else"),
    ],
)
def test_hccl_shows_the_operation_by_its_tag(tag: str, op: str | None) -> None:
    words = "The Notify register has not received the Notify record from remote rank [3]."
    (claim,) = _claims(_said(f"{words}{tag}\n"), "timeout")
    assert (claim.reporter, claim.op, claim.certain) == (2, op, False)


def test_received_notify_register_shows_nothing() -> None:
    assert not _claims(_said("The Notify register has received the Notify record\n"), "timeout")


@pytest.mark.parametrize(
    ("sentence", "timeouts"),
    [
        ("Work ran time out after 3009 milliseconds.\n", 1),
        ("Work ran some time after 3009 milliseconds.\n", 0),
    ],
)
def test_work_past_its_time_limit_is_a_timeout(sentence: str, timeouts: int) -> None:
    assert len(_claims(_said(sentence), "timeout")) == timeouts
