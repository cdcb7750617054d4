"""A single member on a simulated clock: how often it polls, and what it leaves in the store."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest

from hangscope.toolkit.barriers.meeting import (
    FIRST_PAUSE_S,
    JUDGE_GRACE_S,
    LONGEST_CAP_S,
    SERVER_LOOKS_PER_S,
    SHORTEST_CAP_S,
    Outcome,
    StoreGroup,
    _Progress,
    meet,
)
from hangscope.toolkit.barriers.store_incarnation import host_key
from tests.toolkit.stores import CountingStore

_KEY = "test@life/0"


class Alone:
    """A member whose clock advances only when it sleeps."""

    def __init__(self, size: int, me: int = 0) -> None:
        self.store, self.size, self.me = CountingStore(), size, me
        self.progress = _Progress()
        self.pauses: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called whenever it sleeps: actions of other members."""

    @property
    def now_s(self) -> float:
        return sum(self.pauses)

    def _sleep(self, pause_s: float) -> None:
        assert pause_s > 0
        self.pauses.append(pause_s)
        self.meanwhile()

    def meet(self, timeout_s: float = 1.0, *, site: str = "", compare: bool = False) -> Outcome:
        store_group = StoreGroup(
            self.store, "test", tuple(range(self.size)), self.me, "test", "life"
        )
        return meet(
            store_group,
            timeout_s=timeout_s,
            site=site,
            compare=compare,
            progress=self.progress,
            clock=lambda: self.now_s,
            sleep=self._sleep,
        )


def _once(act: Callable[[], object]) -> Callable[[], None]:
    """Wrap a function so that only the first call has an effect."""
    due = [act]

    def called() -> None:
        if due:
            due.pop()()

    return called


@pytest.mark.parametrize("size", [2, 400, 10_000])
def test_polls_become_rarer_up_to_the_cap(size: int) -> None:
    alone = Alone(size)
    outcome = alone.meet(timeout_s=30.0)
    longest_s = min(LONGEST_CAP_S, max(SHORTEST_CAP_S, size / SERVER_LOOKS_PER_S))
    assert not outcome.met
    assert alone.pauses[0] == FIRST_PAUSE_S
    assert max(alone.pauses) == longest_s
    growing = [a for a in alone.pauses if a < longest_s][:-1]  # the last one ends at the deadline
    assert all(b == pytest.approx(a * 1.5) for a, b in pairwise(growing))


def test_elected_member_judges_when_its_time_is_up() -> None:
    alone = Alone(2)
    outcome = alone.meet()
    assert (outcome.missing, outcome.arrived) == ((1,), (0,))
    assert alone.now_s == pytest.approx(1.0)


def test_others_wait_for_the_elected_judge() -> None:
    alone = Alone(3)
    alone.store.add(f"{_KEY}/judge0", 1)
    verdict = {"met": False, "missing": "2", "arrived": "0-1", "site": "save"}

    def decided() -> None:
        if alone.now_s > 1.0 + JUDGE_GRACE_S / 2:
            alone.store.data[f"{_KEY}/verdict"] = json.dumps(verdict).encode()

    alone.meanwhile = decided
    outcome = alone.meet(site="load")
    assert (outcome.missing, outcome.arrived, outcome.late) == ((2,), (0, 1), False)
    assert f"{_KEY}/judge1" not in alone.store.data, "nobody else was elected"


def test_silent_judge_is_replaced() -> None:
    alone = Alone(2)
    alone.store.add(f"{_KEY}/judge0", 1)
    assert alone.meet().missing == (1,)
    assert alone.now_s == pytest.approx(1.0 + JUDGE_GRACE_S)


def test_arrived_members_sign_off_and_late_ones_do_not() -> None:
    alone = Alone(2)
    alone.meet(site="save")
    assert alone.store.data[f"{_KEY}/gone"] == b"1"
    assert alone.progress.goodbye == (alone.store, f"{_KEY}/gone", 1)
    late = Alone(2, me=1)
    late.store = alone.store
    assert late.meet(site="save").late
    assert alone.store.data[f"{_KEY}/gone"] == b"1"
    assert late.progress.goodbye is None


def test_last_member_deletes_only_unused_keys() -> None:
    """Two that fail and two that succeed, of three members whose order does not matter."""
    members = [Alone(3, me) for me in range(3)]
    for member in members:
        member.store = members[0].store
    store = members[0].store
    for site in ("one", "two"):
        assert members[0].meet(site=site).missing == (1, 2)

    members[0].meanwhile = _once(lambda: members[1].meet(site="end"))
    members[1].meanwhile = _once(lambda: members[2].meet(site="end"))  # which makes it full
    assert members[0].meet(site="end").met
    left: dict[str, set[str]] = defaultdict(set)
    for key in store.data:
        _, generation, part = key.split("/")
        left[generation].add(part)
    assert left == {"1": {"gone", "judge0"}, "2": {"roll", "count", "verdict"}}
    assert store.requests["delete_key"] == 3 + 3 + 4, "by one of the three"


def test_only_comparing_meetings_return_messages() -> None:
    assert Alone(1).meet().said == {}
    assert Alone(1).meet(compare=True).said == {"": (0,)}


@pytest.mark.parametrize(
    ("variables", "node"),
    [
        ({"GROUP_RANK": "5"}, "5"),
        ({"SLURM_NODEID": "7"}, "7"),
        ({"GROUP_RANK": "5", "SLURM_NODEID": "7"}, "5"),
        ({}, ""),
    ],
)
def test_member_registers_its_node(
    variables: dict[str, str], node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    alone = Alone(2)
    alone.meet()
    rank, host, _, said, _ = json.loads(alone.store.data[f"{_KEY}/roll"])
    assert (rank, host, said) == (0, socket.gethostname(), node)


def test_hosts_of_missing_ranks_are_told_or_inferred() -> None:
    alone = Alone(5)
    here = socket.gethostname()
    alone.store.append(f"{_KEY}/roll", "damaged\n" + json.dumps([2, here, 1, "", ""]) + "\n")
    alone.store.set(host_key("life", 4), "node7")
    outcome = alone.meet()
    assert outcome.missing == (1, 3, 4)
    assert outcome.hosts == {1: f"{here} (by the layout of the nodes)", 4: "node7"}
