"""Operations that torch refused to issue because it had compared them with those of other ranks.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` every rank raises what two of them ran, and nothing is
recorded of the call itself: what the exceptions tell is put where the call would stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.trace.log_agreement import comparison
from hangscope.trace.model import NONE, RECORD_DTYPE, Flag, Signature, Stack, State, Trace


def with_compared_operations(trace: Trace) -> Trace:
    """The trace, with the operations that exceptions of its ranks tell of.

    A job log's reader does so itself.
    """
    if trace.only_logs:
        return trace
    ran: dict[int, Signature] = {}
    for rank, facts in trace.ranks.items():
        if facts.exception is None or not facts.exception.is_main_thread:
            continue
        told = comparison(facts.exception.message)
        ran |= {other: side for other, side in told.items() if other not in ran or other == rank}
    ran = {rank: side for rank, side in ran.items() if rank in trace.ranks}
    group = _group(trace, ran)
    if len(ran) < 2 or group == NONE:
        return trace
    records = trace.records
    here = np.isin(records["rank"], list(ran)) & (records["group"] == group)
    number = int(records["collective_seq"][here].max(initial=0)) + 1
    raised = [e.at_ns for r in ran if (e := trace.ranks[r].exception) is not None and e.at_ns]
    rows = np.zeros(len(ran), RECORD_DTYPE)
    signatures, stacks = [*trace.signatures], [*trace.stacks]
    for row, (rank, signature) in zip(rows, sorted(ran.items()), strict=True):
        exception = trace.ranks[rank].exception
        stack: Stack = exception.stack if exception is not None else ()
        own = records[records["rank"] == rank]
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


def _group(trace: Trace, ranks: dict[int, Signature]) -> int:
    """The group of all of them that they used last; else the first that holds them all."""
    whole = [i for i, group in enumerate(trace.groups) if set(ranks) <= set(group.ranks)]
    rows = np.flatnonzero(np.isin(trace.records["rank"], list(ranks)))
    used = trace.records["group"][rows[np.argsort(trace.records["created_ns"][rows])]].tolist()
    return next((g for g in reversed(used) if g in whole), whole[0] if whole else NONE)
