"""Whom the line that a send or receive comes from has always named as its partner."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pairing import Half
from hangscope.trace.model import NONE

_USUAL = 3
"""So many operations of one line make its partner the usual one."""


def left_partner(context: Context, half: Half) -> int:
    """The one rank that the line of ``half`` had always named until now, where it names another.

    -1 where it names whom it always names, or has named several, or too few to tell.
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
