"""Jobs told to stop in which not every rank ends, or shows the signal, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Phase

from .builder import SECOND, START, Job, blame

CLOSED = ("RuntimeError", "Connection closed by peer [::1]:4711")


def _job(*, live: bool = False) -> Job:
    job = Job(4, live=live)
    job.steps(6)
    for rank in range(4):
        job.rank(rank, host="n0")
    return job


def _at(job: Job, after_s: float) -> int:
    return START + int((job.now + after_s) * SECOND)


def _killed(job: Job, rank: int, after_s: float, signal: int = 15, *, answer: bool = False) -> None:
    at_ns = _at(job, after_s)
    exit_ = ExitFacts("signal", signal=signal, at_ns=at_ns, by_launcher=answer)
    job.rank(rank, alive=False, exit=exit_, heartbeat_ns=at_ns)


def _told(job: Job, ranks: Sequence[int], after_s: float) -> None:
    """SIGTERM; a monitor takes all but the first for a launcher's answer to the first."""
    for index, rank in enumerate(ranks):
        _killed(job, rank, after_s + 0.03 * index, answer=index > 0)


def _answered(
    job: Job, first: int, ranks: Sequence[int], untold: Sequence[set[int]], apart_s: float = 0.03
) -> None:
    """SIGTERM to ``first`` and, a little later, to ``ranks``; who was still untold at each end."""
    for index, rank in enumerate((first, *ranks)):
        at_ns = _at(job, 0.1 + apart_s * index)
        exit_ = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=index > 0)
        if index < len(untold):
            exit_ = replace(exit_, not_signalled=frozenset(untold[index]))
        job.rank(rank, alive=False, exit=exit_, heartbeat_ns=at_ns)


def _raised(job: Job, rank: int, after_s: float, error: tuple[str, str] = CLOSED) -> None:
    at_ns = _at(job, after_s)
    stack = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    exception = ExceptionFacts(*error, stack, at_ns)
    job.rank(rank, alive=False, exit=ExitFacts("exception", 1, at_ns=at_ns), exception=exception)


@pytest.mark.parametrize("live", [False, True])
def test_rank_saving_after_all_were_signalled_makes_no_other_the_first_failure(live: bool) -> None:
    """Its handler takes eight seconds; then the scheduler kills it."""
    job = _job(live=live)
    _told(job, (3, 0, 1), 0.4)
    if not live:
        _killed(job, 2, 8.0, 9)
    assert blame(diagnose(job.trace(8.0))) == ("healthy", ())


def test_rank_ignoring_the_signal_fails_as_it_loses_the_others() -> None:
    """It had issued the next collective, which breaks before the exits of the others are
    noticed."""
    job = _job()
    job.op(2, done=False)
    _told(job, (1, 3, 0), 0.1)
    _raised(job, 2, 0.09)
    assert blame(diagnose(job.trace())) == ("healthy", ())


def test_failure_before_the_signal_caused_it() -> None:
    job = _job()
    job.all(done=False)
    _raised(job, 1, 0.1, ("ValueError", "bad sample"))
    _told(job, (0, 2, 3), 0.15)
    assert blame(diagnose(job.trace())) == ("rank_crashed", (1,))


def test_fault_noticed_together_with_its_answer_comes_first() -> None:
    job = _job()
    job.all(done=False)
    _killed(job, 1, 0.15, 11)
    _told(job, (0, 2, 3), 0.15)
    assert blame(diagnose(job.trace())) == ("rank_crashed", (1,))


@pytest.mark.parametrize("answered_s", [0.05, 0.2])
def test_rank_signalled_alone_is_named(answered_s: float) -> None:
    """Most others raise; the launcher's answer reaches one that was in no collective."""
    job = _job()
    job.all(done=False)
    _killed(job, 1, 0.1)
    _raised(job, 0, 0.08)
    _raised(job, 2, 0.11)
    _killed(job, 3, 0.1 + answered_s, answer=True)
    assert blame(diagnose(job.trace())) == ("rank_crashed", (1,))


def test_rank_ended_alone_may_have_been_signalled_with_those_killed_later() -> None:
    """The others have a handler."""
    job = _job()
    job.all(done=False)
    _killed(job, 1, 0.1)
    for rank in (0, 2, 3):
        _killed(job, rank, 8.0, 9)
    found = diagnose(job.trace())
    assert blame(found) == ("rank_crashed", (1,))
    assert found.confidence is Confidence.LIKELY
    assert "may have been told to stop, too" in found.findings[0].unknowns[0]


@pytest.mark.parametrize(
    ("untold", "named"),
    [
        ([{0, 2, 3}, set()], (1,)),  # nobody had been told, then all: that answered its end
        ([{0, 2, 3}, {2, 3}], ()),  # somebody stops one after the other
        ([{2, 3}, set()], ()),  # one of them had been told with it
        ([{0, 2, 3}], ()),  # nobody looked again
        ([], ()),
    ],
)
def test_rank_ended_before_others_were_signalled_was_signalled_alone(
    untold: list[set[int]], named: tuple[int, ...]
) -> None:
    """The kernel lists a signal as pending, or its process as exiting, from when it was sent."""
    job = _job()
    job.all(done=False)
    _answered(job, 1, (2, 0, 3), untold)
    found = diagnose(job.trace())
    assert blame(found) == ("rank_crashed" if named else "healthy", named)
    assert not named or found.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    ("untold", "named"),
    [
        ([{0, 3}, set()], ()),  # one had been told with it, and two not yet
        ([{0, 2, 3}, {3}], ()),
        ([{0, 2, 3}, set()], (1,)),
        ([set(), set()], ()),  # all had been told when the first was seen to have ended
    ],
)
def test_signals_sent_one_by_one_may_take_longer(
    untold: list[set[int]], named: tuple[int, ...]
) -> None:
    """Longer than processes signalled at one moment take to exit."""
    job = _job()
    job.all(done=False)
    _answered(job, 1, (2, 0, 3), untold, apart_s=0.2)
    assert blame(diagnose(job.trace())) == ("rank_crashed" if named else "healthy", named)


@pytest.mark.parametrize(("told", "named"), [({2}, ()), (set(), (1,))])
def test_rank_signalled_that_fails_on_losing_the_first_was_signalled(
    told: set[int], named: tuple[int, ...]
) -> None:
    """Two raise; a third had not been signalled yet when the first had exited."""
    job = _job()
    job.all(done=False)
    at_ns = _at(job, 0.1)
    exit_ = ExitFacts(
        "signal", signal=15, at_ns=at_ns, not_signalled=frozenset({0, 3}), signalled=frozenset(told)
    )
    job.rank(1, alive=False, exit=exit_, heartbeat_ns=at_ns)
    _raised(job, 0, 0.08)
    _raised(job, 2, 0.09)
    _killed(job, 3, 0.25, answer=True)
    assert blame(diagnose(job.trace())) == ("rank_crashed" if named else "healthy", named)


@pytest.mark.parametrize(
    ("waited_s", "verdict"), [(0.1, Verdict.INCONCLUSIVE), (30.0, Verdict.STUCK_COLLECTIVE)]
)
def test_connections_breaking_at_once_are_no_hang(waited_s: float, verdict: Verdict) -> None:
    """One rank lost a peer before any had exited: the others were stopped for it."""
    job = _job()
    job.all(done=False)
    _raised(job, 3, waited_s)
    _told(job, (0, 1, 2), waited_s + 0.5)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (verdict, ())
    assert verdict is Verdict.STUCK_COLLECTIVE or found.confidence is Confidence.AMBIGUOUS


def test_first_rank_in_the_next_collective_did_not_issue_it_alone() -> None:
    """One was signalled alone while the others proceeded; they were stopped before they arrived."""
    job = _job()
    job.op(0, done=False)
    _answered(job, 3, (0, 2, 1), [{0, 1, 2}, set()])
    assert blame(diagnose(job.trace())) == ("rank_crashed", (3,))


@pytest.mark.parametrize(
    ("untold", "confidence"),
    [(None, Confidence.CERTAIN), ({0, 2, 3}, Confidence.CERTAIN), (set(), Confidence.LIKELY)],
)
def test_rank_ended_alone_may_have_been_signalled_with_those_with_handlers(
    untold: set[int] | None, confidence: Confidence
) -> None:
    """Live: the others still save, as far as can be observed."""
    job = _job(live=True)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    at_ns = _at(job, 0.1)
    heard = None if untold is None else frozenset(untold)
    job.rank(1, alive=False, exit=ExitFacts("signal", signal=15, at_ns=at_ns, not_signalled=heard))
    found = diagnose(job.trace(2.0))
    assert (*blame(found), found.confidence) == ("rank_crashed", (1,), confidence)


@pytest.mark.parametrize("told", [{0, 2, 3}, {0}])
def test_rank_observed_signalled_with_the_first_has_only_not_exited_yet(told: set[int]) -> None:
    """Live: a busy machine is slow, and the first to exit is as innocent as the others."""
    job = _job(live=True)
    at_ns = _at(job, 0.1)
    untold = frozenset({0, 2, 3} - told)
    exit_ = ExitFacts(
        "signal", signal=15, at_ns=at_ns, not_signalled=untold, signalled=frozenset(told)
    )
    job.rank(1, alive=False, exit=exit_)
    assert blame(diagnose(job.trace(0.2))) == ("healthy", ())


def test_several_ranks_outlived_by_the_others_were_signalled_alone() -> None:
    """No rank takes a minute to stop, and half of the job waits on."""
    job = _job(live=True)
    job.op(2, done=False)
    job.op(3, done=False)
    _told(job, (0, 1), 0.1)
    assert blame(diagnose(job.trace())) == ("rank_crashed", (0, 1))


def test_hang_before_the_signal_remains_a_hang() -> None:
    """A rank that waited and is killed last is no culprit."""
    job = _job()
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    _told(job, (1, 2, 3), 30.0)
    _killed(job, 0, 38.0, 9)
    assert blame(diagnose(job.trace())) == ("missing_rank", (2,))


def _starting(told_s: float) -> Job:
    """Ctrl-C reaches rank 1 before it has come to init_process_group; the others wait there, in
    C++, until they are killed."""
    job = Job(3, timeout_s=40.0)
    for rank in (0, 2):
        job.rank(rank, host="n0", phases=(Phase(INIT, START),))
        _killed(job, rank, told_s + 30.0, 9)
    at_ns = _at(job, told_s) + 7
    stack = (Frame("main", "/home/me/train.py", 58),)
    job.rank(
        1,
        host="n0",
        alive=False,
        exit=ExitFacts("exception", 1, signal=2, at_ns=at_ns),
        exception=ExceptionFacts("KeyboardInterrupt", "", stack, at_ns),
        phases=(Phase("interpreter exit", at_ns),),
    )
    return job


@pytest.mark.parametrize(
    ("told_s", "verdict"), [(45.0, ("missing_rank", (1,))), (5.0, ("healthy", ()))]
)
def test_ctrl_c_shows_first_where_python_runs(told_s: float, verdict: object) -> None:
    """Until then the others had waited for rank 1, or it was only slow to start."""
    assert blame(diagnose(_starting(told_s).trace())) == verdict


@pytest.mark.parametrize("exit_", [None, ExitFacts("exception", 1, at_ns=START + SECOND)])
def test_interrupted_rank_of_unseen_end_has_not_crashed(exit_: ExitFacts | None) -> None:
    """Live: it has recorded the interrupt, and its end has not been seen yet or shows no signal."""
    job = Job(3, live=True, timeout_s=40.0)
    for rank in (0, 2):
        job.rank(rank, host="n0", phases=(Phase(INIT, START),))
    at_ns = _at(job, 5.0) + 7
    interrupt = ExceptionFacts("KeyboardInterrupt", "", (Frame("main", "/me/train.py", 58),), at_ns)
    job.rank(1, host="n0", alive=False, exit=exit_, exception=interrupt)
    assert blame(diagnose(job.trace(5.1))) == ("healthy", ())
