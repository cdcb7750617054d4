"""SIGKILL of all ranks at once, at a random moment: the rings miss at most the call in flight.

The long version is ``make kills``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 40
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_rings_survive_random_kills() -> None:
    # In a separate process, because it forks, which a test runner with threads should not do.
    code = (
        "import json; from dataclasses import asdict; from tools.random_kills import run;"
        f"print(json.dumps([asdict(o) | {{'right': o.right}} for o in run({ROUNDS}, 2, 11)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200,
        check=True,
    )  # fmt: skip
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert len(outcomes) == 2 * ROUNDS
    assert [o for o in outcomes if not o["right"]] == []
    assert all(o["recorded"] > 0 for o in outcomes)
