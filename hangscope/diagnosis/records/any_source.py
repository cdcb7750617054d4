"""Receives from any source: the ranks that sent less often than others are the ones waited for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class MissingSenders:
    """``behind`` have sent less often than others, ``lost`` left nothing; both may be empty."""

    behind: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


def missing_senders(
    trace: Trace,
    half: Half,
    bounds: Mapping[int, tuple[int, int]],
    recorded: Collection[int],
    hidden: Collection[int],
) -> MissingSenders:
    """The ranks that owe the send a receive from any source waits for.

    If the start of their records is gone, senders that serve only this receiver are compared by the
    p2p counter in every entry.
    """
    members = [r for r in trace.groups[half.group].ranks if r != half.rank]
    lost = tuple(r for r in members if r not in trace.ranks)
    counts: dict[int, int] = {}
    for rank in members:
        if rank in recorded:
            count = _sent(trace, rank, half, bounds.get(rank, (0, 0)), rank in hidden)
            if count is not None:
                counts[rank] = count
    most = max(counts.values(), default=0)
    behind = tuple(sorted(r for r, count in counts.items() if count < most))
    return MissingSenders(behind, lost)


def _sent(trace: Trace, rank: int, half: Half, bounds: tuple[int, int], hidden: bool) -> int | None:
    """Number of sends a rank has issued to the receiver; None if unknown."""
    part = trace.records[bounds[0] : bounds[1]]
    pairs = part[(part["group"] == half.group) & (part["peer"] >= 0)]
    own = pairs[pairs["peer"] == half.rank]
    if not hidden:
        sends = np.array([s.op == "send" for s in trace.signatures] or [False], bool)
        return int(sends[own["signature"]].sum())
    if len(own) != len(pairs):
        return None
    if trace.ranks[rank].only_active:
        own = part[part["group"] == half.group]  # finished sends are not listed, but counted
    return int(own["p2p_seq"].max()) if len(own) else None
