"""Merges one rank's records and counters from several sources, each operation once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import MEMBER_DTYPE, NONE, Flag, Records, State, flagged

_P2P, _COMPLETED = np.uint16(Flag.P2P), np.uint8(State.COMPLETED)
_COUNTERS = (
    "enqueued", "started", "completed", "p2p_enqueued", "enqueued_ns", "completed_ns", "left_ns",
)  # fmt: skip


def combine_rank(parts: Sequence[Records]) -> Records:
    """Merge one rank's rows from several sources, the best source first.

    The first source with recorded rows determines the order. Rows from other sources complete its
    rows for the same operations (a later state, times, a stack, a timeout). They are added only
    outside the range it covers: before its oldest row of the group, or after its newest.
    """
    recorded = [p[~_synthetic(p)] for p in parts]
    concluded = [p[_synthetic(p)] for p in parts]
    recorded = [p for p in recorded if len(p)]
    base = recorded[0].copy() if recorded else np.concatenate(concluded)[:0].copy()
    for extra in recorded[1:]:
        base = _merge_into(base, extra, beyond_only=True)
    for extra in concluded:
        base = _merge_into(base, extra, beyond_only=False)
    return base


def _synthetic(records: Records) -> npt.NDArray[np.bool_]:
    return flagged(records["flags"], Flag.SYNTHETIC)


_Key = tuple[int, bool, int]
"""Group, whether it is a send or receive, and sequence number."""


def _keys(records: Records) -> list[_Key]:
    """What identifies each operation; all members of a batch share one key.

    Up to torch 2.5, batches of sends and receives share the collectives' sequence numbers.
    """
    pair = flagged(records["flags"], Flag.P2P)
    own = pair & ((records["p2p_seq"] > 0) | (records["collective_seq"] < 0))
    seq = np.where(own, records["p2p_seq"], records["collective_seq"])
    return list(zip(records["group"].tolist(), pair.tolist(), seq.tolist(), strict=True))


def _merge_into(base: Records, extra: Records, *, beyond_only: bool) -> Records:
    """Complete the records with others of the same rank, and add those that are missing.

    ``beyond_only``: add rows before the first or after the last of their group; else only after.
    """
    place, span = _places_and_spans(base)
    added: list[int] = []
    for i, key in enumerate(_keys(extra)):
        known = place.get(key) if key[2] else None
        if known is None:
            if _lies_beyond(key, span.get(key[:2], (1, 0)), beyond_only=beyond_only):
                added.append(i)
        elif not extra["flags"][i] & Flag.COALESCED_MEMBER:
            _complete(base[known], extra[i])
    if not added:
        return base
    joined = np.concatenate([base, extra[added]])
    if beyond_only and (joined["created_ns"] > 0).all():
        joined = joined[np.argsort(joined["created_ns"], kind="stable")]
    return joined


def _places_and_spans(
    records: Records,
) -> tuple[dict[_Key, int], dict[tuple[int, bool], tuple[int, int]]]:
    """The row of each operation (without batch members), and each group's range of numbers."""
    member = flagged(records["flags"], Flag.COALESCED_MEMBER)
    place: dict[_Key, int] = {}
    span: dict[tuple[int, bool], tuple[int, int]] = {}
    for i, (key, inner) in enumerate(zip(_keys(records), member.tolist(), strict=True)):
        if not inner:
            place[key] = i
        low, high = span.get(key[:2], (key[2], key[2]))
        span[key[:2]] = (min(low, key[2]), max(high, key[2]))
    return place, span


def _lies_beyond(key: _Key, span: tuple[int, int], *, beyond_only: bool) -> bool:
    """Whether an operation of another source lies outside a group's recorded range."""
    low, high = span
    if beyond_only:  # without a number it may be any recorded operation
        return key[2] != 0 and not low <= key[2] <= high
    # A log line may be about an operation that the recorder has overwritten.
    return key[2] >= low or low > high


def _complete(row: np.void, other: np.void) -> None:
    """Add to a row what another source knows about the same operation."""
    concluded = bool(other["flags"] & Flag.SYNTHETIC)
    if not concluded:
        if other["state"] > row["state"]:
            row["state"] = other["state"]
        if not other["flags"] & Flag.UNOBSERVED:
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
    """One row per (rank, group); each counter is the highest that any source has."""
    if not len(rows):
        return rows
    # The row that has issued most comes first: its history is kept.
    order = np.lexsort((-rows["enqueued"], rows["group"], rows["rank"]))
    rows = rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (rows["rank"][1:] != rows["rank"][:-1]) | (rows["group"][1:] != rows["group"][:-1])
    if new.all():
        return rows
    starts = np.flatnonzero(new)
    merged = rows[starts].copy()
    for name in _COUNTERS:
        merged[name] = np.maximum.reduceat(rows[name], starts)
    return merged


def without_mixed_counters(told: Records, recorded: Records, implied: Records) -> Records:
    """A log's counters, without those that may count sends and receives among collectives.

    A watchdog's message has one counter for both. It is of no use in a group in which the rank's
    own record has sends or receives. Nor is it, for ranks without any operation on record, in one
    where it called an operation of some member finished that had timed out (that member's row
    states nothing).

    Parameters
    ----------
    told, recorded:
        Counters stated by logs, and by sources that ranks recorded themselves.
    implied:
        Counters implied by records of any source (`counters_of`).
    """
    mixed = _places(recorded[recorded["p2p_enqueued"] > 0])
    empty = (told["enqueued"] == NONE) & (told["completed"] == NONE)
    empty &= told["p2p_enqueued"] == NONE
    refuted, shown = set(told["group"][empty].tolist()), _places(implied)
    own = list(zip(told["rank"].tolist(), told["group"].tolist(), strict=True))
    kept: Records = told[[p not in mixed and (p in shown or p[1] not in refuted) for p in own]]
    return kept


def _places(counters: Records) -> set[tuple[int, int]]:
    return set(zip(counters["rank"].tolist(), counters["group"].tolist(), strict=True))


def discard_mixed_counters(members: Records, implied: Records) -> Records:
    """Discard counters that may count sends and receives, where no entry of the rank confirms them.

    ``pg_status`` keeps one counter for collectives and point-to-point operations. If any member's
    entries show sends or receives, a counter above every collective seen in the group counts those.

    Parameters
    ----------
    members, implied:
        Counters stated by the sources, and counters implied by their records (`counters_of`).
    """
    if not len(implied) or not len(members):
        return members
    members = members.copy()
    for group in sorted(set(implied["group"][implied["p2p_enqueued"] > 0].tolist())):
        own = implied[implied["group"] == group]
        highest, pairs = int(own["enqueued"].max()), int(own["p2p_enqueued"].max())
        backed = set(own["rank"].tolist())
        for place in np.flatnonzero(members["group"] == group).tolist():
            row = members[place]
            if row["enqueued"] > highest:
                row["p2p_enqueued"] = max(row["p2p_enqueued"], row["enqueued"])
                row["enqueued"] = row["completed"] = row["started"] = NONE
            elif row["enqueued"] <= pairs and int(row["rank"]) not in backed:
                # Other members' sends and receives go that far: it may count either kind.
                row["enqueued"] = row["completed"] = row["started"] = NONE
    return members


class GroupOrder(NamedTuple):
    """The rows of a table sorted by group."""

    groups: npt.NDArray[np.int32]
    """The groups that occur, ascending."""
    rows: npt.NDArray[np.intp]
    """Row indexes: those of the first group in order, then those of the next."""
    starts: npt.NDArray[np.intp]
    """Where the rows of each group begin."""


def order_by_group(group: npt.NDArray[np.int32]) -> GroupOrder:
    """Sort rows by group; ``group`` has shape (rows,)."""
    # 16-bit integers get a radix sort, which takes half the time.
    narrow = len(group) and int(group.max()) <= np.iinfo(np.int16).max and int(group.min()) >= NONE
    rows = np.argsort(group.astype(np.int16) if narrow else group, kind="stable")
    ascending = group.take(rows)
    new = np.ones(len(rows), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    return GroupOrder(ascending[starts], rows, starts)


def counters_of(records: Records, order: GroupOrder | None = None) -> Records:
    """The counters that one rank's records imply: shape (groups used,), `MEMBER_DTYPE`.

    Parameters
    ----------
    records:
        Rows of one rank, all with a group.
    order:
        The order of these rows, if already known.
    """
    groups, rows, starts = order or order_by_group(records["group"])
    implied = np.zeros(len(groups), MEMBER_DTYPE)
    if not len(groups):
        return implied
    # Copied to contiguous arrays, which numpy scans several times faster.
    seq, p2p_seq = records["collective_seq"].take(rows), records["p2p_seq"].take(rows)
    finished = records["state"].take(rows) == _COMPLETED
    if p2p_seq.any():
        implied["p2p_enqueued"] = np.maximum.reduceat(p2p_seq, starts)
        finished &= (records["flags"].take(rows) & _P2P) == 0
    implied["rank"] = records["rank"][0]
    implied["group"] = groups
    implied["enqueued"] = np.maximum.reduceat(seq, starts)
    implied["completed"] = np.maximum.reduceat(np.where(finished, seq, NONE), starts)
    implied["started"] = NONE
    return implied
