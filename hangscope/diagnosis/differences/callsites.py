"""The first collective that ranks reached from different lines although it is the same operation.

Ranks that take different branches may meet in the same collectives for a while and only visibly
diverge later. Their earlier call sites are a clue to the branch, never a verdict: programs may
reach one collective from two places by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, Divergence
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import MISMATCHES, Verdict
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.phrases import rank_s

_DIVERGED = MISMATCHES | {Verdict.MISSING_RANK, Verdict.DEADLOCK_CYCLE}
_WINDOW = 512
"""How many of the group's last collectives are compared."""
_AGREED = 4
"""This many collectives must have been reached from the same lines before one that was not."""


def with_first_divergence(context: Context, cause: Cause) -> Cause:
    """The cause with the first call sites that differ: evidence, and lines for the advice to
    compare."""
    place = _place_of(context, cause)
    if place is None or cause.verdict not in _DIVERGED or not cause.culprits:
        return cause
    own, others = _parties(cause, context.trace.groups[place[0]].ranks)
    found = _first_divergence(context, own, others, place)
    if found is None:
        return cause
    return replace(cause, diverged=found).with_evidence(
        f"already at #{found.seq} of the group {rank_s((own,))} came from "
        f"{found.mine} and the others from {found.theirs}, though the operation is the same"
    )


def _parties(cause: Cause, members: Sequence[int]) -> tuple[int, list[int]]:
    """One of the accused and the others; between equal sides, one of the first and all others."""
    accused = cause.culprits
    if cause.sides and set(members) <= set(accused):
        accused = cause.sides[0]
    return accused[0], [rank for rank in members if rank not in accused]


def _first_divergence(
    context: Context, own: int, others: list[int], place: tuple[int, int]
) -> Divergence | None:
    group, seq = place
    own_sites = _sites(context, own, group, seq)
    if len(own_sites) <= _AGREED or not others:
        return None
    witnesses = [_sites(context, r, group, seq) for r in _spread(others)]
    agreed = 0
    for number in sorted(own_sites):
        other_sites = {sites[number] for sites in witnesses if number in sites}
        if len(other_sites) != 1:
            agreed = 0  # the others came from different lines themselves, or left nothing
            continue
        (site,) = other_sites
        if site == own_sites[number]:
            agreed += 1
        elif agreed >= _AGREED:
            return Divergence(number, own_sites[number], site)
        else:
            return None
    return None


def _place_of(context: Context, cause: Cause) -> tuple[int, int] | None:
    """(group, number) of the collective that a cause is about, if it is about one."""
    if cause.mismatch is not None:
        return cause.mismatch.group, cause.mismatch.seq
    if not cause.places:
        return None
    place = context.waits.places[cause.places[0]]
    return None if place.p2p or place.phase else (place.group, place.seq)


def _spread(ranks: list[int]) -> list[int]:
    """A few of many: three witnesses that agree suffice for a clue."""
    if len(ranks) <= 4:
        return ranks
    return [ranks[0], ranks[1], ranks[len(ranks) // 2], ranks[-1]]


def _sites(context: Context, rank: int, group: int, before: int) -> dict[int, str]:
    """Per sequence number below ``before`` the user's line that issued it; the newest few."""
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
