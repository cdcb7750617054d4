"""Puts log timestamps, which are in local time and have no year, on the clock of the records.

An operation whose start is recorded, and whose timeout after so many milliseconds is logged, shows
how far apart the two clocks are. So does an end of a rank that is in both. Time zones differ by
whole quarters of an hour, and so do years: only an offset close to such a multiple is accepted. If
log and records share no event, the times stay unchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from hangscope.trace import formats
from hangscope.trace.clocks import shift_fragment
from hangscope.trace.model import Fragment, Records

_QUARTER_NS = 15 * 60 * 10**9
_CLOSE_NS = 60 * 10**9
"""A watchdog polls, and a launcher reports an exit only after it has reaped the process."""

Moments = dict[tuple[int, int], int]
"""Times (ns) of events by rank and sequence number; the end of a rank has number -1."""
_END = -1


def align_log_clocks(fragments: list[Fragment]) -> list[Fragment]:
    """The fragments with the timestamps of logs on the clock of the records.

    A log that shares no event with the records is shifted like the other logs, if those agree.
    """
    logged: dict[str, Moments] = defaultdict(dict)
    for fragment in fragments:
        if fragment.source.format == formats.LOG:
            logged[fragment.source.path].update(_logged_times(fragment))
    wanted = {key for moments in logged.values() for key in moments}
    if not wanted:
        return fragments
    recorded = [f for f in fragments if f.source.format != formats.LOG]
    known = _recorded_times(recorded, wanted)
    shifts = {path: _shift(moments, known) for path, moments in logged.items()}
    found = {shift for shift in shifts.values() if shift is not None}
    usual = next(iter(found)) if len(found) == 1 else 0
    if not any(found):
        return fragments
    return [
        shift_fragment(f, usual if (own := shifts[f.source.path]) is None else own)
        if f.source.format == formats.LOG
        else f
        for f in fragments
    ]


def _logged_times(fragment: Fragment) -> Moments:
    """When the operations of one rank began and when it ended, according to one log."""
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


def _recorded_times(
    fragments: Iterable[Fragment], wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], list[int]]:
    """The recorded times of the same events; several if groups share sequence numbers."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for rank, seq in wanted:
        numbers[rank].append(seq)  # _END matches no collective
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
    """How far (ns) to shift a log's timestamps; None if that is unknown or ambiguous."""
    votes: Counter[int] = Counter()
    for key, at_ns in moments.items():
        ahead = np.array(known.get(key, ()), np.int64) - at_ns
        quarters = np.rint(ahead / _QUARTER_NS).astype(np.int64)
        votes.update(set(quarters[np.abs(ahead - quarters * _QUARTER_NS) <= _CLOSE_NS].tolist()))
    best = votes.most_common(2)
    if not best or (len(best) == 2 and best[0][1] == best[1][1]):
        return None
    return best[0][0] * _QUARTER_NS
