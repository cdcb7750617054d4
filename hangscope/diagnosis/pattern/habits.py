"""A rank's habits at a line: the peer it names, and what it issues before."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.records.agreement import input_numel
from hangscope.diagnosis.records.kinds import is_sending
from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, Signature

_USUAL = 3
"""This many operations of a line establish its usual peer."""
_USUAL_WAY = 2
_NEWEST = 512


def abandoned_peer(context: Context, half: Half) -> int:
    """The one peer that the line of ``half`` had always named until now, if it names another.

    -1 if it names its usual peer, has named several, or too few times to tell.
    """
    records = context.trace.records
    row = records[half.row]
    past = records[context.bounds[half.rank][0] : half.row]
    past = past[(past["stack"] == row["stack"]) & (past["group"] == row["group"])]
    families, own = context.families, context.families[row["signature"]]
    partners = [
        peer
        for peer, what in zip(past["peer"].tolist(), past["signature"].tolist(), strict=True)
        if families[what] == own
    ]
    if row["stack"] == NONE or len(partners) < _USUAL or len({*partners}) != 1:
        return NONE
    return int(partners[0]) if half.peer != partners[0] else NONE


def sent_unusually(context: Context, rank: int, peer: int) -> bool:
    """Whether a rank sent its peer sizes, or an order of sizes, that it never sent before.

    Compares what it sent since the last collective of both with what it sent after each earlier
    one. False with fewer than two earlier steps.
    """
    steps: list[list[int | None]] = [[]]
    low, high = context.bounds.get(rank, (0, 0))
    common = [g for g, group in enumerate(context.trace.groups) if {rank, peer} <= {*group.ranks}]
    for row in range(max(low, high - _NEWEST), high):
        record = context.trace.records[row]
        if record["signature"] == NONE:
            continue
        signature = context.trace.signatures[record["signature"]]
        if context.front.collective[row] and record["group"] in common:
            steps.append([])
        elif record["peer"] == peer and is_sending(signature):
            steps[-1].append(input_numel(signature))
    sending = [step for step in steps if step]
    if len(sending) <= _USUAL_WAY:
        return False
    *earlier, newest = sending
    return not any(step[: len(newest)] == newest for step in earlier)


def waits_at_new_line(context: Context, rank: int) -> bool:
    """Whether a rank waits in a send or receive at a line where it had never sent or received.

    Without recorded lines, a new dtype or number of dimensions shows the same; sizes may be new in
    every step.
    """
    records = context.trace.records
    low, high = context.bounds.get(rank, (0, 0))
    open_ = np.flatnonzero(context.front.unfinished[low:high])
    if not len(open_) or records["peer"][low + open_[0]] < 0:
        return False
    row = low + int(open_[0])
    past = records[low:row]
    past = past[past["peer"] >= 0]
    if not len(past):
        return False
    if records["stack"][row] != NONE:
        return not (past["stack"] == records["stack"][row]).any()
    kinds = {tensors_of(context.trace.signatures[s]) for s in set(past["signature"].tolist())}
    return tensors_of(context.trace.signatures[records["signature"][row]]) not in kinds


def tensors_of(signature: Signature) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
    """The kind of tensors: dtypes and numbers of dimensions; sizes may always differ."""
    return signature.input_dtypes, tuple(len(size) for size in signature.input_sizes or ())
