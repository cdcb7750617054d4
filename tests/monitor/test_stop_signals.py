"""Stop signals to the others after a first rank has ended: all at once, or one after the other."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.stop_signals import AT_ONCE_S, StopSignals

TERM = signal.SIGTERM
RANK_OF = {101: 1, 102: 2, 103: 3}


class _Seen(ProcessWatch):
    """Fixed results of each look, and its time; a look takes no time."""

    def __init__(self, looks: Sequence[tuple[float, set[int]]]) -> None:
        super().__init__()
        self._looks = list(looks)
        self._looked_s: float | None = None

    def clock(self) -> float:
        """The time of the last look, then that of the next one."""
        now_s, self._looked_s = self._looked_s, None
        return self._looks[0][0] if now_s is None else now_s

    def unsignalled(self, number: int) -> list[tuple[int, int]]:
        assert number == TERM
        self._looked_s, pids = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return [(RANK_OF[pid], pid) for pid in sorted(pids)]


def _after(looks: Sequence[tuple[float, set[int]]], *, others: int) -> list[tuple[int, int]] | None:
    """The result when the second has ended, after these looks in between."""
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


def test_launcher_signals_all_at_once() -> None:
    assert _after([(0.0, ALL), (0.05, ALL), (0.053, set())], others=1) == []


def test_second_end_long_after_its_signal() -> None:
    """Python takes a while to exit, more so on a busy machine; looks continue meanwhile."""
    assert _after([(0.0, ALL), (0.05, ALL), (0.053, set()), (0.2, set())], others=2) == []


def test_signals_sent_one_after_another() -> None:
    left = _after([(0.0, ALL), (0.01, ALL), (0.02, {102, 103}), (0.03, {103})], others=2)
    assert left == [(3, 103)]


def test_all_signalled_by_the_second_end_but_not_at_once() -> None:
    looks = [(0.0, ALL), (0.01, ALL), (0.02, {102, 103}), (0.04, {103}), (0.06, set())]
    assert _after(looks, others=3) is None


def test_gap_between_looks_is_too_long_to_tell() -> None:
    """The machine is busy, so it is not known how they were signalled in between."""
    assert _after([(0.0, ALL), (0.01, ALL), (0.01 + 3 * AT_ONCE_S, set())], others=1) is None


def test_rank_that_fails_because_of_the_first_was_not_signalled() -> None:
    seen = _Seen([(0.0, ALL), (0.05, ALL), (0.06, {102, 103}), (0.1, {102, 103}), (0.102, set())])
    telling = StopSignals(seen, clock=seen.clock)
    telling.first_ended(TERM)
    assert telling.is_watched
    for _ in range(3):
        telling.look()
    telling.discard(101)
    assert telling.second_ended() == []


@pytest.mark.parametrize(("untold", "watched"), [(ALL, True), (set(), False)])
def test_watches_only_if_ranks_are_left_to_signal(untold: set[int], watched: bool) -> None:
    seen = _Seen([(0.0, untold)])
    telling = StopSignals(seen, clock=seen.clock)
    telling.first_ended(TERM)
    assert telling.is_watched is watched
