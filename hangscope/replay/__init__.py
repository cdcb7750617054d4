"""Recorded hangs as regression tests: writes, reads and verifies fixtures.

A fixture is a folder with ``expected.toml`` and ``dumps/``; see `hangscope.replay.fixture`.
"""

from __future__ import annotations

from hangscope.replay.fixture import Expected, Fixture, FixtureError, find_fixtures, load_fixture
from hangscope.replay.verify import Difference, Outcome, diagnose_fixture, verify
from hangscope.replay.write import write_fixture

__all__ = [
    "Difference",
    "Expected",
    "Fixture",
    "FixtureError",
    "Outcome",
    "diagnose_fixture",
    "find_fixtures",
    "load_fixture",
    "verify",
    "write_fixture",
]
