"""Real jobs on three pretended hosts: what stands in the log of every host that is left."""

from __future__ import annotations

import pytest

from tools import hosts


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := hosts.unavailable():
        pytest.skip(why)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("case", "shared", "rendezvous"),
    [("asleep", False, "static"), ("link-cut", False, "static"), ("host-killed", False, "c10d")],
)
def test_every_survivor_says_what_is_true(case: str, shared: bool, rendezvous: str) -> None:
    found = hosts.run(case, shared=shared, rendezvous=rendezvous)
    right, said = found["right"], found["said"]
    assert isinstance(right, dict)
    assert all(right.values()), said
