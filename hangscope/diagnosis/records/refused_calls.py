"""Operations that torch refused to issue because it had compared them with those of other ranks.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` every rank raises what two of them ran, or that others did
not come to the barrier before it, and nothing is recorded of the call itself: what the exceptions
tell is put where the call would stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.trace.job_log.readers.desync import comparison
from hangscope.trace.job_log.readers.gloo import held_up_at_barrier, waited_at_barrier_ms
from hangscope.trace.model import NONE, RECORD_DTYPE, Flag, Signature, Stack, State, Trace

Told = dict[int, tuple[int, dict[int, Signature]]]
"""By rank the place in the group that it gives itself, and what members ran by place."""
_MS_NS = 1_000_000
_MOST_GROUPS = 16
"""Groups that found themselves at odds at one time."""


def with_compared_operations(trace: Trace) -> Trace:
    """The trace, with the operations that exceptions of its ranks tell of.

    A job log's reader does so itself.
    """
    if trace.only_logs:
        return trace
    told: Told = {}
    bounds = rank_bounds(trace)
    for rank, facts in trace.ranks.items():
        if facts.exception is not None and facts.exception.is_main_thread:
            said = comparison(facts.exception.message)
            if said is None and not _in_something(trace, bounds.get(rank, (0, 0))):
                said = held_up_at_barrier(facts.exception.message)
            if said is not None:
                told[rank] = said
    for _ in range(_MOST_GROUPS):
        group, writers = _group(trace, told)
        if not writers:
            break
        trace = _compared(trace, group, {rank: told.pop(rank) for rank in writers})
    return trace


def _in_something(trace: Trace, bounds: tuple[int, int]) -> bool:
    """Whether what a rank issued last is on record as unfinished: then it failed in that."""
    low, high = bounds
    return low < high and int(trace.records["state"][high - 1]) != int(State.COMPLETED)


def _compared(trace: Trace, group: int, told: Told) -> Trace:
    """The trace with what was compared in one group."""
    ran: dict[int, Signature] = {}
    for place, sides in told.values():  # each knows best what it ran itself
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
    raised = [e.at_ns - waited_at_barrier_ms(e.message) * _MS_NS for e in errors]
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


def _group(trace: Trace, told: Told) -> tuple[int, list[int]]:
    """The group that was compared, and those who tell of it: messages number its members.

    It is the one in which most writers are at the places they give; of several the one they used
    last.
    """
    fits: dict[int, list[int]] = {}
    for index, group in enumerate(trace.groups):
        for place, rank in enumerate(group.ranks):
            if (
                rank in told
                and told[rank][0] == place
                and max(told[rank][1], default=0) < len(group.ranks)
            ):
                fits.setdefault(index, []).append(rank)
    most = max(map(len, fits.values()), default=0)
    if not most:
        return NONE, []
    chosen = [index for index, ranks in fits.items() if len(ranks) == most]
    records = trace.records
    rows = np.flatnonzero(np.isin(records["group"], chosen) & np.isin(records["rank"], list(told)))
    used = np.full(len(trace.groups), NONE, np.int64)
    np.maximum.at(used, records["group"][rows], records["created_ns"][rows])
    best = max(chosen, key=lambda index: (int(used[index]), -index))
    return best, fits[best]
