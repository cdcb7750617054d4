"""Batches of sends and receives known only from a log, which gives their group but no peer."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import Flag, Trace

_ONLY_LOGGED = int(Flag.P2P | Flag.COALESCED_BATCH | Flag.SYNTHETIC)


def logged_batches(trace: Trace, front: Frontiers, waiting: Collection[int]) -> list[Place]:
    """A place for each overdue batch; ``waiting``: ranks that wait for anything else.

    If all other members were heard of and some of them wait in something else, the batch usually
    waits for one of those: a rank that waits for nothing has most likely done its part. Otherwise
    any that is in no such batch may have skipped its half.
    """
    records = trace.records
    rows = np.flatnonzero(((records["flags"] & _ONLY_LOGGED) == _ONLY_LOGGED) & front.unfinished)
    owners = [(int(records["group"][row]), int(records["rank"][row])) for row in rows.tolist()]
    busy = {*waiting, *(rank for _, rank in owners)}
    found = []
    for row, (group, rank) in zip(rows.tolist(), owners, strict=True):
        members = trace.groups[group].ranks
        others = tuple(r for r in members if (group, r) not in owners)
        behind = tuple(r for r in others if r in busy) if trace.ranks.keys() >= {*others} else ()
        unknown = () if behind else tuple(r for r in others if r not in busy)
        found.append(
            Place(
                group,
                int(records["p2p_seq"][row]),
                (rank,),
                behind=behind,
                unknown=unknown,
                row=row,
                p2p=True,
                began_ns=int(records["created_ns"][row]),
                members=members or (rank,),
                blind=not (behind or unknown),
            )
        )
    return found
