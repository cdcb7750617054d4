"""Waiting for what processes do, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    holds: Callable[[], T],
    within_s: float = 90.0,
    *,
    every_s: float = 0.05,
    seen: Callable[[], object] = lambda: "",
) -> T:
    """Call ``holds`` until it returns something true, and return that.

    After ``within_s`` seconds the test fails, with what ``seen`` returns then.
    """
    until_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < until_s, seen()
        time.sleep(every_s)
    return found
