"""The meeting protocol, on a store that counts requests."""

from __future__ import annotations

import pytest

from hangscope.toolkit.barriers import meeting
from hangscope.toolkit.barriers.agreement import minority
from hangscope.toolkit.barriers.meeting import (
    Member,
    Outcome,
    StoreGroup,
    _Progress,
    host_by_layout,
    meet,
)
from hangscope.toolkit.ranks import compress, expand, name_ranks
from tests.threads import run_all
from tests.toolkit.stores import CountingStore

_SMALL_STACK = 256 * 1024


def store_group(store: CountingStore, size: int, me: int) -> StoreGroup:
    return StoreGroup(store, "test", tuple(range(size)), me, "test", "life")


class Crowd:
    """Members as threads, each with its own generation counters, like separate processes."""

    def __init__(self, size: int) -> None:
        self.store = CountingStore()
        self.size = size
        self.progress = [_Progress() for _ in range(size)]

    def meet(
        self, who: list[int], timeout_s: float = 20.0, **options: object
    ) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}

        def one(rank: int) -> None:
            outcomes[rank] = meet(
                store_group(self.store, self.size, rank),
                timeout_s=timeout_s,
                progress=self.progress[rank],
                **options,  # type: ignore[arg-type]
            )

        run_all([lambda r=r: one(r) for r in who], stack_bytes=_SMALL_STACK)
        return outcomes


def test_members_meet_repeatedly() -> None:
    crowd = Crowd(5)
    for _ in range(4):
        outcomes = crowd.meet(list(range(5)))
        assert all(outcome.met for outcome in outcomes.values())
    assert {o.generation for o in outcomes.values()} == {3}
    assert len(crowd.store.data) <= 3, "only the last generation is kept"


def test_all_members_present_get_the_same_missing_ranks() -> None:
    crowd = Crowd(5)
    outcomes = crowd.meet([0, 1, 3], timeout_s=0.3)
    assert {(o.met, o.missing, o.arrived) for o in outcomes.values()} == {
        (False, (2, 4), (0, 1, 3))
    }


def test_one_member_lists_the_missing_ranks_for_all() -> None:
    crowd = Crowd(40)
    crowd.meet(list(range(39)), timeout_s=0.5)
    # Every other member's get reads the verdict; only the judge also reads the roll.
    assert crowd.store.requests["get"] <= 39 + 2


def test_latecomer_from_the_same_place_is_late_and_from_another_goes_on() -> None:
    crowd = Crowd(3)
    crowd.meet([0, 1], timeout_s=0.2, site="save")
    late = crowd.meet([2], timeout_s=0.2, site="save")[2]
    assert late.late
    assert late.missing == (2,)
    assert all(o.met for o in crowd.meet([0, 1, 2], site="save").values())

    crowd = Crowd(3)
    crowd.meet([0, 1], timeout_s=0.2, site="save")
    outcomes = crowd.meet([0, 1, 2], site="load")
    assert all(o.met for o in outcomes.values()), outcomes


def test_member_that_skipped_several_failures_passes_them() -> None:
    crowd = Crowd(3)
    for number in range(3):
        crowd.meet([0, 1], timeout_s=0.1, site=f"step {number}")
    assert all(o.met for o in crowd.meet([0, 1, 2], site="end").values())


def test_judge_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "JUDGE_GRACE_S", 0.2)
    crowd = Crowd(3)
    crowd.store.data["test@life/0/judge0"] = b"1"  # elected, and then gone without a word
    outcomes = crowd.meet([0, 1], timeout_s=0.2)
    assert {o.missing for o in outcomes.values()} == {(2,)}


def test_member_that_dies_between_counting_and_releasing() -> None:
    crowd = Crowd(3)
    crowd.store.append("test@life/0/roll", '[2,"h",1,"",""]\n')
    crowd.store.add("test@life/0/count", 1)
    # The third arrival makes the count full but its verdict never comes.
    crowd.store.data["test@life/0/count"] = b"-7"
    outcomes = crowd.meet([0, 1], timeout_s=0.3)
    assert all(o.met for o in outcomes.values()), "all three had come"


def test_all_members_receive_the_messages() -> None:
    crowd = Crowd(4)
    outcomes: dict[int, Outcome] = {}

    def one(rank: int) -> None:
        outcomes[rank] = meet(
            store_group(crowd.store, 4, rank),
            timeout_s=5,
            say="b" if rank == 2 else "a",
            compare=True,
            progress=crowd.progress[rank],
        )

    run_all([lambda r=r: one(r) for r in range(4)], stack_bytes=_SMALL_STACK)
    assert {tuple(sorted(o.said.items())) for o in outcomes.values()} == {
        (("a", (0, 1, 3)), ("b", (2,)))
    }
    assert minority(outcomes[0].said) == (2,)


def test_majority_decides_and_a_tie_accuses_both_sides() -> None:
    assert minority({"a": (0, 1, 2)}) == ()
    assert minority({"a": (0, 1), "b": (2,)}) == (2,)
    assert minority({"a": (0,), "b": (1,)}) == (0, 1)


def test_lost_store_is_an_outcome_and_no_exception() -> None:
    class Lost(CountingStore):
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("Connection reset by peer\nException raised from recvBytes")

    outcome = meet(store_group(Lost(), 2, 0), timeout_s=1, progress=_Progress())
    assert not outcome.met
    assert outcome.store_error == "Connection reset by peer"


def test_store_that_leaves_once_all_have_signed_off_is_no_failure() -> None:
    """The member that tidies up is the last one to sign off; whoever serves the store may go."""

    class Leaving(CountingStore):
        def delete_key(self, key: str) -> bool:
            raise RuntimeError("Connection reset by peer")

    store, progress = Leaving(), _Progress()
    for _ in range(3):
        assert meet(store_group(store, 1, 0), timeout_s=1, progress=progress).met


def test_host_of_a_silent_rank_is_read_off_the_layout() -> None:
    present = [Member(0, "a"), Member(2, "a"), Member(4, "b"), Member(7, "b")]
    assert host_by_layout(1, present) == "a"
    assert host_by_layout(5, present) == "b"
    assert host_by_layout(3, present) == ""


def test_requests_per_member_do_not_grow_with_their_number() -> None:
    """Except for polls for the verdict, which are paced; docs/toolkit.md has larger groups."""
    per_member = {}
    for size in (16, 256):
        crowd = Crowd(size)
        assert all(o.met for o in crowd.meet(list(range(size))).values())
        fixed = sum(n for kind, n in crowd.store.requests.items() if kind != "check")
        per_member[size] = fixed / size
    assert per_member[256] < 5
    assert abs(per_member[16] - per_member[256]) < 0.5, per_member


def test_ranks_are_written_as_runs() -> None:
    assert compress([3, 0, 1, 2, 7]) == "0-3, 7"
    assert compress([]) == "none"
    assert expand("0-3, 7") == [0, 1, 2, 3, 7]
    assert expand("none") == []
    assert name_ranks([4]) == "rank 4"
    assert name_ranks([4, 5]) == "ranks 4-5"
