"""Hosts whose clocks disagree, told by the collectives they finished together.

An operation that nobody can finish before every member has issued it ends everywhere at almost the
same moment. Where the clocks of two hosts say otherwise, time after time and by the same amount,
one of the clocks is wrong, and times of one host must not be compared with those of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Flag, RankFacts, State, Trace

SKEW_S = 2.0
"""Less is not worth a word: noticing an end may take a second."""
_NEWEST = 256
"""Collectives per rank that are compared, the newest ones."""
_ENOUGH = 3
_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
_RECORD_TIMES = ("created_ns", "started_ns", "completed_ns")
_MEMBER_TIMES = ("enqueued_ns", "completed_ns")


def align_clocks(trace: Trace) -> Trace:
    """The trace with the times of all hosts on one clock, and a warning where that took shifting.

    The clock is that of the host which looks, or else of the lowest rank's.
    """
    hosts: dict[str, list[int]] = {}
    for rank, facts in sorted(trace.ranks.items()):
        if facts.host:
            hosts.setdefault(facts.host, []).append(rank)
    if len(hosts) < 2 or not len(trace.records):
        return trace
    here = [name for name, ranks in hosts.items() if trace.ranks[ranks[0]].alive is not None]
    reference = here[0] if len(here) == 1 else next(iter(hosts))
    ends = _Ends(trace)
    shifts: dict[str, int] = {reference: 0}
    waiting = [name for name in hosts if name != reference]
    found = True
    while found and waiting:  # a host may share groups only with one that was compared before
        found = False
        for name in list(waiting):
            for known, shift in list(shifts.items()):
                ahead_ns = ends.ahead(hosts[name], hosts[known])
                if ahead_ns is not None:
                    shifts[name] = shift - ahead_ns
                    waiting.remove(name)
                    found = True
                    break
    wrong = {n: s for n, s in shifts.items() if abs(s) > SKEW_S * 1e9}
    return _shifted(trace, hosts, wrong, reference) if wrong else trace


class _Ends:
    """When each rank finished the collectives that end everywhere at once."""

    def __init__(self, trace: Trace) -> None:
        records = trace.records
        together = np.array([s.op not in _ONE_SIDED for s in trace.signatures] or [False], bool)
        loose = int(Flag.P2P | Flag.COALESCED_MEMBER | Flag.UNOBSERVED | Flag.SYNTHETIC)
        good = (records["state"] == int(State.COMPLETED)) & (records["completed_ns"] > 0)
        good &= ((records["flags"] & loose) == 0) & together[records["signature"]]
        self._rows = records[good]
        self._of_rank: dict[int, dict[tuple[int, int], int]] = {}

    def _of(self, rank: int) -> dict[tuple[int, int], int]:
        known = self._of_rank.get(rank)
        if known is None:
            low, high = np.searchsorted(self._rows["rank"], [rank, rank + 1])
            rows = self._rows[max(int(low), int(high) - _NEWEST) : int(high)]
            places = zip(rows["group"].tolist(), rows["collective_seq"].tolist(), strict=True)
            known = dict(zip(places, rows["completed_ns"].tolist(), strict=True))
            self._of_rank[rank] = known
        return known

    def ahead(self, ranks: list[int], others: list[int]) -> int | None:
        """How far (ns) the clock of ``ranks`` is ahead of that of ``others``; None: not known."""
        for one in ranks[:8]:
            mine = self._of(one)
            for two in others[:8]:
                theirs = self._of(two)
                common = [mine[place] - theirs[place] for place in mine.keys() & theirs.keys()]
                if len(common) >= _ENOUGH:
                    middle = int(np.median(common))
                    spread = np.abs(np.array(common) - middle)
                    # An offset is the same every time; anything else is no clock.
                    return middle if float(np.median(spread)) < SKEW_S * 1e9 / 2 else None
        return None


def _shifted(
    trace: Trace, hosts: Mapping[str, list[int]], wrong: Mapping[str, int], reference: str
) -> Trace:
    shift_of = {rank: shift for name, shift in wrong.items() for rank in hosts[name]}
    ranks = {
        rank: _moved(facts, shift_of[rank]) if rank in shift_of else facts
        for rank, facts in trace.ranks.items()
    }
    words = [
        f"the clock of host {name} is {abs(shift) / 1e9:.0f} s "
        f"{'behind' if shift > 0 else 'ahead of'} that of host {reference}; its times are shown "
        "corrected"
        for name, shift in sorted(wrong.items())
    ]
    return replace(
        trace,
        records=_shifted_columns(trace.records, _RECORD_TIMES, shift_of),
        members=_shifted_columns(trace.members, _MEMBER_TIMES, shift_of),
        ranks=ranks,
        warnings=(*trace.warnings, *words),
    )


def _shifted_columns(
    table: npt.NDArray[np.void], columns: tuple[str, ...], shift_of: Mapping[int, int]
) -> npt.NDArray[np.void]:
    if not len(table):
        return table
    moved = table.copy()
    by_rank = np.zeros(int(table["rank"].max()) + 1, np.int64)
    for rank, shift in shift_of.items():
        if rank < len(by_rank):
            by_rank[rank] = shift
    shift = by_rank[table["rank"]]
    for column in columns:
        moved[column] += np.where(moved[column] > 0, shift, 0)
    return moved


def _moved(facts: RankFacts, shift: int) -> RankFacts:
    """Facts of a process with all its own times on the other clock."""
    exit_, exception = facts.exit, facts.exception
    return replace(
        facts,
        heartbeat_ns=facts.heartbeat_ns and facts.heartbeat_ns + shift,
        observed_ns=facts.observed_ns and facts.observed_ns + shift,
        phases=tuple(replace(p, since_ns=p.since_ns and p.since_ns + shift) for p in facts.phases),
        exit=exit_ and replace(exit_, at_ns=exit_.at_ns and exit_.at_ns + shift),
        exception=exception
        and replace(exception, at_ns=exception.at_ns and exception.at_ns + shift),
        threads=tuple(
            replace(t, sampled_ns=t.sampled_ns and t.sampled_ns + shift) for t in facts.threads
        ),
    )
