"""The first line of a report: how far it may be trusted, and between whom it cannot decide."""

from __future__ import annotations

from hangscope.diagnosis.model import Confidence, Finding, Side, Verdict


def headline(culprits: tuple[int, ...], *sides: tuple[int, ...]) -> str:
    return Finding(
        Verdict.DEADLOCK_CYCLE,
        culprits,
        (),
        Confidence.AMBIGUOUS,
        "they wait for each other",
        sides=tuple(Side(ranks) for ranks in sides),
    ).headline


def test_ranks_that_did_the_same_are_one_alternative() -> None:
    found = headline((0, 1, 2, 3), (0, 1), (2, 3))
    assert found == "Either ranks 0, 1 or ranks 2, 3: they wait for each other"
    assert headline((0, 1, 2), (0,), (1, 2)).startswith("Either rank 0 or ranks 1, 2: ")


def test_without_sides_each_rank_is_one() -> None:
    assert headline((0, 1), (0,), (1,)).startswith("Either rank 0 or 1: ")
    assert headline((0, 1, 2), (0,), (2,)).startswith("Either rank 0 or 1 or 2: ")
    assert headline((0, 1, 2), (0, 1, 2)).startswith("Either rank 0 or 1 or 2: ")
