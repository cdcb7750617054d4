"""What a rank's facts say of the moment: has it failed, is it leaving, is its heartbeat late?"""

from __future__ import annotations

import time

from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.trace.model import RankFacts


def has_failed(facts: RankFacts) -> bool:
    """Whether an exception of the rank's own is on record: its exit status adds nothing."""
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
