"""Drops logs that lie beside a job's records but belong to another job.

Users pass whole directories. The records identify the job, and a log that contradicts them is
another job's: it counts more ranks, gives the same ranks other process ids, or was written on
another day. A log that contradicts nothing is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangscope.trace import formats
from hangscope.trace.model import Fragment

_DEFAULTS = frozenset({"default_pg", "default"})
_HOUR_NS = 3600 * 10**9
_YEAR_NS = int(365.2425 * 24) * _HOUR_NS
"""Log timestamps contain no year."""
_FAR_NS = 96 * _HOUR_NS
"""More than the span of all time zones plus a weekend, for which a job may hang."""

Process = tuple[int, int]
"""Rank and process id."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What the records say about the job."""

    world: int
    """0 if unknown."""
    processes: frozenset[Process]
    first_ns: int
    last_ns: int


def drop_unrelated_logs(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Return the fragments without such logs, and a note on each of them."""
    recorded = [f for f in fragments if f.source.format in formats.RECORDS]
    logs: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        if fragment.source.format == formats.LOG:
            logs[fragment.source.path].append(fragment)
    if recorded:
        job = _job_of(recorded)
        reasons = {path: why for path, parts in logs.items() if (why := _contradiction(parts, job))}
    else:
        reasons = _stacks_outside_world(logs)
    kept = [f for f in fragments if f.source.path not in reasons]
    return kept, [f"{path}: {why}; ignored as another job's" for path, why in reasons.items()]


def _stacks_outside_world(logs: Mapping[str, Sequence[Fragment]]) -> dict[str, str]:
    """Files with nothing but stacks of a rank beyond the world size that a log states."""
    telling = {path: parts for path, parts in logs.items() if any(map(_has_evidence, parts))}
    ranks = [f.facts.rank for parts in telling.values() for f in parts]
    stated = max((f.facts.world_size or 0 for parts in telling.values() for f in parts), default=0)
    world = max(stated, *(rank + 1 for rank in ranks)) if stated else 0
    return {
        path: f"stacks of rank {parts[0].facts.rank}, the log speaks of {world}"
        for path, parts in logs.items()
        if world and min(f.facts.rank for f in parts) >= world
    }


def _has_evidence(fragment: Fragment) -> bool:
    """Whether a log says more about a rank than where its threads stand."""
    facts = fragment.facts
    said = (fragment.claims, facts.exit, facts.exception, facts.world_size)
    return bool(len(fragment.records) or len(fragment.members)) or any(said)


def _job_of(recorded: Sequence[Fragment]) -> _Job:
    # A process that never reached rendezvous has its world size only from the launcher.
    met = [f for f in recorded if f.facts.declared or f.source.format != formats.RING]
    sizes = [f.facts.world_size or 0 for f in met]
    sizes += [len(g.ranks) for f in recorded for g in f.groups if g.desc in _DEFAULTS]
    times = [at for f in recorded for at in _span(f)]
    processes = {(f.facts.rank, f.facts.pid) for f in recorded if f.facts.pid is not None}
    world = max(sizes, default=0)
    return _Job(world, frozenset(processes), min(times, default=0), max(times, default=0))


def _span(fragment: Fragment) -> tuple[int, ...]:
    """The times of one rank's first and last records, and of its end."""
    created = fragment.records["created_ns"]
    created = created[created > 0]
    facts = fragment.facts
    ends = tuple(end.at_ns for end in (facts.exit, facts.exception) if end and end.at_ns)
    return (int(created.min()), int(created.max()), *ends) if len(created) else ends


def _contradiction(parts: Sequence[Fragment], job: _Job) -> str:
    """Why a log cannot be this job's; empty if nothing contradicts that."""
    counted = max(max(f.facts.world_size or 0, f.facts.rank + 1) for f in parts)
    if 0 < job.world < counted:
        return f"speaks of {counted} ranks, the records of {job.world}"
    known = dict(job.processes)
    own = {(f.facts.rank, f.facts.pid) for f in parts if f.facts.pid and f.facts.rank in known}
    if own and own.isdisjoint(job.processes):
        rank, pid = min(own, key=lambda process: process[0])
        return f"its rank {rank} is process {pid}, that of the records {known[rank]}"
    away_ns = _distance_ns(list(_event_times(parts)), job)
    if away_ns > _FAR_NS:
        return f"what it tells lies {away_ns // (24 * _HOUR_NS)} days from the records"
    return ""


def _event_times(parts: Iterable[Fragment]) -> Iterable[int]:
    """The times (ns) of the events in a log."""
    for fragment in parts:
        yield from _span(fragment)
        yield from (claim.at_ns for claim in fragment.claims if claim.at_ns)


def _distance_ns(moments: list[int], job: _Job) -> int:
    """How far (ns) all of it is from the records, in any year; 0 if unknown."""
    if not (moments and job.first_ns):
        return 0
    return min(_distance_in_any_year_ns(at, job) for at in moments)


def _distance_in_any_year_ns(at_ns: int, job: _Job) -> int:
    years = round((job.last_ns - at_ns) / _YEAR_NS)
    return min(
        max(job.first_ns - moved, moved - job.last_ns, 0)
        for moved in (at_ns + (years + more) * _YEAR_NS for more in (-1, 0, 1))
    )
