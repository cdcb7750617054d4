"""Two processes that claim one rank are reported once, and only if both keep claiming it."""

from __future__ import annotations

from hangscope.monitor.doubled_ranks import DOUBLED_S, DoubledRanks
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank


def pair(rank: int, second_pid: int = 8) -> DuplicateRank:
    return DuplicateRank(rank, ("machine", 7), ("machine", second_pid))


def test_claim_is_reported_once_it_has_lasted() -> None:
    ranks = DoubledRanks()
    assert ranks.news([pair(3)], 10.0) == []
    assert ranks.news([pair(3)], 10.0 + DOUBLED_S - 0.1) == []
    assert ranks.news([pair(3)], 10.0 + DOUBLED_S) == [pair(3).text]
    assert ranks.news([pair(3)], 60.0) == []


def test_claim_that_was_given_up_in_between_counts_from_its_return() -> None:
    ranks = DoubledRanks()
    ranks.news([pair(3)], 10.0)
    ranks.news([], 11.0)
    assert ranks.news([pair(3)], 13.0) == []
    assert ranks.news([pair(3)], 13.0 + DOUBLED_S) == [pair(3).text]


def test_third_process_of_a_rank_is_no_news_and_another_rank_is() -> None:
    ranks = DoubledRanks()
    both = [pair(3, 8), pair(3, 9), pair(4)]
    ranks.news(both, 10.0)
    assert ranks.news(both, 20.0) == [pair(3, 8).text, pair(4).text]
    assert ranks.news([*both, pair(3, 11)], 30.0) == []
    assert ranks.news([*both, pair(3, 11)], 40.0) == []
