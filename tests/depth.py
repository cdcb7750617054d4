"""How many made-up examples are tried: all of them by ``make test-all``, a few by ``make test``."""

from __future__ import annotations

import os

DEEP = os.environ.get("TESTS_DEEP") == "1"
_FEWER = 8


def examples(number: int) -> int:
    """So many at depth, an eighth of them else."""
    return number if DEEP else max(2, number // _FEWER)
