"""Which stage ran a phase a different number of times: one letter per visit to a line, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Waits
from hangscope.diagnosis.pattern.pipeline_stages import OddStage, odd_stage
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.trace.model import Flag
from tests.diagnosis.builder import Job


def _odd(*visits: str, suspects: tuple[int, ...] = (0,), hidden: bool = False) -> OddStage | None:
    """``visits``: per rank its receives, ``A`` one that has not finished, ``s`` and ``S`` sends."""
    job = Job(len(visits) + 1)
    group = job.group(*range(len(visits)))  # the peer of all is no stage
    for rank, letters in enumerate(visits):
        for letter in letters:
            op = "send" if letter in "sS" else "recv"
            line, done = ord(letter.lower()), letter.islower()
            job.op(rank, op, group=group, peer=len(visits), line=line, done=done)
    trace = job.trace()
    if hidden:
        ranks = {**trace.ranks, 1: replace(trace.ranks[1], oldest_record_id=7)}
        trace = replace(trace, ranks=ranks)
    context = Context(trace, frontiers(trace), {}, Waits([], {}, {}))
    return odd_stage(context, suspects, [group])


def _of(line: str, times: int, others: tuple[int, ...], usual: int) -> OddStage:
    return OddStage(0, times, others, usual, f"train.py:{ord(line)}")


@pytest.mark.parametrize("visits", ["aaab", "aaa"])
def test_rank_with_more_visits_than_all_that_left_is_odd(visits: str) -> None:
    """It has left as well, or is there and has come once more."""
    assert _odd(visits, "aab", "aab") == _of("a", 3, (1, 2), 2)


@pytest.mark.parametrize(
    "visits",
    [
        "aa",  # as often as they, and still there
        "a",  # it may yet come again
        "aab",
        "aabb",  # nobody has left the second line: it is where they all are
        "baaab",  # it went back, and is not there any more
    ],
)
def test_rank_with_equal_visits_or_still_moving_is_not_odd(visits: str) -> None:
    assert _odd(visits, "aab", "aab") is None


def test_one_other_rank_that_left_is_no_measure() -> None:
    assert _odd("aaab", "aab", "aa") is None


def test_ranks_that_left_after_different_numbers_are_no_measure() -> None:
    assert _odd("aaaaab", "aab", "aaab") is None


@pytest.mark.parametrize(
    "others",
    [
        ("aa", "aa"),  # too few
        ("aa", "aa", "aa", "c"),  # not all
        ("aa", "aa", "aaa"),  # they do not agree
        ("a", "a", "a"),  # as often
        ("caa", "ccaa", "aa"),  # they leave phases after numbers of their own, as in 1F1B
    ],
)
def test_rank_with_fewer_visits_than_some_others_is_not_odd(others: tuple[str, ...]) -> None:
    assert _odd("ab", *others) is None


@pytest.mark.parametrize("visits", ["a", "aaab", "abbc"])
def test_rank_not_left_or_left_later_or_two_lines_early_is_not_odd(visits: str) -> None:
    """The others alternate between two lines, and have left neither."""
    others = ("aa",) * 3 if visits == "a" else ("a",) * 3 if visits == "aaab" else ("ababab",) * 3
    assert _odd(visits, *others) is None


def test_two_odd_ranks_name_none() -> None:
    assert _odd("aaab", "aaab", "aab", "aab", suspects=(0, 1)) is None


def test_records_without_their_beginning_show_nothing() -> None:
    assert _odd("aaab", "aab", "aab", hidden=True) is None


def test_operations_behind_a_blocked_p2p_operation_do_not_count() -> None:
    assert _odd("aAab", "aab", "aab") is None


def test_untaken_send_blocks_nothing() -> None:
    assert _odd("Saaab", "aab", "aab") == _of("a", 3, (1, 2), 2)


def test_batch_blocked_on_the_device_counts_as_a_whole() -> None:
    """Its two operations are one stop: what comes after it does not count, what is in it does."""

    def left_after(standing: bool) -> OddStage | None:
        job = Job(4)
        group = job.group(0, 1, 2)
        for rank in (1, 2):
            for line in (97, 97, 98):
                job.op(rank, "recv", group=group, peer=3, line=line)
        member = Flag.COALESCED_MEMBER
        for line in (97, 97, 97):
            job.op(0, "recv", group=group, peer=3, line=line, flags=member, done=not standing)
        whole = Flag.COALESCED_BATCH | Flag.P2P
        job.op(0, "coalesced", group=group, line=97, flags=whole, done=not standing)
        job.op(0, "recv", group=group, peer=3, line=98)
        trace = job.trace()
        context = Context(trace, frontiers(trace), {}, Waits([], {}, {}))
        return odd_stage(context, [0], [group])

    assert left_after(standing=False) == _of("a", 3, (1, 2), 2)
    assert left_after(standing=True) == _of("a", 3, (1, 2), 2)
