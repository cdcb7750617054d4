"""Logs are written in local time and without a year; what ranks record is neither.

The same operation, begun on record and given up in the log after a number of milliseconds, tells
how far a log's clock is from that of the records; so does the same end of a rank. Zones lie whole
quarters of an hour apart, and so do years: only an offset close to a multiple of that is believed.
Where nothing stands in both, the times stay as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hangscope.trace import formats
from hangscope.trace.clocks import MEMBER_TIMES, RECORD_TIMES, moved, shifted
from hangscope.trace.model import Fragment, Records

_QUARTER_NS = 15 * 60 * 10**9
_CLOSE_NS = 60 * 10**9
"""A watchdog looks now and then, and a launcher tells of an end when it has collected it."""

Moments = dict[tuple[int, int], int]
"""When (ns) something happened, by rank and sequence number; the end of a rank has number -1."""
_END = -1


def on_one_clock(fragments: list[Fragment]) -> list[Fragment]:
    """The fragments with the times of logs on the clock of the records.

    Logs in which nothing is found are moved as the others are, where these agree.
    """
    told: dict[str, Moments] = defaultdict(dict)
    for fragment in fragments:
        if fragment.source.format == formats.LOG:
            told[fragment.source.path].update(_moments(fragment))
    wanted = {key for moments in told.values() for key in moments}
    if not wanted:
        return fragments
    recorded = [f for f in fragments if f.source.format != formats.LOG]
    known = _recorded(recorded, wanted)
    shifts = {path: _shift(moments, known) for path, moments in told.items()}
    found = {shift for shift in shifts.values() if shift is not None}
    usual = next(iter(found)) if len(found) == 1 else 0
    if not any(found):
        return fragments
    return [
        _on_other_clock(f, usual if (own := shifts[f.source.path]) is None else own)
        if f.source.format == formats.LOG
        else f
        for f in fragments
    ]


def _moments(fragment: Fragment) -> Moments:
    """When the operations of one rank began and when it ended, as one log has it."""
    rank = fragment.facts.rank
    rows = fragment.records[fragment.records["created_ns"] > 0]
    found = {
        (rank, int(seq)): int(at_ns)
        for seq, at_ns in zip(rows["collective_seq"], rows["created_ns"], strict=True)
        if seq > 0
    }
    if fragment.facts.exit is not None and fragment.facts.exit.at_ns:
        found[rank, _END] = fragment.facts.exit.at_ns
    return found


def _recorded(
    fragments: Iterable[Fragment], wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], list[int]]:
    """The same moments on record: several where groups have the same numbers."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for rank, seq in wanted:
        numbers[rank].append(seq)  # the number of an end is that of no collective
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for fragment in fragments:
        rank = fragment.facts.rank
        if rank not in numbers:
            continue
        for seq, at_ns in _created(fragment.records, numbers[rank]):
            found[rank, seq].append(at_ns)
        if fragment.facts.exit is not None and fragment.facts.exit.at_ns:
            found[rank, _END].append(fragment.facts.exit.at_ns)
    return found


def _created(records: Records, numbers: list[int]) -> list[tuple[int, int]]:
    asked = np.isin(records["collective_seq"], numbers) & (records["collective_seq"] > 0)
    rows = records[asked & (records["created_ns"] > 0)]
    return list(zip(rows["collective_seq"].tolist(), rows["created_ns"].tolist(), strict=True))


def _shift(moments: Moments, known: dict[tuple[int, int], list[int]]) -> int | None:
    """How far a log's times are to be moved (ns); None where nothing tells, or not one thing."""
    votes: Counter[int] = Counter()
    for key, at_ns in moments.items():
        ahead = np.array(known.get(key, ()), np.int64) - at_ns
        quarters = np.rint(ahead / _QUARTER_NS).astype(np.int64)
        votes.update(set(quarters[np.abs(ahead - quarters * _QUARTER_NS) <= _CLOSE_NS].tolist()))
    best = votes.most_common(2)
    if not best or (len(best) == 2 and best[0][1] == best[1][1]):
        return None
    return best[0][0] * _QUARTER_NS


def _on_other_clock(fragment: Fragment, shift_ns: int) -> Fragment:
    if not shift_ns:
        return fragment
    return replace(
        fragment,
        facts=moved(fragment.facts, shift_ns),
        records=shifted(fragment.records, RECORD_TIMES, shift_ns),
        members=shifted(fragment.members, MEMBER_TIMES, shift_ns),
        claims=tuple(
            replace(claim, at_ns=claim.at_ns and claim.at_ns + shift_ns)
            for claim in fragment.claims
        ),
    )
