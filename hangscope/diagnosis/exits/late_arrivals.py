"""Ranks that reached a collective only after the ranks waiting for them had timed out.

If no launcher ends the job at its first failure, a rank that was busy elsewhere continues, issues
the operation in which the others timed out, and fails because they are gone. By then all have
issued it, but they were never there together, and the late rank is at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.processes.failures import waited_in_vain
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.trace.model import NONE, Flag, RankFacts, Records, State, Trace, flagged

MARGIN_NS = 1_000_000_000
"""Aligned clocks of different hosts deviate by less."""


def without_late_arrivals(trace: Trace) -> Trace:
    """The trace without operations issued after all other ranks there had timed out."""
    gave_up = gave_up_ns(trace)
    if not gave_up:
        return trace
    records = trace.records
    last = {rank: stop - 1 for rank, (_, stop) in rank_bounds(trace).items()}
    failed: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for rank, at_ns in gave_up.items():
        row = records[last[rank]]
        pair = int(row["flags"]) & int(Flag.P2P)
        if row["group"] != NONE and not pair and row["state"] != int(State.COMPLETED):
            failed[int(row["group"]), int(row["collective_seq"])][rank] = at_ns
    late: list[int] = []
    for place, rows in _rows_at(records, failed.keys()).items():
        by_rank = failed[place]
        if (records["state"][rows] == int(State.COMPLETED)).any():
            continue
        rows = rows[np.argsort(records["created_ns"][rows], kind="stable")]
        until_ns = 0
        for position, row in enumerate(rows.tolist()):
            if until_ns and int(records["created_ns"][row]) > until_ns + MARGIN_NS:
                late += rows[position:].tolist()
                break
            rank = int(records["rank"][row])
            if rank not in by_rank:
                break  # that one was still waiting
            until_ns = max(until_ns, by_rank[rank])
    return _without(trace, late) if late else trace


def _rows_at(
    records: Records, places: Collection[tuple[int, int]]
) -> dict[tuple[int, int], npt.NDArray[np.intp]]:
    """Rows of the collectives (group, sequence number), found in one pass over all records."""
    groups, numbers = np.array(sorted(places), np.int64).reshape(-1, 2).T
    found = np.flatnonzero(
        np.isin(records["group"], groups)
        & np.isin(records["collective_seq"], numbers)
        & ~flagged(records["flags"], Flag.P2P)
    )
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, group, seq in zip(
        found.tolist(),
        records["group"][found].tolist(),
        records["collective_seq"][found].tolist(),
        strict=True,
    ):
        if (group, seq) in places:
            rows[group, seq].append(row)
    return {place: np.array(own) for place, own in rows.items()}


def came_too_late(
    process: ProcessState, waiters: Sequence[ProcessState | None], ranks: Mapping[int, RankFacts]
) -> bool:
    """Whether a rank failed only because all ranks that had waited for it timed out and ended.

    Its own end comes after theirs and explains nothing: until then it was elsewhere. ``ranks``: on
    one host, times are exact.
    """
    if process.end is not End.CRASHED or not process.secondary or not process.end_ns:
        return False
    known = [one for one in waiters if one is not None and one.gone and one.secondary]
    here = ranks[process.rank].host
    exact = here is not None and all(ranks[one.rank].host == here for one in known)
    before_ns = process.end_ns - (0 if exact else MARGIN_NS)
    return (
        len(known) == len(waiters) > 0
        and any(one.failure.waited_in_vain for one in known)
        and all(0 < one.end_ns < before_ns for one in known)
    )


def gave_up_ns(trace: Trace) -> dict[int, int]:
    """Ranks that ended because their wait timed out, and when (ns)."""
    recorded = rank_bounds(trace)
    return {
        rank: facts.exception.at_ns
        for rank, facts in trace.ranks.items()
        if facts.exception is not None
        and rank in recorded
        and facts.exception.is_main_thread
        and facts.exception.at_ns
        and waited_in_vain(facts.exception)
    }


def rewind_counters(members: Records, undone: Mapping[str, Records]) -> None:
    """Set counters that count discarded collectives back to the number before them, in place.

    ``undone``: per counter, the rows of the collectives to take out.
    """
    of = zip(members["rank"].tolist(), members["group"].tolist(), strict=True)
    place = {pair: i for i, pair in enumerate(of)}
    for counter, rows in undone.items():
        for row in rows:
            index = place.get((int(row["rank"]), int(row["group"])))
            if index is not None:
                before = int(row["collective_seq"]) - 1
                members[counter][index] = min(int(members[counter][index]), before)


def _without(trace: Trace, late: list[int]) -> Trace:
    """The trace without some rows, and with counters that do not count them."""
    members = trace.members.copy()
    rewind_counters(members, {"enqueued": trace.records[late]})
    return replace(trace, records=np.delete(trace.records, late), members=members)
