"""Records and counters of one rank from several sources: the same operation must appear once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import MEMBER_DTYPE, NONE, Flag, Records, State

_COUNTERS = ("enqueued", "started", "completed", "p2p_enqueued", "enqueued_ns", "completed_ns")


def combine_rank(parts: Sequence[Records]) -> Records:
    """One rank's rows from several sources, the best source first.

    The first source with recorded rows gives the order. Rows of the others complete what it says
    of the same operation (a later state, times, a stack, a timeout) and are added only where they
    lie beyond what it covers: before its oldest row of the group, or after its newest.
    """
    recorded = [p[~_synthetic(p)] for p in parts]
    concluded = [p[_synthetic(p)] for p in parts]
    recorded = [p for p in recorded if len(p)]
    base = recorded[0].copy() if recorded else np.concatenate(concluded)[:0].copy()
    for extra in recorded[1:]:
        base = _fold(base, extra, beyond_only=True)
    for extra in concluded:
        if len(extra):
            base = _fold(base, extra, beyond_only=False)
    return base


def _synthetic(records: Records) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (records["flags"] & Flag.SYNTHETIC) != 0
    return found


def _keys(records: Records) -> list[tuple[int, bool, int]]:
    """(group, is a pair, its sequence number); members of a batch are told apart by their op_id."""
    pair = (records["flags"] & Flag.P2P) != 0
    seq = np.where(pair, records["p2p_seq"], records["collective_seq"])
    return list(zip(records["group"].tolist(), pair.tolist(), seq.tolist(), strict=True))


def _fold(base: Records, extra: Records, *, beyond_only: bool) -> Records:
    member = (base["flags"] & Flag.COALESCED_MEMBER) != 0
    place: dict[tuple[int, bool, int], int] = {}
    span: dict[tuple[int, bool], tuple[int, int]] = {}
    for i, (key, inner) in enumerate(zip(_keys(base), member.tolist(), strict=True)):
        if not inner:
            place[key] = i
        low, high = span.get(key[:2], (key[2], key[2]))
        span[key[:2]] = (min(low, key[2]), max(high, key[2]))
    added: list[int] = []
    for i, key in enumerate(_keys(extra)):
        known = place.get(key)
        if known is not None:
            if not extra["flags"][i] & Flag.COALESCED_MEMBER:
                _complete(base[known], extra[i])
            continue
        low, high = span.get(key[:2], (1, 0))
        if beyond_only and low <= key[2] <= high:
            continue
        if not beyond_only and key[2] < low and low <= high:
            continue  # a log line about something that the recorder has already forgotten
        added.append(i)
    if not added:
        return base
    joined = np.concatenate([base, extra[added]])
    if beyond_only and (joined["created_ns"] > 0).all():
        joined = joined[np.argsort(joined["created_ns"], kind="stable")]
    return joined


def _complete(row: np.void, other: np.void) -> None:
    """Add to a row what another source knows about the same operation."""
    concluded = bool(other["flags"] & Flag.SYNTHETIC)
    if not concluded:
        if other["state"] > row["state"]:
            row["state"] = other["state"]
        if row["flags"] & Flag.UNOBSERVED and not other["flags"] & Flag.UNOBSERVED:
            row["flags"] &= ~np.uint16(Flag.UNOBSERVED)
        if row["stack"] == NONE:
            row["stack"] = other["stack"]
    for name in ("started_ns", "completed_ns", "timeout_ms"):
        if row[name] == 0:
            row[name] = other[name]
    for name in ("peer", "root"):
        if row[name] == NONE:
            row[name] = other[name]
    row["flags"] |= other["flags"] & np.uint16(Flag.TIMED_OUT | Flag.RETIRED)


def merge_members(rows: Records) -> Records:
    """One row per (rank, group): of several the furthest, field by field."""
    if not len(rows):
        return rows
    order = np.lexsort((rows["group"], rows["rank"]))
    rows = rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (rows["rank"][1:] != rows["rank"][:-1]) | (rows["group"][1:] != rows["group"][:-1])
    if new.all():
        return rows
    starts = np.flatnonzero(new)
    merged = rows[starts].copy()
    for name in _COUNTERS:
        merged[name] = np.maximum.reduceat(rows[name], starts)
    ends = np.append(starts[1:], len(rows))
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end - start > 1:
            best = start + int(np.argmax(rows["enqueued"][start:end]))
            merged["history"][i] = rows["history"][best]
    return merged


def settle_mixed_counters(members: Records, records: Records) -> Records:
    """Distrust counters of groups that do point-to-point, where no entry of the rank backs them.

    ``pg_status`` keeps one counter for collectives and pairs. Where any member's entries show
    pairs, a counter far above every collective seen in the group counts pairs.
    """
    if not len(records) or not len(members):
        return members
    pair = (records["flags"] & Flag.P2P) != 0
    members = members.copy()
    for group in np.unique(records["group"][pair]).tolist():
        in_group = records["group"] == group
        highest = int(records["collective_seq"][in_group].max())
        for place in np.flatnonzero(members["group"] == group).tolist():
            row = members[place]
            if row["enqueued"] > highest:
                row["p2p_enqueued"] = max(row["p2p_enqueued"], row["enqueued"])
                row["enqueued"] = row["completed"] = row["started"] = NONE
    return members


def add_counters(members: Records, records: Records) -> Records:
    """Rows for pairs of which only records speak, and counters no lower than the records."""
    if not len(records):
        return members
    seen = _highest(records)
    known = {
        (r, g): i
        for i, (r, g) in enumerate(
            zip(members["rank"].tolist(), members["group"].tolist(), strict=True)
        )
    }
    members = members.copy()
    added = []
    for (rank, group), (enqueued, completed, pairs) in seen.items():
        place = known.get((rank, group))
        if place is None:
            added.append((rank, group, enqueued, NONE, completed, pairs, 0, 0, 0))
        else:
            row = members[place]
            row["enqueued"] = max(int(row["enqueued"]), enqueued)
            if completed > NONE:
                row["completed"] = max(int(row["completed"]), completed)
            row["p2p_enqueued"] = max(int(row["p2p_enqueued"]), pairs)
    if added:
        members = np.concatenate([members, np.array(added, MEMBER_DTYPE)])
    return members[np.lexsort((members["group"], members["rank"]))]


def _highest(records: Records) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(last collective, last collective seen finished or -1, last pair) per (rank, group)."""
    order = np.lexsort((records["group"], records["rank"]))
    rank, group = records["rank"][order], records["group"][order]
    new = np.ones(len(order), bool)
    new[1:] = (rank[1:] != rank[:-1]) | (group[1:] != group[:-1])
    starts = np.flatnonzero(new)
    collective = records["collective_seq"][order]
    pair = (records["flags"][order] & Flag.P2P) != 0
    done = np.where(
        (records["state"][order] == State.COMPLETED) & ~pair, collective, np.int64(NONE)
    )
    columns = (
        np.maximum.reduceat(collective, starts),
        np.maximum.reduceat(done, starts),
        np.maximum.reduceat(records["p2p_seq"][order], starts),
    )
    keys = zip(rank[starts].tolist(), group[starts].tolist(), strict=True)
    return dict(zip(keys, zip(*(c.tolist() for c in columns), strict=True), strict=True))
