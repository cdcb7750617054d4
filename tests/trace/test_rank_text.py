"""Compressed lists of ranks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.trace.rank_text import compress, named


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([2], "2"),
        ([0, 1], "0 1"),
        ([5, 0, 1, 3, 2, 3], "0–3 5"),
        ([0, 1, 3], "0 1 3"),
        (range(8192), "0–8191"),
        (range(0, 64, 8), "0–56:8"),
        ([0, 2, 4, 5, 6, 7], "0 2 4–7"),
        ([0, 8, 16], "0 8 16"),
    ],
)
def test_runs_of_ranks_are_compressed(ranks: list[int], text: str) -> None:
    assert compress(ranks) == text


@given(st.sets(st.integers(0, 300)))
def test_no_rank_is_lost(ranks: set[int]) -> None:
    back: set[int] = set()
    for part in compress(ranks).split():
        first, last, step = re.fullmatch(r"(\d+)(?:–(\d+))?(?::(\d+))?", part).groups()  # type: ignore[union-attr]
        back.update(range(int(first), int(last or first) + 1, int(step or 1)))
    assert back == ranks


@given(st.sets(st.integers(0, 9000), min_size=1), st.integers(20, 60))
def test_limit_is_kept_and_the_rest_counted(ranks: set[int], limit: int) -> None:
    text = compress(ranks, limit)
    assert len(text) <= limit
    if "…" in text:
        shown, rest = text.split(" … +")
        assert compress(ranks).startswith(shown)
        assert 0 < int(rest) < len(ranks)


def test_ranks_are_named_in_singular_and_plural() -> None:
    assert named([2]) == "rank 2"
    assert named([2, 3]) == "ranks 2 3"
    assert named([]) == "no rank"
