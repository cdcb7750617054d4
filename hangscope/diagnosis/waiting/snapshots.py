"""Dumps that are a snapshot of a moving job, not of a hang."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.diagnosis.waiting.early_dumps import overtaken
from hangscope.diagnosis.waiting.wait_duration import NEARLY, recorded_timeouts
from hangscope.trace.units import SECOND_NS

_SOON_S = 5.0
_LATEST_S = 60.0
_SILENCE_NS = 20 * SECOND_NS
_BURST_NS = 5 * SECOND_NS
_UNUSUAL = 3
_MOVED = "the job was still moving when it was dumped"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The remark for the report; ``moved``: known to have moved, rather than possibly."""

    remark: str
    moved: bool = True


def snapshot_of(context: Context) -> Snapshot | None:
    """Evidence that the job was still moving when the dumps were taken; None if there is none.

    A dump written seconds after its last record shows a moving job. So do all dumps if one of them
    does and nobody has waited for long: the others wait for a slow rank. Only dumps with credible
    times and of processes that have not ended count. If a rank left no dump, it may have died just
    then, with all others waiting for it.
    """
    if not _only_live_dumps(context):
        return None
    trace = context.trace
    quiet_s = _quiet_s(context)
    if not quiet_s or any(_gave_up(context, rank) for rank in context.bounds):
        return None
    last, first = max(quiet_s.values()), min(_of_last_dumped(context, quiet_s))
    usual = 2 * _longest_gap_s(context)
    waited, timeouts = context.longest_wait_s(context.waits.places), recorded_timeouts(context)
    if timeouts is not None and waited >= NEARLY * timeouts.shortest_s:
        return None
    if waited < trace.timeout_s and _dumped_within(context, overtaken(context), _SOON_S):
        return Snapshot(f"{_MOVED}: some ranks went on after their dumps were written")
    soon = _SOON_S
    if (trace.records["completed_ns"] > 0).any():  # without completions, records prove too little
        soon = min(soon, standstill_s(trace))  # steps of milliseconds do not pause for seconds
    if last < min(_LATEST_S, max(soon, usual)):
        return Snapshot(f"{_MOVED}, {last:.1f} s after its last step")
    listed = not context.lists_in_part
    just_now = first < min(_LATEST_S, max(soon, usual if listed else 0.0))
    just_now &= _dumped_within(context, trace.ranks, _LATEST_S)  # unless it is an earlier dump
    if waited < trace.timeout_s and just_now:
        return Snapshot(
            f"{_MOVED}, {first:.1f} s after some rank's last step; nobody had waited for more than "
            f"{waited:.0f} s"
        )
    if not listed and 0 < waited < trace.timeout_s:
        return Snapshot(
            f"no rank had waited for longer than {waited:.0f} s when the dumps were taken, and "
            "finished operations are not listed: the job may have been moving",
            moved=False,
        )
    return None


def _only_live_dumps(context: Context) -> bool:
    """Whether all evidence is dumps of processes that have not ended, and not all of them wait for
    a rank without a dump."""
    trace = context.trace
    if trace.live or trace.claims:
        return False
    missing = trace.missing_ranks
    if missing and context.waits.reachers(missing) >= set(trace.ranks):
        return False
    return all(h.end is End.UNKNOWN for h in context.processes.values())


def _dumped_within(context: Context, ranks: Collection[int], limit_s: float) -> bool:
    """Whether there are such ranks, and their dumps were written at about the time of all
    others."""
    written = {r: f.observed_ns for r, f in context.trace.ranks.items()}
    first = min((written[r] for r in ranks), default=0)
    return first > 0 and max(written.values()) - first < limit_s * SECOND_NS


def _of_last_dumped(context: Context, quiet_s: dict[int, float]) -> list[float]:
    """Values of the ranks that were dumped last: at earlier dumps the job may still have moved."""
    written = {r: context.trace.ranks[r].observed_ns for r in quiet_s}
    newest = max(written.values())
    return [s for r, s in quiet_s.items() if newest - written[r] < _SOON_S * SECOND_NS]


def _quiet_s(context: Context) -> dict[int, float]:
    """Per rank the seconds from its last record to its dump; empty if unknown for most ranks.

    If a host's clock is ahead of the file server's, its dumps seem older than their records.
    """
    found = {}
    for rank, (low, high) in context.bounds.items():
        part = context.trace.records[low:high]
        last = max(int(part["created_ns"].max()), int(part["completed_ns"].max()))
        facts = context.trace.ranks.get(rank)
        # A file without a credible date is dated by its newest record, which is not a date.
        undated = facts is not None and facts.observed_ns == int(part["started_ns"].max())
        if facts is not None and facts.observed_ns > last > 0 and not undated:
            found[rank] = (facts.observed_ns - last) / SECOND_NS
    return found if len(found) * 2 > len(context.bounds) else {}


def _gave_up(context: Context, rank: int) -> bool:
    """Whether the rank's last records form a burst after an unusually long silence.

    That is the pattern of a rank that timed out and released everything before it was dumped.
    """
    low, high = context.bounds[rank]
    part = context.trace.records[low:high]
    issued_ns = part["created_ns"][part["created_ns"] > 0]
    ended_ns = part["completed_ns"][part["completed_ns"] > 0]
    if not len(issued_ns) or not len(ended_ns):
        return False
    times = np.sort(np.concatenate([issued_ns, ended_ns]))
    gaps = np.diff(times)
    longest = int(gaps.argmax()) if len(gaps) else 0
    if not len(gaps) or gaps[longest] < _SILENCE_NS or (issued_ns > times[longest]).any():
        return False
    at_once = times[-1] - times[longest + 1] < _BURST_NS
    return bool(at_once) and gaps[longest] > _UNUSUAL * np.delete(gaps, longest).max(initial=0)


def _longest_gap_s(context: Context) -> float:
    """The longest gap (s) between two operations of any rank."""
    created = context.trace.records["created_ns"]
    same = np.diff(context.trace.records["rank"]) == 0
    gaps = np.diff(created)[same]
    return float(gaps.max()) / SECOND_NS if len(gaps) else 0.0
