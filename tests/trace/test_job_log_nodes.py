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


@pytest.mark.parametrize("code", [-9, 1, -11])
@pytest.mark.parametrize("silent", [2, 6])
def test_of_a_number_on_two_nodes_the_silent_one_ended(code: int, silent: int) -> None:
    """Rank 6 had given up waiting where rank 2 was killed, and was called killed."""
    heard = tuple(rank for rank in range(8) if rank != silent)
    found = diagnose(trace_of(gave_up(heard) + ENDED.format(code=code, local=2)))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (silent,))
    assert found.confidence.value == "likely"


def test_where_all_of_that_number_gave_up_none_is_said_to_have_failed() -> None:
    found = diagnose(trace_of(gave_up(tuple(range(8))) + ENDED.format(code=1, local=2)))
    assert found.culprits == ()


def test_a_guessed_rank_that_had_given_up_is_not_the_one_that_ended() -> None:
    """Nothing says that there are two nodes, but rank 1 told of its own timeout."""
    text = "".join(timeout(rank, 7) for rank in (0, 1, 2, 3, 4, 6, 7))
    found = diagnose(trace_of(text + ENDED.format(code=-9, local=1)))
    assert 1 not in found.culprits


def test_a_log_of_the_second_node_alone_speaks_of_its_own_ranks() -> None:
    text = (
        gave_up((4, 5, 7)) + "[default2]:[rank6]:[W816 11:00:00.100000001 ProcessGroupNCCL.cpp:4]"
    )
    found = diagnose(trace_of(text + " hello\n" + ENDED.format(code=-9, local=2)))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (6,))
