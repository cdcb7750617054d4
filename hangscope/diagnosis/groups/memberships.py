"""Members of groups that no source lists: infer them, or drop lists that were made up.

Logs and the oldest dumps list no members, only ranks that appear in a group. Groups with one
description partition the world evenly, like mesh dimensions. If that leaves one way to complete the
lists they are completed; otherwise they are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.groups import meshes
from hangscope.diagnosis.groups.dimensions import (
    UNINFORMATIVE,
    issued_in_groups,
    sizes_of_groups,
)
from hangscope.diagnosis.groups.local_numbers import (
    split_ambiguous_names,
    split_local_numbers,
    split_logged_numbers,
)
from hangscope.diagnosis.observability import is_text_alone, named_locally, snapshots
from hangscope.trace import operations
from hangscope.trace.flight_recorder.p2p import global_peer
from hangscope.trace.model import NONE, Group, Trace


def with_credible_members(trace: Trace) -> tuple[Trace, frozenset[int]]:
    """The trace with members inferred where possible and without made-up lists.

    Also returns the groups with inferred members.

    A list made up from the ranks that appear is too short if a rank is missing, and a partner's
    place in the group then points to the wrong rank.
    """
    text, dumps = is_text_alone(trace), bool(snapshots(trace))
    if text:
        trace = split_logged_numbers(trace)
    nameless = named_locally(trace, all_of_them=True)
    if dumps:
        trace = split_ambiguous_names(trace)
    if text:
        trace = _with_world(trace)
        whole = _whole(trace)
        short = [s and i not in whole for i, s in enumerate(_as_seen(trace))]
    elif dumps and (nameless or any(g.ranks and not g.listed for g in trace.groups)):
        if nameless:
            trace = split_local_numbers(trace, sizes_of_groups(trace))
        trace = _with_world(trace)
        missing = set(trace.missing_ranks) | (set() if nameless else _silent(trace))
        short = _short(trace, missing, nameless)
        if nameless and not missing:
            return trace, frozenset(range(len(trace.groups)))
    else:
        return trace, frozenset()
    if not any(short):
        return trace, frozenset()
    inferred: dict[int, tuple[int, ...]] = {}
    for dimension in _dimensions(trace):
        inferred |= meshes.members_of(dimension, trace.world_size or 0)
    groups = tuple(
        _settled(g, made_up, inferred.get(i))
        for i, (g, made_up) in enumerate(zip(trace.groups, short, strict=True))
    )
    records = trace.records.copy()
    changed = [a.ranks != b.ranks for a, b in zip(trace.groups, groups, strict=True)]
    records["peer"][np.array(changed, bool)[records["group"]]] = NONE
    trace = replace(trace, groups=groups, records=records)
    set_peers(trace, np.flatnonzero(np.array(changed, bool)[records["group"]]))
    return trace, frozenset(inferred)


def _short(trace: Trace, missing: set[int], nameless: bool) -> list[bool]:
    """Per group, whether its list was made up from the ranks that appear, and may be incomplete.

    A missing rank may belong to it. It is certainly incomplete if names of p2p operations or sizes
    of gathers imply more members.
    """
    least = named_places(trace)
    for group, size in sizes_of_groups(trace).items():
        least[group] = max(size, least.get(group, 0))
    return [
        bool(g.ranks)
        and (nameless or not g.listed)
        and (
            (bool(missing) and missing.isdisjoint(g.ranks))
            or (not nameless and len(g.ranks) < least.get(i, 0))
        )
        for i, g in enumerate(trace.groups)
    ]


def _silent(trace: Trace) -> set[int]:
    """Ranks that appear in no group but the default one: they may be in all others."""
    heard = set().union(
        *(s for s, g in zip(_seen(trace), trace.groups, strict=True) if g.desc != "default_pg")
    )
    return set(trace.ranks) - heard if heard else set()


def set_peers(trace: Trace, rows: npt.NDArray[np.intp]) -> None:
    """Set p2p partners given as places in a group, now that the group's members are known."""
    records = trace.records
    for row in rows.tolist():
        parsed = operations.parse(trace.signatures[records["signature"][row]].raw)
        group = trace.groups[records["group"][row]]
        if operations.is_p2p(parsed.op) and group.ranks:
            records["peer"][row] = global_peer(
                parsed, group.ranks, int(records["rank"][row]), group.desc == "default_pg"
            )


def _with_world(trace: Trace) -> Trace:
    """The trace with the world size as stated, else the smallest one that its meshes allow: those
    with known places, and those that share all known ranks out."""
    world = trace.world_size
    if world is None or any(facts.world_size for facts in trace.ranks.values()):
        return trace
    certain = [
        dimension
        for dimension in _dimensions(trace)
        if any(seen.places for seen in dimension.values())
        or sum(len(seen.ranks) for seen in dimension.values()) == len(trace.ranks)
    ]
    return replace(trace, world_size=meshes.world_of(certain, world))


def _settled(group: Group, made_up: bool, members: tuple[int, ...] | None) -> Group:
    if members is not None:
        return replace(group, ranks=members, size=len(members))
    return replace(group, ranks=(), size=None) if made_up else group


def _as_seen(trace: Trace) -> list[bool]:
    """Per group, whether its list holds only ranks that appear in it, and not everybody."""
    return [
        set(g.ranks) <= s and len(g.ranks) != trace.world_size
        for g, s in zip(trace.groups, _seen(trace), strict=True)
    ]


def _whole(trace: Trace) -> set[int]:
    """Groups in which the places that members state leave room for no other rank.

    Members are in rank order: if places are consecutive from 0 on, only a rank above the last one
    can be a member as well.
    """
    ranks = {*trace.ranks, *trace.missing_ranks}
    whole = set()
    for index, places in meshes.places_of(trace).items():
        members = [places[place] for place in sorted(places)]
        in_row = len(members) > 1 and sorted(places) == list(range(len(places)))
        ascending = all(a < b for a, b in pairwise(members))
        listed = members == list(trace.groups[index].ranks)
        if in_row and ascending and listed and max(ranks) == members[-1]:
            whole.add(index)
    return whole


def _seen(trace: Trace) -> list[set[int]]:
    """Per group the ranks that any record or counter shows in it."""
    seen: list[set[int]] = [set() for _ in trace.groups]
    for table in (trace.records, trace.members):
        for rank, group in zip(table["rank"].tolist(), table["group"].tolist(), strict=True):
            seen[group].add(rank)
    return seen


def _dimensions(trace: Trace) -> list[meshes.Dimension]:
    """What was seen of the groups of each description that can be one mesh dimension: no rank is in
    two of them."""
    seen, places = _seen(trace), meshes.places_of(trace)
    sizes, named = sizes_of_groups(trace), named_places(trace)
    found: dict[str, dict[int, meshes.Seen]] = defaultdict(dict)
    for index, group in enumerate(trace.groups):
        ranks = seen[index] | set(group.ranks)
        if group.desc not in UNINFORMATIVE and meshes.is_dimension(group.desc) and ranks:
            found[group.desc][index] = meshes.Seen(
                ranks, places.get(index, {}), named.get(index, 0), sizes.get(index, 0)
            )
    apart: list[meshes.Dimension] = []
    for dimension in found.values():
        ranks_of = [seen.ranks for seen in dimension.values()]
        if sum(map(len, ranks_of)) == len(set().union(*ranks_of)):
            apart.append(dimension)
    return apart


def named_places(trace: Trace) -> dict[int, int]:
    """Per group the minimum size implied by the names of its p2p operations: ``recv 0<-3`` has a
    place 3."""
    found: dict[int, int] = {}
    for group, issued in issued_in_groups(trace).items():
        for signature in issued:
            parsed = operations.parse(trace.signatures[signature].raw)
            if operations.is_p2p(parsed.op):
                found[group] = max(found.get(group, 0), parsed.src + 1, parsed.dst + 1)
    return found
