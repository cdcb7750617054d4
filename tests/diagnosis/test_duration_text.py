"""Durations as text."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.duration_text import duration, lasting


@pytest.mark.parametrize(
    ("seconds", "exact", "round_"),
    [
        (0.012, "12 ms", "12 ms"),
        (0.34, "0.3 s", "0.3 s"),
        (3.6, "3.6 s", "4 s"),
        (59.7, "1 min", "1 min"),
        (200.0, "3 min 20 s", "3 min 20 s"),
        (167648.0, "1 d 22 h", "1 d 22 h"),
    ],
)
def test_durations_over_an_hour_are_not_given_in_seconds(
    seconds: float, exact: str, round_: str
) -> None:
    assert (duration(seconds), lasting(seconds)) == (exact, round_)
