"""Others that are told to stop after one has ended of it: at one moment, or one after the other."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.stop_signals import AT_ONCE_S, StopSignals

TERM = signal.SIGTERM
RANK_OF = {101: 1, 102: 2, 103: 3}


class _Seen(ProcessWatch):
    """What each look sees, and when; a look takes no time."""

    def __init__(self, looks: Sequence[tuple[float, set[int]]]) -> None:
        super().__init__()
        self._looks = list(looks)
        self._looked_s: float | None = None

    def clock(self) -> float:
        """The time of the look that was just made, then that of the next one."""
        now_s, self._looked_s = self._looked_s, None
        return self._looks[0][0] if now_s is None else now_s

    def unsignalled(self, number: int) -> list[tuple[int, int]]:
        assert number == TERM
        self._looked_s, pids = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return [(RANK_OF[pid], pid) for pid in sorted(pids)]


def _after(looks: Sequence[tuple[float, set[int]]], *, others: int) -> list[tuple[int, int]] | None:
    """What is known when the second has ended, after so many looks in between."""
    seen = _Seen(looks)
    telling = StopSignals(seen, clock=seen.clock)
    assert telling.first_ended(TERM) == [(1, 101), (2, 102), (3, 103)]
    assert telling.is_watched
    for _ in range(others):
        telling.look()
    found = telling.second_ended()
    assert not telling.is_watched
    return found


ALL = {101, 102, 103}


def test_a_launcher_tells_all_at_one_moment() -> None:
    assert _after([(0.0, ALL), (0.05, ALL), (0.053, set())], others=1) == []


def test_the_second_may_end_long_after_it_was_told() -> None:
    """Python needs a while to go, more so on a busy machine; looks go on meanwhile."""
    assert _after([(0.0, ALL), (0.05, ALL), (0.053, set()), (0.2, set())], others=2) == []


def test_somebody_tells_one_after_the_other() -> None:
    left = _after([(0.0, ALL), (0.01, ALL), (0.02, {102, 103}), (0.03, {103})], others=2)
    assert left == [(3, 103)]


def test_all_are_told_by_the_time_the_second_ends_and_not_at_once() -> None:
    looks = [(0.0, ALL), (0.01, ALL), (0.02, {102, 103}), (0.04, {103}), (0.06, set())]
    assert _after(looks, others=3) is None


def test_nobody_looked_for_longer_than_tells_them_apart() -> None:
    """The machine is busy: how they were told in between is not known."""
    assert _after([(0.0, ALL), (0.01, ALL), (0.01 + 3 * AT_ONCE_S, set())], others=1) is None


def test_who_fails_as_it_loses_the_first_was_not_told() -> None:
    seen = _Seen([(0.0, ALL), (0.05, ALL), (0.06, {102, 103}), (0.1, {102, 103}), (0.102, set())])
    telling = StopSignals(seen, clock=seen.clock)
    telling.first_ended(TERM)
    assert telling.is_watched
    for _ in range(3):
        telling.look()
    telling.discard(101)
    assert telling.second_ended() == []


@pytest.mark.parametrize(("untold", "watched"), [(ALL, True), (set(), False)])
def test_it_is_watched_only_where_somebody_is_left_to_tell(untold: set[int], watched: bool) -> None:
    seen = _Seen([(0.0, untold)])
    telling = StopSignals(seen, clock=seen.clock)
    telling.first_ended(TERM)
    assert telling.is_watched is watched
