"""Hangs over Gloo without a recorder: what the final tracebacks of the timed-out ranks show."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from tests.diagnosis.tracebacks import (
    BARRIER,
    C10D,
    CLOSED,
    KEY,
    MAKING,
    REDUCE,
    STORE,
    TIMED_OUT,
    Frames,
    gave_up,
    in_finally,
    judged,
    table,
)
from tests.trace.logs import trace_of

RECV = (("/job/train.py", 61, "halo"), (C10D, 2500, "recv"))

BROADCAST = (("/job/train.py", 70, "config"), (C10D, 2900, "broadcast"))

FORWARD = (
    ("/job/train.py", 33, "evaluate"),
    ("/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", 1782, "_pre_forward"),
)


def test_rank_waiting_in_another_collective_is_named() -> None:
    found = judged({0: REDUCE, 1: BARRIER, 2: REDUCE, 3: REDUCE})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert found.confidence.value == "likely"
    assert "ranks 0, 2, 3 waited in all_reduce (train.py:40 in step)" in found.summary.lower()
    assert "rank 1 in barrier (train.py:52 in save)" in found.summary


def test_nobody_is_named_where_all_have_lost_a_connection() -> None:
    """A fourth rank was killed: where it left the others is no difference between them."""
    closed = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9"
    waits = {0: REDUCE, 1: REDUCE, 2: BARRIER}
    text = "".join(gave_up(rank, frames, closed) for rank, frames in waits.items())
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_rank_stopped_without_having_waited_is_missing() -> None:
    found = judged({0: REDUCE, 1: REDUCE, 3: REDUCE})
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_rank_in_no_launcher_list_had_exited_cleanly() -> None:
    waits = dict.fromkeys((0, 1, 2, 3, 5), REDUCE)
    found = judged(waits, 6, codes=dict.fromkeys(waits, 1))
    assert (found.verdict.value, found.culprits) == ("rank_exited", (4,))
    assert "status 0" in found.summary


def test_rank_in_another_collective_and_silent_rank_are_both_named() -> None:
    waits = dict.fromkeys(range(6), REDUCE) | {6: BARRIER}
    found = judged(waits, 8)
    assert (found.culprits, found.confidence.value) == ((6, 7), "ambiguous")


def test_broken_pair_in_the_forward_pass_is_no_own_failure() -> None:
    text = gave_up(0, FORWARD, CLOSED) + "".join(gave_up(r, BARRIER) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert "rank 0 in forward (train.py:33 in evaluate)" in found.summary


def test_rank_not_waiting_for_a_store_key_has_not_set_it() -> None:
    text = gave_up(0, REDUCE) + "".join(gave_up(r, STORE, KEY) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))


@pytest.mark.parametrize(
    ("waits", "world"),
    [
        ({0: REDUCE, 1: REDUCE, 2: REDUCE, 3: REDUCE}, 4),
        ({0: REDUCE, 1: REDUCE, 2: RECV, 3: REDUCE}, 4),
        ({0: BROADCAST, 1: BROADCAST, 2: REDUCE, 3: BROADCAST, 4: BROADCAST, 5: REDUCE}, 6),
        ({0: REDUCE, 1: REDUCE, 2: BARRIER, 3: BARRIER}, 4),
        ({0: BARRIER, 1: BARRIER, 2: BARRIER, 3: MAKING}, 4),
        ({0: REDUCE, 1: REDUCE, 2: REDUCE}, 6),
        ({0: REDUCE, 1: BARRIER}, 2),
    ],
    ids=[
        "all at one",
        "a pair",
        "one that some finish alone",
        "halves",
        "a new group",
        "half silent",
        "two",
    ],
)
def test_report_without_culprit_shows_where_ranks_waited(
    waits: dict[int, Frames], world: int
) -> None:
    found = judged(waits, world)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("rank" in line and "waited in" in line for line in found.findings[0].evidence)


def test_root_and_member_branches_are_one_call() -> None:
    root = (("/job/train.py", 68, "config"), (C10D, 2900, "broadcast"))
    found = judged({0: root, 1: BROADCAST, 2: BROADCAST, 3: BROADCAST})
    assert found.verdict.value == "inconclusive"


BROKEN = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:80"


@pytest.mark.parametrize(
    "waits",
    [{0: REDUCE, 1: BARRIER}, {0: BROADCAST, 1: BROADCAST}, {0: RECV, 1: RECV}],
    ids=["two calls", "finished alone", "a pair"],
)
def test_silent_one_of_three_ranks_is_not_always_missing(
    waits: dict[int, Frames],
) -> None:
    assert judged(waits, 3).verdict.value == "inconclusive"


def test_rank_silent_while_connections_close_had_ended() -> None:
    """No timeouts and no launcher report: nothing shows that it was alive."""
    text = "".join(gave_up(r, REDUCE, BROKEN) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text))
    assert (found.verdict.value, found.culprits) == ("rank_lost", (1,))
    assert "alive" not in found.summary


def test_traceback_after_another_ranks_log_line_is_read() -> None:
    text = "overwrite? [y/N] " + gave_up(1, REDUCE) + gave_up(2, REDUCE)
    found = diagnose(trace_of("world_size=3\n" + text + table({0: -15, 1: 1, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))


def test_rank_that_timed_out_in_another_thread_was_not_silent() -> None:
    waits = dict.fromkeys((0, 1, 3), BARRIER)
    text = "".join(gave_up(rank, frames) for rank, frames in waits.items())
    # Two threads of rank 2 time out at once, and their messages are interleaved.
    cut = (
        "[rank2]: Traceback (most recent call last):\n"
        "[rank2]: Exception in thread saver:\n"
        + gave_up(2, REDUCE)
        + "[rank2]:     dist.barrier()\n"
    )
    codes = dict.fromkeys(range(4), 1) | {2: -15}
    found = diagnose(trace_of("world_size=4\n" + text + cut + table(codes)))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_silent_one_of_three_exited_cleanly_if_connections_closed() -> None:
    text = "".join(gave_up(r, REDUCE, BROKEN) for r in (0, 2))
    found = diagnose(trace_of("world_size=3\n" + text + table({0: 1, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("rank_exited", (1,))


REFUSED = "RuntimeError: ProcessGroupGloo::scatter: Incorrect input list size 2"


def test_refused_call_is_an_error_of_its_caller() -> None:
    scatter = (("/job/train.py", 80, "share"), (C10D, 4700, "scatter"))
    text = in_finally(0, scatter, REFUSED)
    text += "".join(in_finally(r, scatter, TIMED_OUT) for r in (1, 2))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0,))
    assert "Incorrect input list size" in found.summary


def test_reasons_that_differ_only_in_an_address_are_equal() -> None:
    refused = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: refused, [::1]:"
    text = "".join(gave_up(9, MAKING, f"{refused}{port}", prefix=False) for port in (4001, 4002))
    found = diagnose(trace_of("world_size=3\n" + text + table({0: 1, 1: 1, 2: -15})))
    assert found.verdict.value != "rank_crashed"


def test_bare_exit_status_beside_timeouts_of_all_others_is_at_most_likely() -> None:
    """Connections to a rank that exits are closed, so ranks that timed out waited for a live
    one."""
    found = judged(dict.fromkeys((0, 2, 3), REDUCE), codes={0: 1, 1: 1, 2: -15, 3: 1})
    assert found.confidence.value != "certain"


def test_silent_rank_beside_a_size_clash_may_have_been_aborted() -> None:
    """Gloo aborts the rank that gets more than it asked for, and prints no rank."""
    clash = "  what():  [enforce fail at x.cc:446] op.preamble.length <= op.nbytes. 40 vs 32\n"
    text = "".join(gave_up(rank, REDUCE, CLOSED) for rank in (0, 2, 3))
    lost = diagnose(trace_of("world_size=4\n" + text))
    assert lost.culprits == (1,)
    found = diagnose(trace_of("world_size=4\n" + text + clash))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_gloo_rank_that_aborted_broke_the_connections_of_the_others() -> None:
    """Gloo has no watchdog: no rank timed out or received more than it asked for."""
    broke = (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:530] Connection closed by peer [127.0.0.1]:1"
    )
    codes = {0: -15, 1: -6, 2: -15, 3: -15}
    text = "world_size=4\n" + "".join(gave_up(r, REDUCE, broke) for r in (0, 2)) + table(codes)
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))
    assert found.confidence.value == "likely"
    for told in (
        text.replace("-15", "-6"),  # several aborted
        text + gave_up(3, REDUCE),  # one had waited for its timeout
        text + "terminate called: op.preamble.length <= op.nbytes. 64 vs 32\n",
    ):
        assert diagnose(trace_of(told)).verdict.value != "rank_crashed"


def test_last_exception_ended_a_rank_unless_it_was_a_wait() -> None:
    """A signal about a dead worker may arrive while another error is being handled."""
    worker = (("/job/train.py", 19, "step"), ("/env/lib/python3.11/connection.py", 395, "_recv"))
    during = "\n[rank2]: During handling of the above exception, another exception occurred:\n\n"
    text = gave_up(2, worker, "ConnectionResetError: [Errno 104] Connection reset by peer") + during
    text += gave_up(
        2, worker, "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
    )
    text += "".join(gave_up(rank, REDUCE, CLOSED) for rank in (0, 1))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "DataLoader worker" in found.summary


def test_bare_exit_status_may_belong_to_a_timed_out_rank() -> None:
    """The program prints what it caught, without its rank, and exits with status 1."""
    words = f"training failed, {TIMED_OUT!r}\n"
    for codes in ({0: -15, 1: -15, 2: 1}, {0: 1, 1: -15, 2: 1}):
        found = diagnose(trace_of("world_size=3\n" + words + table(codes)))
        assert (found.verdict.value, found.culprits) == ("inconclusive", ())
        assert "timed out" in found.summary
    found = diagnose(trace_of("world_size=3\n" + table({0: -15, 1: -15, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
