"""What was observed of a job's processes when it was recorded, for later when they are gone.

The verdict on a live job rests on more than its rings: whether each process was alive, stopped or
holding the GIL, how busy it was, whether its stack moved between two looks, and when. A fixture
keeps this in ``dumps/observed.journal``, in the format of the monitor's journals
(`hangscope.trace.external_reports.journal`); the header says when the job was looked at, and how
often.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.replay.redact import Redactor
from hangscope.trace import formats
from hangscope.trace.clean import as_int, as_looks
from hangscope.trace.external_reports.journal import HEADER_KEY, VERSION
from hangscope.trace.facts_codec import Encoder
from hangscope.trace.model import RankFacts, Stack, Trace

NAME = "observed.journal"


@dataclass(frozen=True, slots=True)
class Moment:
    """When a live job was observed; ``looks`` as in `Trace.looks`."""

    observed_ns: int
    looks: int


def write_observed(trace: Trace, target: Path, redactor: Redactor | None = None) -> bool:
    """Write what ``trace`` observed of processes; False if it observed none.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    ringed = {s.rank for s in trace.sources if s.format == formats.RING}
    seen = [
        facts
        for rank, facts in trace.ranks.items()
        if facts.alive is not None and (rank in ringed or facts.initialized is False)
    ]
    if not seen:
        return False
    first = seen[0]
    head: dict[str, Any] = {
        HEADER_KEY: VERSION,
        "run_id": redactor.prose(first.run_id or "") if redactor else first.run_id,
        "attempt": first.attempt,
        "started_ns": trace.observed_ns,
        "observed_ns": trace.observed_ns,
        "looks": trace.looks,
        "live": trace.live,
    }
    lines = [
        head,
        *(seen_event(facts, redactor, recorded=facts.rank in ringed) for facts in seen),
    ]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    target.write_text(text, encoding="utf-8")
    return True


def read_moment(dumps: Path) -> Moment | None:
    """When the job in ``dumps`` was observed alive; None if it was read post-mortem."""
    head = _head(dumps)
    observed_ns = as_int(head.get("observed_ns"), low=0)
    if not head.get("live") or not observed_ns:
        return None
    return Moment(observed_ns, as_looks(head.get("looks")) or 1)


def write_dump_time(trace: Trace, target: Path) -> bool:
    """Store when dumps without a time of their own were written; False if that is not known.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    dumped = {s.rank for s in trace.sources if s.format in formats.DUMPS}
    times = [f.observed_ns for rank, f in trace.ranks.items() if rank in dumped and f.observed_ns]
    if not times:
        return False
    head = {HEADER_KEY: VERSION, "dumped_ns": max(times)}
    target.write_text(json.dumps(head, separators=(",", ":")) + "\n", encoding="utf-8")
    return True


def read_dump_time(dumps: Path) -> int:
    """When dumps without a time of their own were written, in ns; 0 if not stored.

    Files in a checkout have the time of the checkout, which says nothing about the job.
    """
    return as_int(_head(dumps).get("dumped_ns"), low=0)


def _head(dumps: Path) -> dict[str, Any]:
    """The first line of the journal in ``dumps``; empty if there is none, or none that can be
    read."""
    try:
        with open(dumps / NAME, encoding="utf-8") as file:
            head = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


def seen_event(
    facts: RankFacts, redactor: Redactor | None = None, *, recorded: bool = True
) -> dict[str, Any]:
    """An observation of a rank's process as a journal event; ``recorded``: it has a ring."""
    event: dict[str, Any] = {
        "event": "seen",
        "rank": facts.rank,
        "pid": facts.pid,
        "at_ns": facts.observed_ns,
        "alive": facts.alive,
        "state": facts.process_state,
        "held_by": facts.held_by,
        "gil_blocked": facts.gil_blocked,
        "cpu_busy": None if facts.cpu_busy is None else round(facts.cpu_busy, 3),
        "stack_moved": facts.stack_moved,
        "wakeups_hz": None if facts.wakeups_hz is None else round(facts.wakeups_hz, 2),
    }
    if facts.helpers_busy is not None:
        event["helpers_busy"] = round(facts.helpers_busy, 3)
    if not recorded:
        event["recorded"] = False
        if facts.is_placed_by_order:
            event["by_order"] = True
        if facts.host and redactor is None:
            event["host"] = facts.host  # of a rank with a ring, the ring tells it
    path = redactor.path if redactor else str

    def written(stack: Stack) -> list[list[Any]]:
        return [[frame.name, path(frame.filename), frame.line] for frame in stack]

    encoder = Encoder(written)
    if facts.wait is not None:
        wait = encoder.facts(facts.wait)
        event["wait"] = redactor.value(wait) if redactor else wait
    # Stacks obtained by signal are in a separate file beside the ring, dated by its mtime, which
    # does not survive a checkout.
    asked = [t for t in facts.threads if t.source == "signal" and t.stack]
    if asked:
        event["threads"] = [encoder.facts(thread) for thread in asked]
    return event
