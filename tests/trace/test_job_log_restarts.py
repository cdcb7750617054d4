"""Logs of several attempts of one job without a line that says so."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from tests.diagnosis.test_final_tracebacks import REDUCE, TIMED_OUT, gave_up
from tests.trace.logs import timeout, trace_of

API = "torch/distributed/elastic/multiprocessing/api.py"


def stopped(worker: int, agent: int = 700) -> str:
    head = f"W1121 15:11:47.305000 {agent} {API}:1028]"
    return f"{head} Sending process {worker} closing signal SIGTERM\n"


def failed(worker: int, code: int = 1, local: int = 1, agent: int = 700) -> str:
    return (
        f"E1121 15:11:47.338000 {agent} {API}:1002] failed (exitcode: {code}) local_rank: {local} "
        f"(pid: {worker}) of binary: /usr/bin/python\n"
    )


RAISED = gave_up(1, REDUCE, "ValueError: corrupt shard 17")
FIRST = RAISED + stopped(830) + stopped(832) + failed(831)
SECOND = gave_up(0, REDUCE, TIMED_OUT) + gave_up(1, REDUCE, TIMED_OUT)


def test_newest_attempt_is_reported_if_one_agent_stops_other_workers() -> None:
    trace = trace_of("world_size=3\n" + FIRST + SECOND + stopped(842) + failed(840, local=0))
    assert any("1 earlier attempt" in text for text in trace.warnings)
    found = diagnose(trace)
    assert "corrupt shard" not in found.summary
    assert found.culprits != (1,)


@pytest.mark.parametrize(
    "rest",
    [
        stopped(842, agent=900) + failed(840, agent=900),
        stopped(832) + failed(831),
        "",
    ],
    ids=["another node's agent", "the same workers", "the end"],
)
def test_single_attempt_stays_one(rest: str) -> None:
    trace = trace_of("world_size=3\n" + FIRST + rest)
    assert not any("attempt" in text for text in trace.warnings)
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def test_log_with_explicit_restarts_is_cut_once() -> None:
    said = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    trace = trace_of(FIRST + said + SECOND + stopped(842) + failed(840))
    assert any("1 earlier attempt" in text for text in trace.warnings)


def test_lines_of_a_long_attempt_keep_their_order() -> None:
    text = FIRST + "".join(
        f"[rank0]:[E ProcessGroupNCCL.cpp:1] Timeout {n}\n" for n in range(30_000)
    )
    found = diagnose(trace_of("world_size=3\n" + text + stopped(842) + failed(840)))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def test_lines_after_a_ranks_timeout_are_of_another_job() -> None:
    first = "world_size=4\n" + "".join(timeout(rank, 78) for rank in (0, 1, 2))
    later = "".join(timeout(rank, 50) for rank in (0, 1, 3)).replace("12:10:01", "13:40:01")
    trace = trace_of(first + later)
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))
    assert any("holds 1 earlier attempt" in warning for warning in trace.warnings)
    at_once = later.replace("13:40:01", "12:11:30")  # had begun before the others gave up
    assert not any("earlier attempt" in line for line in trace_of(first + at_once).warnings)


def started(clock: str, agent: int) -> str:
    return (
        f"W816 {clock}.000000 {agent} site-packages/torch/distributed/run.py:793] Setting "
        "OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    ).replace("W816", "W0816")


def ended(clock: str, agent: int, code: int) -> str:
    return failed(agent + 1, code, 0, agent).replace("E1121 15:11:47", f"E0816 {clock}")


def node(first: int, agent: int, others: str) -> str:
    code = 1 if others else -6
    waits = "".join(timeout(rank, 78) for rank in range(first, first + (1 if others else 2)))
    return started("11:50:00", agent) + waits + others + ended("12:10:02", agent, code)


@pytest.mark.parametrize("turned", [False, True])
def test_logs_of_nodes_one_after_the_other_are_one_attempt(turned: bool) -> None:
    """The second node's launcher had started before the first node's processes ended."""
    logs = [node(0, 700, ""), node(2, 900, gave_up(3, REDUCE, "ValueError: corrupt shard 17"))]
    trace = trace_of("".join(reversed(logs) if turned else logs))
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert not trace.warnings
    assert diagnose(trace).culprits == (3,)


def test_a_start_after_watchdogs_gave_up_is_another_job() -> None:
    """The first was killed while it hung, which left nothing in the log."""
    first = started("11:50:00", 700) + "".join(timeout(rank, 78) for rank in range(4))
    second = started("12:30:00", 800) + gave_up(1, REDUCE, "ValueError: corrupt shard 17")
    trace = trace_of(first + second)
    assert any("1 earlier attempt" in text for text in trace.warnings)
    found = diagnose(trace)
    assert found.culprits == (1,)
    assert "#78" not in found.summary
