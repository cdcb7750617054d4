"""Recorded hangs as regression tests: writes, reads and verifies fixtures.

**In**: a fixture, which is a folder with ``expected.toml`` and ``dumps/`` (`fixture`); or a run
that is to become one. **Out**: whether today's diagnosis is the expected one, and in what it
differs; or the folder.

* `verify` diagnoses a fixture as of the moment it was recorded, and compares;
* `write` makes one from a run: `compact` leaves out what cannot matter, `observed` keeps what was
  seen of live processes, `redact` replaces paths, hosts and free text (`vocabulary`: only words
  that are public stay).

**Rules.** A fixture gets the verdict of the run that it was made from, or it is not written. What
is redacted is replaced everywhere alike, so that what was equal stays equal.

**Imported by** the command line, the pytest plugin and `monitor`; imports `report`, `diagnosis`,
`trace` and `ring`.
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
