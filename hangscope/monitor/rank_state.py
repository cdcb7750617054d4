"""A rank's current state: has it failed, is it shutting down, is its heartbeat late?"""

from __future__ import annotations

import time
from signal import SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV

from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.trace.model import RankFacts

_DEADLY = frozenset({SIGKILL, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
"""Signals that are never a reaction to a peer's failure."""


def has_failed(facts: RankFacts) -> bool:
    """Whether a rank is known to have failed by itself, so that no exit status could add anything.

    Either a fatal signal ended it, or an exception that is not a peer's failure is on record.
    """
    if facts.exit is not None and facts.exit.signal in _DEADLY and not facts.exit.by_launcher:
        return True
    return (
        facts.exception is not None
        and facts.exception.is_main_thread
        and not facts.exception.type_name.endswith("SystemExit")
        and not is_secondary(facts.exception.message)
    )


def is_shutting_down(facts: RankFacts) -> bool:
    """Whether a rank is in interpreter shutdown."""
    return facts.leaving is not None


def is_heartbeat_late(facts: RankFacts) -> bool:
    """Whether a live rank's heartbeat is late, but not late enough to count as stopped."""
    if not facts.alive or facts.gil_blocked or facts.process_state in ("stopped", "zombie"):
        return False
    interval_s = facts.heartbeat_interval_s or 1.0
    return (time.time_ns() - facts.heartbeat_ns) / 1e9 > 1.5 * interval_s


def is_blocked_from_outside(facts: RankFacts) -> bool:
    """Whether something outside its program keeps the process from running."""
    return bool(facts.gil_blocked) or facts.process_state in ("stopped", "zombie", "disk-sleep")
