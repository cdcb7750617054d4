"""Makes the digest of a node from a look at its ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from hangscope.trace.digests.digest import Digest, Node, RankPart
from hangscope.trace.digests.tables import Tables
from hangscope.trace.model import NONE, Flag, Records, Trace, flagged

NEWEST = 16
"""Records that are sent of each rank, at least, if there are as many."""
MOST = 256
"""The most records that are sent of a rank, however far back its oldest unfinished one is."""


def digest_of(trace: Trace, ranks: Collection[int], node: Node, *, newest: int = NEWEST) -> Digest:
    """The digest of one node's ranks.

    Parameters
    ----------
    trace:
        A look at them.
    ranks:
        Which of the trace's ranks run on the node.
    node:
        The node.
    newest:
        How many records of each rank to keep, beside those from the oldest unfinished one on.
    """
    tables = Tables()
    groups = [tables.group(group) for group in trace.groups]
    column, column_of_ids = (np.ascontiguousarray(trace.records[k]) for k in ("rank", "record_id"))
    parts = []
    for rank in sorted(set(ranks) & trace.ranks.keys()):
        low, high = np.searchsorted(column, [rank, rank + 1])
        records = _kept(trace.records[low:high], newest)
        _renumber(records, "group", groups)
        for name, table, number_of in (
            ("signature", trace.signatures, tables.signature),
            ("stack", trace.stacks, tables.stack),
        ):
            values, place = np.unique(records[name], return_inverse=True)
            new = [NONE if at == NONE else number_of(table[at]) for at in values.tolist()]
            records[name] = np.array(new, np.int32)[place] if len(new) else records[name]
        members = trace.members[trace.members["rank"] == rank]
        _renumber(members, "group", groups)
        facts = trace.ranks[rank]
        if 0 < len(records) < high - low:
            own = records["record_id"][records["record_id"] > 0]  # NCCL's have none
            oldest = int(own[0]) if len(own) else 1 + int(column_of_ids[low:high].max())
            facts = replace(facts, oldest_record_id=oldest)
        parts.append(RankPart(facts, 0, members, records, trace.looks, facts.dropped))
    return Digest((node,), tuple(parts), tables, trace.timeout_s)


def _kept(records: Records, newest: int) -> Records:
    """The newest rows, and all from the oldest unfinished one on, up to `MOST`."""
    open_rows = np.flatnonzero(~flagged(records["flags"], Flag.RETIRED | Flag.UNOBSERVED))
    first = min(len(records) - newest, int(open_rows[0]) if len(open_rows) else len(records))
    kept: Records = records[max(0, first, len(records) - max(MOST, newest)) :].copy()
    return kept


def _renumber(rows: Records, name: str, numbers: list[int]) -> None:
    rows[name] = np.array([*numbers, NONE], np.int32)[rows[name]]
