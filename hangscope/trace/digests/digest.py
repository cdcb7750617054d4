"""A digest: the ranks of one node, or of many, as they stand, in a few dozen bytes each.

Of every rank it holds the counters of its groups, its unfinished and newest operations and the
facts about its process; signatures, stacks, groups and equal facts stand in it once. Digests of
several nodes combine into one of the same form, so that nodes can report in a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hangscope.trace import formats
from hangscope.trace.digests.tables import (
    Tables,
)
from hangscope.trace.merging.records import counters_of, order_by_group
from hangscope.trace.model import (
    RECORD_DTYPE,
    Fragment,
    Group,
    RankFacts,
    Records,
    Source,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as it describes itself."""

    host: str
    machine: str = ""
    node_rank: int | None = None
    addresses: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """Global ranks that run there."""
    number: int = 0
    """Which node it is in the meeting; 0 as long as that is not known."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank; the indexes in its rows are those of the digest's tables."""

    facts: RankFacts
    node: int
    """Index into `Digest.nodes`."""
    members: Records
    records: Records
    looks: int = 1
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """Nodes and their ranks."""

    nodes: tuple[Node, ...]
    parts: tuple[RankPart, ...]
    tables: Tables = field(compare=False)
    timeout_s: float = 0.0


def combined(digests: Sequence[Digest], tables: Tables) -> Digest:
    """One digest of several that were decoded into the same tables."""
    nodes: list[Node] = []
    parts: list[RankPart] = []
    for digest in digests:
        shift = len(nodes)
        nodes += digest.nodes
        parts += [replace(part, node=part.node + shift) for part in digest.parts]
    return Digest(tuple(nodes), tuple(parts), tables, max(d.timeout_s for d in digests))


def joined(parts: Sequence[Records], kind: np.dtype[Any]) -> Records:
    """The rows of all parts, one after the other."""
    joined, at = np.empty(sum(map(len, parts)), kind), 0
    for part in parts:  # np.concatenate compares the fields of each part
        joined[at : at + len(part)] = part
        at += len(part)
    return joined


def fragments_of(digest: Digest) -> Iterable[Fragment]:
    """What a digest says, a fragment for each rank."""
    tables = digest.tables
    signatures = tuple(tables.signatures)
    for part, implied in zip(digest.parts, _counters(digest), strict=True):
        members, listed = part.members.copy(), implied["group"].tolist()
        used = sorted({*members["group"].tolist(), *listed})
        place = {group: at for at, group in enumerate(used)}
        members["group"] = [place[group] for group in members["group"].tolist()]
        implied["group"] = [place[group] for group in listed]
        groups: tuple[Group, ...] = tuple(tables.groups[index] for index in used)
        rank = part.facts.rank
        recorded = bool(len(part.records) or len(part.members))
        yield Fragment(
            source=Source(
                path=f"{digest.nodes[part.node].host}/rank_{rank}.ring",
                format=formats.RING if recorded else formats.JOURNAL,
                rank=rank,
                records=len(part.records),
                dropped=part.dropped,
            ),
            facts=part.facts,
            records=part.records,
            members=members,
            groups=groups,
            common_groups=tables.groups,
            signatures=signatures,
            stacks=tables.stacks,
            timeout_s=digest.timeout_s or None,
            looks=part.looks,
            implied=implied,
        )


def _counters(digest: Digest) -> Iterator[Records]:
    """The counters that each rank's records imply, computed for all ranks together."""
    counts = [len(part.records) for part in digest.parts]
    records = joined([part.records for part in digest.parts], RECORD_DTYPE)
    groups = len(digest.tables.groups)
    # One number for each pair of rank and group.
    place = np.repeat(np.arange(len(counts)), counts) * groups + records["group"]
    order = order_by_group(place)
    implied = counters_of(records, order)
    part, implied["group"] = np.divmod(order.groups, max(groups, 1))
    ends = np.searchsorted(part, np.arange(1, len(counts) + 1)).tolist()
    for start, end, own in zip([0, *ends], ends, digest.parts, strict=False):
        rows = implied[start:end]
        rows["rank"] = own.facts.rank
        yield rows
