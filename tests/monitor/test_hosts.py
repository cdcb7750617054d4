"""Real jobs on three pretended hosts: what stands in the log of every host that is left.

`python -m tools.hosts` has all cases. Those that every `make test` runs hold what is promised of
hosts: one that is killed with its monitor and one that is cut off are named by all survivors. They
end as soon as every log is right; the limits are for crowded machines.
"""

from __future__ import annotations

from typing import Any

import pytest

from tools import hosts

PATIENCE_S = 200.0

pytestmark = [pytest.mark.timed, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := hosts.unavailable():
        pytest.skip(why)


def _is_all_right(found: dict[str, Any]) -> None:
    assert all(found["right"].values()), found["said"]
    assert not any(found["innocents"].values()), found["innocents"]
    assert found["merged_right"], found["merged"]


@pytest.mark.parametrize(
    ("case", "rendezvous"),
    [
        ("host-killed", "c10d"),
        ("node0-cut", "static"),
        pytest.param("lossy", "static", marks=pytest.mark.slow),
        pytest.param("asleep", "static", marks=pytest.mark.slow),
        pytest.param("killed", "c10d", marks=pytest.mark.slow),
        pytest.param("link-cut", "static", marks=pytest.mark.slow),
    ],
)
def test_every_survivor_says_what_is_true(case: str, rendezvous: str) -> None:
    found = hosts.run(case, shared=False, rendezvous=rendezvous, patience_s=PATIENCE_S)
    _is_all_right(found)
    if case == "node0-cut":
        assert found["merged"]["hosts"] == ["node0"], found["merged"]
