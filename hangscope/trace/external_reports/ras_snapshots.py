"""Compares reports that NCCL's RAS gave of one job at different times.

Ranks launch operations at slightly different moments, so one report that shows a rank behind may
have been taken in between. Two tell: either the numbers have grown, or the rank is still behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hangscope.trace import formats
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Claim,
    ClaimDetails,
    Fragment,
    Source,
)

_OF = tuple[str, str]
"""A communicator and an operation of its members; "" for all together."""


def compare_snapshots(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments, without what a later report shows to have been a moment's difference."""
    seen: dict[_OF, list[int]] = defaultdict(list)
    for fragment in fragments:
        for claim in fragment.claims:
            if snapshot := claim.details.snapshot:
                seen[snapshot[0], snapshot[1]].append(snapshot[2])
    for path in dict.fromkeys(f.source.path for f in fragments if f.source.format == formats.RAS):
        for name, least in _least(path, fragments).items():
            seen[name, ""].append(least)
    several = {key: counts for key, counts in seen.items() if len(counts) > 1}
    moved = {key: counts for key, counts in several.items() if counts[-1] != counts[-2]}
    if not several:
        return [*fragments]
    found = [_without(f, {name for name, _ in moved}) if moved else f for f in fragments]
    if moved:
        (name, op), counts = next(iter(moved.items()))
        text = (
            f"NCCL's RAS was asked {len(counts)} times: every member of communicator {name} had "
            f"launched {min(counts)} {op or 'collectives'} at first and {max(counts)} later, so it "
            "moves, and a difference between members in one report is one of moments"
        )
        claim = Claim("other", text=text, certain=False, details=ClaimDetails(stands=True))
        source = next(f.source for f in found if _is_ras(f))
        of_all = replace(source, rank=None, records=0)
        return [*found, _saying(of_all, claim, found)]
    return [_confirmed(f, set(several)) for f in found]


def _is_ras(fragment: Fragment) -> bool:
    return fragment.source.format in (formats.RAS, formats.LOG)


def _saying(source: Source, claim: Claim, fragments: Sequence[Fragment]) -> Fragment:
    world = max((f.facts.world_size or 0 for f in fragments), default=0) or None
    facts = replace(fragments[0].facts, rank=NONE, threads=(), exit=None, exception=None)
    return Fragment(source, replace(facts, world_size=world, pid=None), claims=(claim,))


def _least(path: str, fragments: Sequence[Fragment]) -> dict[str, int]:
    """What every member of each communicator had launched according to one report."""
    least: dict[str, int] = {}
    for fragment in fragments:
        if fragment.source.path != path:
            continue
        for member in fragment.members:
            name = fragment.groups[member["group"]].name
            count = int(member["enqueued"])
            least[name] = min(least.get(name, count), count)
    return least


def _without(fragment: Fragment, moving: set[str]) -> Fragment:
    """A fragment without accusations over communicators that move."""
    claims = tuple(c for c in fragment.claims if _name(c) not in moving)
    fragment = replace(fragment, claims=claims)
    if fragment.source.format != formats.RAS:
        return fragment
    return replace(fragment, records=np.zeros(0, RECORD_DTYPE), members=np.zeros(0, MEMBER_DTYPE))


def _name(claim: Claim) -> str:
    return claim.details.snapshot[0] if claim.details.snapshot else ""


def _confirmed(fragment: Fragment, still: set[_OF]) -> Fragment:
    """A fragment whose accusations a second report has repeated."""
    claims = {}
    for claim in fragment.claims:
        snapshot = claim.details.snapshot
        if snapshot is not None and snapshot[:2] in still:
            text = claim.text.replace("RAS: members", "RAS, in two reports: members", 1)
            claim = replace(claim, text=text)
        claims[claim.kind, claim.accused, claim.text] = claim
    return replace(fragment, claims=tuple(claims.values()))
