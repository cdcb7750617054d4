"""What a rank's facts say of the moment: has it failed, is it leaving, is its heartbeat late?"""

from __future__ import annotations

import time
from signal import SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV

from hangscope.diagnosis.processes.failure_messages import is_secondary
from hangscope.trace.model import RankFacts

_DEADLY = frozenset({SIGKILL, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
"""None of them is an answer to the failure of a peer."""


def has_failed(facts: RankFacts) -> bool:
    """Whether a rank is known to have failed by itself: no status of anybody adds anything.

    A signal has ended it, or an exception of its own is on record.
    """
    if facts.exit is not None and facts.exit.signal in _DEADLY and not facts.exit.by_launcher:
        return True
    return (
        facts.exception is not None
        and facts.exception.is_main_thread
        and not facts.exception.type_name.endswith("SystemExit")
        and not is_secondary(facts.exception.message)
    )


def is_leaving(facts: RankFacts) -> bool:
    """Whether a rank is in interpreter shutdown."""
    return facts.leaving is not None


def is_silent(facts: RankFacts) -> bool:
    """Whether a living rank's heartbeat is late, but not yet so late that it counts as stopped."""
    if not facts.alive or facts.gil_blocked or facts.process_state in ("stopped", "zombie"):
        return False
    interval_s = facts.heartbeat_interval_s or 1.0
    return (time.time_ns() - facts.heartbeat_ns) / 1e9 > 1.5 * interval_s


def is_held_up(facts: RankFacts) -> bool:
    """Whether something other than its program keeps a rank's process from running."""
    return bool(facts.gil_blocked) or facts.process_state in ("stopped", "zombie", "disk-sleep")
