"""Operations that torch refused to issue after comparing them across ranks.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` every rank raises which operations two of them ran, or that
others did not reach the preceding barrier. The call itself is not recorded, so what the exceptions
say is inserted where the call would be.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.observability import is_text_alone
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.trace.job_log.rows.comparisons import comparison
from hangscope.trace.job_log.rows.gloo import failed_monitored_barrier, monitored_barrier_wait_ms
from hangscope.trace.model import NONE, RECORD_DTYPE, Flag, Signature, Stack, State, Trace

Reports = dict[int, tuple[int, dict[int, Signature]]]
"""Per rank its own place in the group, and what members ran, by place."""
_MS_NS = 1_000_000
_MOST_GROUPS = 16
"""Limit on groups that disagree at one time."""


def with_refused_calls(trace: Trace) -> Trace:
    """The trace with the operations reported by the ranks' exceptions.

    Of printed text, the reader does that itself.
    """
    if is_text_alone(trace):
        return trace
    reports: Reports = {}
    bounds = rank_bounds(trace)
    for rank, facts in trace.ranks.items():
        if facts.exception is not None and facts.exception.is_main_thread:
            said = comparison(facts.exception.message)
            if said is None and not _in_something(trace, bounds.get(rank, (0, 0))):
                said = failed_monitored_barrier(facts.exception.message)
            if said is not None:
                reports[rank] = said
    for _ in range(_MOST_GROUPS):
        group, writers = _group(trace, reports)
        if not writers:
            break
        trace = _compared(trace, group, {rank: reports.pop(rank) for rank in writers})
    return trace


def _in_something(trace: Trace, bounds: tuple[int, int]) -> bool:
    """Whether the rank's last operation is recorded as unfinished: then it failed in that one."""
    low, high = bounds
    return low < high and int(trace.records["state"][high - 1]) != int(State.COMPLETED)


def _compared(trace: Trace, group: int, reports: Reports) -> Trace:
    """The trace with the operations compared in one group."""
    ran: dict[int, Signature] = {}
    for place, sides in reports.values():  # each rank knows best what it ran itself
        for other, signature in sides.items():
            member = trace.groups[group].ranks[other]
            if member in trace.ranks and (member not in ran or other == place):
                ran[member] = signature
    if len(ran) < 2 and not any(its.op == "monitored_barrier" for its in ran.values()):
        return trace
    records = trace.records
    here = np.isin(records["rank"], list(ran)) & (records["group"] == group)
    number = int(records["collective_seq"][here].max(initial=0)) + 1
    errors = [e for r in ran if (e := trace.ranks[r].exception) is not None and e.at_ns]
    raised = [e.at_ns - monitored_barrier_wait_ms(e.message) * _MS_NS for e in errors]
    rows = np.zeros(len(ran), RECORD_DTYPE)
    signatures, stacks = [*trace.signatures], [*trace.stacks]
    bounds = rank_bounds(trace)
    for row, (rank, signature) in zip(rows, sorted(ran.items()), strict=True):
        exception = trace.ranks[rank].exception
        stack: Stack = exception.stack if exception is not None else ()
        low, high = bounds.get(rank, (0, 0))
        own = records[low:high]
        row["rank"], row["group"], row["collective_seq"] = rank, group, number
        row["record_id"] = int(own["record_id"].max(initial=0)) + 1
        row["signature"], row["stack"] = len(signatures), len(stacks)
        row["peer"] = row["root"] = NONE
        row["thread"] = own["thread"][-1] if len(own) else 0
        row["created_ns"] = min(raised, default=0)
        row["state"] = int(State.SCHEDULED)
        row["flags"] = int(Flag.SYNTHETIC | Flag.FAILED)
        signatures.append(signature)
        stacks.append(stack)
    together = np.concatenate([records, rows])
    return replace(
        trace,
        records=together[np.argsort(together["rank"], kind="stable")],
        signatures=tuple(signatures),
        stacks=tuple(stacks),
    )


def _group(trace: Trace, reports: Reports) -> tuple[int, list[int]]:
    """The compared group, and the ranks whose messages mention it: messages number its members.

    It is the group in which most authors have the places they state; of several, the last one used.
    """
    fits: dict[int, list[int]] = {}
    by_place = sorted(reports.items(), key=lambda item: item[1][0])
    for index, group in enumerate(trace.groups):
        for rank, (place, sides) in by_place:
            if (
                place < len(group.ranks)
                and group.ranks[place] == rank
                and max(sides, default=0) < len(group.ranks)
            ):
                fits.setdefault(index, []).append(rank)
    most = max(map(len, fits.values()), default=0)
    if not most:
        return NONE, []
    chosen = [index for index, ranks in fits.items() if len(ranks) == most]
    records = trace.records
    rows = np.flatnonzero(
        np.isin(records["group"], chosen) & np.isin(records["rank"], list(reports))
    )
    used = np.full(len(trace.groups), NONE, np.int64)
    np.maximum.at(used, records["group"][rows], records["created_ns"][rows])
    best = max(chosen, key=lambda index: (int(used[index]), -index))
    return best, fits[best]
