"""Calls that run side by side, each in a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence


def run_all(calls: Sequence[Callable[[], None]], stack_bytes: int = 0) -> None:
    """Run each call in a thread of its own and wait for all of them (``stack_bytes`` 0: usual)."""
    before = threading.stack_size(stack_bytes)
    try:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(before)


def run_together(calls: Sequence[Callable[[], None]], switch_interval_s: float) -> None:
    """Run the calls in threads that are switched as often as can be."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_s)
    try:
        run_all(calls)
    finally:
        sys.setswitchinterval(before_s)
