"""Local ranks in a log of several nodes, each of which has the same ones."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose

from .logs import timeout, trace_of

ENDED = (
    "E0816 12:11:06.000000 770 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: {code}) local_rank: {local} (pid: 803) of binary: /usr/bin/python\n"
)


def gave_up(ranks: tuple[int, ...], per_node: int = 4) -> str:
    """What torchrun lets through of ranks that timed out, with their numbers on their nodes."""
    return "".join(
        f"[default{rank % per_node}]:{line}\n"
        for rank in ranks
        for line in timeout(rank, 7).splitlines()
    )


@pytest.mark.parametrize(
    ("code", "verdict"), [(-9, "rank_crashed"), (1, "rank_lost"), (-11, "rank_crashed")]
)
@pytest.mark.parametrize("silent", [2, 6])
def test_silent_one_of_two_ranks_with_one_local_rank_ended(
    code: int, verdict: str, silent: int
) -> None:
    """Rank 6 had timed out when rank 2 was killed, and was reported as killed.

    Whoever leaves with a plain status after the timeouts may be anyone of its node.
    """
    heard = tuple(rank for rank in range(8) if rank != silent)
    found = diagnose(trace_of(gave_up(heard) + ENDED.format(code=code, local=2)))
    assert (found.verdict.value, found.culprits) == (verdict, (silent,))
    assert found.confidence.value == "likely"


def test_no_rank_has_failed_if_all_of_that_local_rank_timed_out() -> None:
    found = diagnose(trace_of(gave_up(tuple(range(8))) + ENDED.format(code=1, local=2)))
    assert found.culprits == ()


def test_guessed_rank_that_had_timed_out_is_not_the_one_that_ended() -> None:
    """Nothing shows that there are two nodes, but rank 1 printed its own timeout."""
    text = "".join(timeout(rank, 7) for rank in (0, 1, 2, 3, 4, 6, 7))
    found = diagnose(trace_of(text + ENDED.format(code=-9, local=1)))
    assert 1 not in found.culprits


def test_log_of_the_second_node_alone_is_about_its_own_ranks() -> None:
    text = (
        gave_up((4, 5, 7)) + "[default2]:[rank6]:[W816 11:00:00.100000001 ProcessGroupNCCL.cpp:4]"
    )
    found = diagnose(trace_of(text + " hello\n" + ENDED.format(code=-9, local=2)))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (6,))
