"""Threads that are switched as often as can be."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence


def run_together(calls: Sequence[Callable[[], None]], switch_interval_s: float) -> None:
    """Run each call in a thread of its own and wait for all of them."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_s)
    try:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before_s)
