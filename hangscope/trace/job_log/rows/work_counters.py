"""Counters of a group in a watchdog's output: last work enqueued, started and completed."""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import (
    DEFAULT_GROUP,
    UNKNOWN_GROUP,
    Counters,
    GroupId,
    RankNotes,
)
from hangscope.trace.job_log.rows.row import Said
from hangscope.trace.job_log.rows.watchdog_message import message_of

_STATUS = re.compile(
    r"(?:(?P<plain>Timeout\s*at\s*NCCL\s*work:)|detected\s*by\s*watchdog\s*at\s*work"
    r"(?:\s*sequence\s*id)?:)\s*(?P<n>-?\d+)"
)
_LAST_STARTED = re.compile(r"last\s*started\s*(?:\w+\s*)?work:\s*(-?\d+)")
_DUMP_SIGNAL = re.compile(r"Received\s*a(?:\s*global)?\s*dump\s*signal")
_MOST = 3_000_000_000
"""Larger values are uninitialised memory."""


def note_counters(said: Said, evidence: Evidence) -> None:
    """Record the counters of a group."""
    text, message = said.line.text, message_of(said.line, said.at_ns)
    counters = _counters(said.found, text)
    group = message.group
    signal = _DUMP_SIGNAL.search(text)
    if signal:
        evidence.claim("dump_signal", message.line, message.at_ns, reporter=message.rank)
        if group == UNKNOWN_GROUP:
            group = DEFAULT_GROUP  # these counters are always the default group's
    if message.rank is not None:
        notes = evidence.of(message.rank)
        known = notes.counters.setdefault(group, Counters())
        known.enqueued = max(known.enqueued, counters.enqueued)
        known.completed = max(known.completed, counters.completed)
        if counters.started > 0:
            known.started = max(known.started, counters.started)
        known.at_ns = known.at_ns or message.at_ns
        if not signal:
            known.failed_ns = known.failed_ns or message.at_ns
        known.line = message.line.number
        _note_group(text, group, notes)


def _counters(found: re.Match[str], text: str) -> Counters:
    enqueued, started, completed = (_counter(x) for x in found.groups())
    if 0 <= enqueued < completed:
        completed = -1  # torch 2.2 and 2.3 print uninitialised memory
        at_work = _STATUS.search(text)
        if at_work and int(at_work["n"]) > 0:
            completed = int(at_work["n"]) - 1
    later = _LAST_STARTED.search(text) if found[2] is None else None
    return Counters(enqueued, _counter(later[1]) if later else started, completed)


def _note_group(text: str, group: GroupId, notes: RankNotes) -> None:
    """Assign this group to the timeout whose number is in a status: a watchdog prints both."""
    status = _STATUS.search(text)
    if status:
        numbered = notes.numbered(int(status["n"]))
        unlabelled = [o for o in numbered if o.group == UNKNOWN_GROUP]
        if len(unlabelled) == 1:
            unlabelled[0].group = group


def _counter(text: str | None) -> int:
    """A counter as in `Counters`. -1 means "none yet", for which torch 2.3 prints garbage."""
    if text is None:
        return -1
    value = int(text)
    return value if 0 <= value < _MOST else 0
