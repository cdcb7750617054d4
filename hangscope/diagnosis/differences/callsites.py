"""The first collective that ranks reached from different lines although it is the same operation.

Ranks that take different branches may meet in the same collective for a while and part later, where
it shows. Where they came from then is a clue to the branch, never a verdict: programs may reach one
collective from two places by design.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause, Parting, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import MISMATCHES, Verdict
from hangscope.diagnosis.processes.stacks import innermost, where

_PARTED = MISMATCHES | {Verdict.MISSING_RANK, Verdict.DEADLOCK_CYCLE}
_WINDOW = 512
"""How many of the last places of the group are compared."""
_AGREED = 4
"""So many places must have been reached from the same lines before one that was not counts."""


def note_first_parting(context: Context, cause: Cause) -> None:
    """Find the first call sites that differ: evidence, and what the advice compares."""
    if cause.verdict not in _PARTED or not cause.culprits:
        return
    where_parted = cause.mismatch
    if where_parted is not None:
        group, seq = where_parted.group, where_parted.seq
    elif cause.places:
        place = context.waits.places[cause.places[0]]
        group, seq = place.group, place.seq
        if place.p2p or place.phase:
            return
    else:
        return
    rank = cause.culprits[0]
    others = [r for r in context.trace.groups[group].ranks if r not in cause.culprits]
    mine = _sites(context, rank, group, seq)
    if len(mine) <= _AGREED or not others:
        return
    witnesses = [_sites(context, r, group, seq) for r in _spread(others)]
    agreed = 0
    for number in sorted(mine):
        theirs = {sites[number] for sites in witnesses if number in sites}
        if len(theirs) != 1:
            agreed = 0  # the others came from different lines themselves, or left nothing
            continue
        (site,) = theirs
        if site == mine[number]:
            agreed += 1
        elif agreed >= _AGREED:
            cause.parted = Parting(number, mine[number], site)
            cause.evidence.append(
                f"already at #{number} of the group {rank_list((rank,))} came from "
                f"{mine[number]} and the others from {site}, though the operation is the same"
            )
            return
        else:
            return


def _spread(ranks: list[int]) -> list[int]:
    """A few of many: three witnesses that agree are enough for a clue."""
    if len(ranks) <= 4:
        return ranks
    return [ranks[0], ranks[1], ranks[len(ranks) // 2], ranks[-1]]


def _sites(context: Context, rank: int, group: int, before: int) -> dict[int, str]:
    """Per sequence number below ``before`` the user's line that issued it, the newest few."""
    low, high = context.bounds.get(rank, (0, 0))
    part = context.trace.records[low:high]
    rows = np.flatnonzero(
        (part["group"] == group)
        & context.front.collective[low:high]
        & (part["collective_seq"] < before)
        & (part["stack"] >= 0)
    )[-_WINDOW:]
    found: dict[int, str] = {}
    known: dict[int, str] = {}
    for row in rows.tolist():
        stack = int(part["stack"][row])
        site = known.get(stack)
        if site is None:
            site = known[stack] = where(innermost(context.trace.stacks[stack]))
        if site:
            found[int(part["collective_seq"][row])] = site
    return found
