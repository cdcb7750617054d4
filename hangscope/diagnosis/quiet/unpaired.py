"""Sends and receives whose ends nobody observes, on a job that stands still: which lack a partner.

On a device the host issues and goes on: nothing on record tells which of these halves has finished,
and after them every rank may have issued the same collectives. What is left is to count. On NCCL
the halves between two ranks meet in their order and none ends without its partner, so where both
rings hold all of them and one side has issued fewer, the other side's newest waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Side, Verdict
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.evidence import hidden_ranks
from hangscope.diagnosis.records.kinds import is_on_host, is_sending, which
from hangscope.diagnosis.records.returned import from_rings
from hangscope.diagnosis.words import playbook
from hangscope.diagnosis.words.phrases import rank_s
from hangscope.trace.model import Flag, State


@dataclass(frozen=True, slots=True)
class Unpaired:
    """One direction between two ranks of a group in which one side has issued fewer halves."""

    group: int
    source: int
    target: int
    surplus: int
    """Sends without a receive; negative: receives without a send."""
    row: int
    """The newest half of the side that has issued more."""

    @property
    def waiting(self) -> int:
        """The rank whose half has no partner."""
        return self.source if self.surplus > 0 else self.target

    @property
    def owing(self) -> int:
        """The rank that never issued the other half."""
        return self.target if self.surplus > 0 else self.source


def unpaired(context: Context, silent_s: float) -> Finding | None:
    """The finding for halves that cannot have met; None where every count agrees.

    ``silent_s``: how long no rank has issued or finished anything.
    """
    found = unpaired_halves(context)
    if not found:
        return None
    first = min(found, key=lambda f: int(context.trace.records["created_ns"][f.row]))
    owing = tuple(sorted({f.owing for f in found}))
    waiting = tuple(sorted({f.waiting for f in found} - set(owing)))
    other = "recv" if first.surplus > 0 else "send"
    half = "send" if first.surplus > 0 else "recv"
    arrow = f"{first.source}->{first.target}"
    times = f", {abs(first.surplus)} fewer than there" if abs(first.surplus) > 1 else ""
    place = user_frames(context.stack(first.row))
    advice = playbook.by_verdict(Verdict.P2P_UNMATCHED)
    return Finding(
        Verdict.P2P_UNMATCHED,
        owing,
        waiting,
        Confidence.LIKELY if len(owing) == 1 else Confidence.AMBIGUOUS,
        f"Rank {first.owing} never issued its {other} for a {half} of rank {first.waiting} "
        f"({arrow}){times}, and nothing has moved for {silent_s:.0f} s",
        "on a device a half without its partner holds up all that comes after it, also what every "
        "rank has issued since",
        advice.fix,
        advice.playbook,
        context.group_ref(first.group),
        op=half,
        sides=(Side((first.waiting,), op=half, peer=first.owing, stack=place),),
        evidence=tuple(
            f"{rank_s((f.source,))} sent {'more' if f.surplus > 0 else 'less'} to "
            f"{rank_s((f.target,))} than was received there (by {abs(f.surplus)})"
            for f in found[:_SHOWN]
        ),
        unknowns=("which sends and receives have finished is not on record",),
    )


_SHOWN = 8


def unpaired_halves(context: Context) -> list[Unpaired]:
    """Every direction in which two ranks have issued different numbers of halves."""
    trace = context.trace
    records = trace.records
    flags = records["flags"]
    rows = np.flatnonzero(
        ((flags & int(Flag.P2P)) != 0)
        & ((flags & int(Flag.COALESCED_BATCH)) == 0)
        & ~which(trace, is_on_host)
        & from_rings(trace)
    )
    if not len(rows) or trace.missing_ranks:
        return []
    seen = (flags[rows] & int(Flag.UNOBSERVED)) == 0
    if (seen | (records["state"][rows] == int(State.COMPLETED))).all():
        return []  # who has finished is on record, and has been judged by that
    if (records["peer"][rows] < 0).any():
        return []  # from any source: whose half it takes is not on record
    hidden = hidden_ranks(trace)
    rank = records["rank"][rows].astype(np.int64)
    peer = records["peer"][rows].astype(np.int64)
    sends = which(trace, is_sending, rows)
    span = int(max(rank.max(), peer.max())) + 1
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    channel = (records["group"][rows].astype(np.int64) * span + source) * span + target
    keys, of_row = np.unique(channel, return_inverse=True)
    surplus = np.bincount(of_row, np.where(sends, 1, -1), len(keys)).astype(np.int64)
    found = []
    for index in np.flatnonzero(surplus).tolist():
        group, pair = divmod(int(keys[index]), span * span)
        one, two = divmod(pair, span)
        if hidden.isdisjoint((one, two)):
            mine = rows[(of_row == index) & (sends == (surplus[index] > 0))]
            found.append(Unpaired(group, one, two, int(surplus[index]), int(mine[-1])))
    return found
