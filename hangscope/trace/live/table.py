"""The records of many running ranks as one table, updated with what was added.

A record changes only until its operation has ended. Each look therefore reads the slots of all
rings together, each from the oldest that may still change, and leaves the rest alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring.layout import GROUP, SLOT
from hangscope.ring.reader import RingReader
from hangscope.trace.merging.records import discard_mixed_counters, merge_members
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Flag,
    Records,
    Signature,
    Stack,
    State,
    Trace,
    flagged,
)
from hangscope.trace.rings.read import members_of, with_numels
from hangscope.trace.rings.values import values_of

Ints = npt.NDArray[np.int64]


_REREAD = 64
"""A ring's newest records are always re-read, this many of them: a wait may still show that an
operation is over whose completion nobody polls, or another thread may be writing."""
_ROW = RECORD_DTYPE.itemsize
_SHIFT = 1 << 32


class StaleError(Exception):
    """More than counters and records has changed: everything must be read anew."""


@dataclass(frozen=True, slots=True)
class Call:
    """The newest operation that a ring's main thread issued."""

    stack: int
    """Index into `Trace.stacks`."""
    created_ns: int


class LiveTable:
    """Tables of a `Trace` that were merged once, and what has been read of each ring.

    Parameters
    ----------
    readers, ranks, group_maps:
        One entry per ring, lowest rank first; a map gives the common index of each of the ring's
        groups.
    trace:
        The result of `hangscope.trace.merging.merge.merge` for these rings' fragments.
    keep:
        How many of each ring's newest records are kept; None for all.
    """

    def __init__(
        self,
        readers: Sequence[RingReader],
        ranks: Sequence[int],
        group_maps: Sequence[npt.NDArray[np.int32]],
        trace: Trace,
        keep: int | None = None,
    ) -> None:
        self.records = trace.records
        self.members = trace.members
        self.signatures = trace.signatures
        self.stacks = trace.stacks
        self._readers = readers
        self._ranks = np.array(ranks, np.int64)
        self._keep = np.array([min(r.slot_count, keep or r.slot_count) for r in readers], np.int64)
        self._group_counts = np.array([len(m) for m in group_maps], np.int64)
        self._group_at = np.concatenate([[0], np.cumsum(self._group_counts)])
        self._ring_of_group = np.repeat(np.arange(len(readers)), self._group_counts)
        self._common = np.concatenate([*group_maps, np.zeros(0, np.int32)]).astype(np.int64)
        self._width = max(len(trace.groups), 1)
        column = np.ascontiguousarray(trace.records["rank"]).astype(np.int64)
        self.low = np.searchsorted(column, self._ranks)
        self.high = np.searchsorted(column, self._ranks, "right")
        self.torn = np.zeros(len(readers), np.int64)
        self.calls: dict[int, Call] = {}
        # As of the last update; initially all count as moved.
        self._published = np.full(len(readers), -1, np.int64)
        self._last = self._published
        self._open: list[bytes] = [b""] * len(readers)
        """The bytes of the slots from `_again` to `_last`, which may change without any counter."""
        self._groups = np.zeros(len(self._common), GROUP)
        self._again = self._first_open(column)
        self._implied = np.full((3, len(self._common)), NONE - 1, np.int64)
        ring_of_row = np.minimum(np.searchsorted(self._ranks, column), len(readers) - 1)
        self._imply(self._places(ring_of_row, trace.records["group"]), trace.records)
        self._ids: dict[str, tuple[Ints, Ints]] = {
            name: (np.zeros(0, np.int64), np.zeros(0, np.int64)) for name in ("signature", "stack")
        }
        self._index_of_signature: dict[Signature, int] = {}
        self._index_of_stack: dict[Stack, int] = {}
        self._bare: dict[int, Signature] = {}

    def update(self, headers: Records) -> npt.NDArray[np.bool_]:
        """Read what was added; returns which rings have moved.

        Parameters
        ----------
        headers:
            The rings' headers, shape (rings,), dtype `hangscope.ring.layout.HEADER`.

        Raises
        ------
        StaleError
            If a ring has more groups than before, or fewer records because it was overwritten.
        """
        published = headers["last_record_id"].astype(np.int64)
        if (headers["groups_used"] != self._group_counts).any():
            raise StaleError
        if (published < self._published).any():
            raise StaleError
        groups = self._read_groups()
        last = self._with_unpublished(published)
        moved = self._have_changed()
        moved |= last != self._last
        changed = _bytes_of(groups) != _bytes_of(self._groups)
        moved[self._ring_of_group[changed.any(axis=1)]] = True
        self._groups = groups
        if moved.any():
            self._read(np.flatnonzero(moved), last, headers["main_thread"].astype(np.int64))
            self._count()
        self._published, self._last = published, last
        return moved

    def counters(self) -> bytes:
        """Bytes that change with every operation, for comparison."""
        return self._last.tobytes() + self._groups.tobytes()

    # -- pieces ----------------------------------------------------------------------------

    def _read_groups(self) -> Records:
        counts = self._group_counts.tolist()
        parts = [r.group_bytes(n) for r, n in zip(self._readers, counts, strict=True)]
        groups: Records = np.frombuffer(b"".join(parts), GROUP)
        if len(groups) != len(self._common) or (groups["commit"] != 1).any():
            raise StaleError
        return groups

    def _with_unpublished(self, published: Ints) -> Ints:
        """The last complete record of each ring: the one after the last published may be complete
        although its writer died before publishing it.
        """
        last = published.copy()
        still = np.flatnonzero((published == self._published) | (self._published < 0))
        parts: list[bytes] = []
        for ring, after in zip(still.tolist(), (published[still] + 1).tolist(), strict=True):
            parts += self._readers[ring].slot_bytes(after, after)
        slots = np.frombuffer(b"".join(parts), SLOT)
        wanted = published[still] + 1
        complete = (slots["record_id"] == wanted) & (slots["commit"] == wanted)
        for at in np.flatnonzero(complete).tolist():  # unless it was being written just then
            again = self._readers[still[at]].slot_bytes(int(wanted[at]), int(wanted[at]))
            complete[at] = again[0] == slots[at].tobytes()
        last[still] += complete
        return last

    def _have_changed(self) -> npt.NDArray[np.bool_]:
        """Rings with a changed unfinished record: not every completion moves a counter."""
        changed = np.zeros(len(self._readers), bool)
        firsts, lasts = self._again.tolist(), self._last.tolist()
        for ring, known in enumerate(self._open):
            if known:
                now = self._readers[ring].slot_bytes(firsts[ring], lasts[ring])
                changed[ring] = (now[0] if len(now) == 1 else b"".join(now)) != known
        return changed

    def _read(self, rings: Ints, last: Ints, main_thread: Ints) -> None:
        """Replace the rows of ``rings`` from the first that may have changed."""
        end = last[rings]
        oldest = end - self._keep[rings] + 1
        first = np.maximum(np.minimum(self._again[rings], end + 1), np.maximum(oldest, 1))
        parts: list[bytes] = []
        for ring, a, b in zip(rings.tolist(), first.tolist(), end.tolist(), strict=True):
            if b >= a:
                parts += self._readers[ring].slot_bytes(a, b)
        data = b"".join(parts)
        raw = np.frombuffer(bytearray(data), SLOT)
        lengths = end - first + 1
        place = np.repeat(np.arange(len(rings)), lengths)
        expected = np.arange(len(raw)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        expected += first[place]
        whole = (raw["record_id"] == expected) & (raw["commit"] == expected)
        whole &= expected >= np.array([self._readers[ring].overwritten() for ring in rings])[place]
        self.torn[rings] = np.bincount(place[~whole], minlength=len(rings))

        # Where to start reading next time; records that may never change are given up eventually.
        flags = raw["flags"]
        waits = ~flagged(flags, Flag.RETIRED | Flag.UNOBSERVED)
        waits &= whole
        maybe = ~whole | ~flagged(flags, Flag.RETIRED) | (raw["signature"] == 0)
        waits |= maybe & (expected > end[place] - _REREAD)
        again = end + 1
        at = np.flatnonzero(waits)[::-1]
        again[place[at]] = expected[at]
        self._again[rings] = again
        ends = np.cumsum(lengths) * SLOT.itemsize
        starts = ends - (end + 1 - again) * SLOT.itemsize
        for number, a, b in zip(rings.tolist(), starts.tolist(), ends.tolist(), strict=True):
            self._open[number] = data[a:b]

        known = whole & (raw["group"] >= 1) & (raw["group"] <= self._group_counts[rings[place]])
        if not known.all():
            raw, place = raw[known], place[known]
        ring = rings[place]
        group_place = self._group_at[ring] + raw["group"] - 1
        signature = self._sized(self._translated("signature", ring, raw["signature"]), raw)
        stack = self._translated("stack", ring, raw["stack"])
        thread = raw["thread"].copy()
        rows = raw.view(RECORD_DTYPE)  # rows have the slots' layout; only these columns differ
        rows["group"] = self._common[group_place]
        rows["signature"], rows["stack"] = signature, stack
        rows["thread"], rows["rank"] = thread, self._ranks[ring]
        self._imply(group_place, rows)
        self._note_calls(ring, thread == main_thread[ring], rows)
        self._splice(rings, first, oldest, place, rows)

    def _splice(self, rings: Ints, first: Ints, oldest: Ints, place: Ints, rows: Records) -> None:
        """Replace the rows from ``first`` on by ``rows``, and drop those before ``oldest``."""
        count = len(self._readers)
        before = np.full(count, np.iinfo(np.int64).max)
        before[rings] = first
        after = np.full(count, np.iinfo(np.int64).min)
        after[rings] = oldest
        lengths = self.high - self.low
        of_row = np.repeat(np.arange(count), lengths)
        ids = np.ascontiguousarray(self.records["record_id"])
        gone = np.bincount(of_row[ids < after[of_row]], minlength=count)
        cut = np.bincount(of_row[ids >= before[of_row]], minlength=count)
        added = np.zeros(count, np.int64)
        added[rings] = np.bincount(place, minlength=len(rings))
        ends = np.cumsum(added)
        old, new = _view(self.records), _view(rows)
        parts: list[memoryview] = []
        for a, b, c, d in zip(
            ((self.low + gone) * _ROW).tolist(),
            ((self.high - cut) * _ROW).tolist(),
            ((ends - added) * _ROW).tolist(),
            (ends * _ROW).tolist(),
            strict=True,
        ):
            parts.append(old[a:b])
            if d > c:
                parts.append(new[c:d])
        self.records = np.frombuffer(bytearray().join(parts), RECORD_DTYPE)
        self.high = np.cumsum(np.maximum(lengths - gone - cut, 0) + added)
        self.low = np.concatenate([[0], self.high[:-1]])

    def _translated(self, name: str, ring: Ints, identifiers: Ints) -> Ints:
        """Common indexes of the ids of a ring's interned values."""
        keys = ring * _SHIFT + identifiers
        known, index = self._ids[name]
        at = np.searchsorted(known, keys)
        found = at < len(known)
        found[found] = known[at[found]] == keys[found]
        if not found.all():
            self._learn(name, np.unique(keys[~found]))
            known, index = self._ids[name]
            at = np.searchsorted(known, keys)
        return index[at]

    def _learn(self, name: str, keys: Ints) -> None:
        """Decode values that no earlier record of their ring used."""
        values = {ring: values_of(self._readers[ring].values()) for ring in set(
            (keys // _SHIFT).tolist()
        )}  # fmt: skip
        index = []
        for key in keys.tolist():
            of_ring, identifier = values[key // _SHIFT], key % _SHIFT
            if name == "signature":
                signature = of_ring.signature(identifier)
                number = self._number(signature)
                if signature.input_sizes is None and signature.raw:
                    self._bare[number] = signature
            else:
                number = self._stack_number(of_ring.stack(identifier)) if identifier else NONE
            index.append(number)
        all_keys = np.concatenate([self._ids[name][0], keys])
        all_index = np.concatenate([self._ids[name][1], np.array(index, np.int64)])
        order = np.argsort(all_keys)
        self._ids[name] = all_keys[order], all_index[order]

    def _number(self, signature: Signature) -> int:
        if not self._index_of_signature:
            self._index_of_signature = {s: i for i, s in enumerate(self.signatures)}
        number = self._index_of_signature.setdefault(signature, len(self.signatures))
        if number == len(self.signatures):
            self.signatures = (*self.signatures, signature)
        return number

    def _stack_number(self, stack: Stack) -> int:
        if not self._index_of_stack:
            self._index_of_stack = {s: i for i, s in enumerate(self.stacks)}
        number = self._index_of_stack.setdefault(stack, len(self.stacks))
        if number == len(self.stacks):
            self.stacks = (*self.stacks, stack)
        return number

    def _sized(self, index: Ints, raw: Records) -> Ints:
        """Add each record's sizes to signatures whose sizes did not fit into the ring."""
        for bare, signature in list(self._bare.items()):
            rows = np.flatnonzero(index == bare)
            sizes = np.stack([raw["input_numel"][rows], raw["output_numel"][rows]], axis=1)
            for numels in np.unique(sizes, axis=0):
                index[rows[(sizes == numels).all(axis=1)]] = self._number(
                    with_numels(signature, int(numels[0]), int(numels[1]))
                )
        return index

    def _note_calls(self, ring: Ints, main: npt.NDArray[np.bool_], rows: Records) -> None:
        at = np.flatnonzero(main & (rows["stack"] != NONE))
        newest = dict(zip(ring[at].tolist(), at.tolist(), strict=True))
        stacks, created = rows["stack"], rows["created_ns"]
        for number, row in newest.items():
            self.calls[number] = Call(int(stacks[row]), int(created[row]))

    def _first_open(self, rank_column: Ints) -> Ints:
        """The oldest record of each ring that may still change; the newest ones always may."""
        count = len(self._readers)
        again = np.full(count, np.iinfo(np.int64).max, np.int64)
        ids = self.records["record_id"]
        some = self.high > self.low
        again[some] = ids[self.high[some] - 1] - _REREAD + 1
        again[~some] = 1
        waits = ~flagged(self.records["flags"], Flag.RETIRED | Flag.UNOBSERVED)
        at = np.flatnonzero(waits)[::-1]
        ring = np.searchsorted(self._ranks, rank_column[at])
        oldest = again.copy()
        oldest[ring] = ids[at]
        return np.minimum(again, oldest)

    # -- counters --------------------------------------------------------------------------

    def _places(self, ring: Ints, group: Ints) -> Ints:
        """The index of each row's (ring, common group) among all groups of all rings."""
        keys = self._ring_of_group * self._width + self._common
        order = np.argsort(keys, kind="stable")
        wanted = ring.astype(np.int64) * self._width + group
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(keys) - 1, 0))
        found: Ints = order[at] if len(keys) else at
        return found

    def _imply(self, place: Ints, rows: Records) -> None:
        """Raise the counters that records imply (see `hangscope.trace.merging.records`)."""
        pair = flagged(rows["flags"], Flag.P2P)
        seq = rows["collective_seq"]
        done = np.where((rows["state"] == State.COMPLETED) & ~pair, seq, NONE)
        for row, values in enumerate((seq, done, rows["p2p_seq"])):
            np.maximum.at(self._implied[row], place, values)

    def _count(self) -> None:
        stated = members_of(self._groups, self._ranks[self._ring_of_group], self._common)
        implied = np.zeros(len(self._common), MEMBER_DTYPE)
        implied["rank"], implied["group"] = stated["rank"], stated["group"]
        implied["started"] = NONE
        for column, row in (("enqueued", 0), ("completed", 1), ("p2p_enqueued", 2)):
            implied[column] = self._implied[row]
        implied = implied[self._implied[0] >= NONE]
        stated, implied = merge_members(stated), merge_members(implied)
        stated = discard_mixed_counters(stated, implied)
        self.members = merge_members(np.concatenate([stated, implied]))

    def into(self, trace: Trace) -> Trace:
        """``trace`` with the current tables."""
        return replace(
            trace,
            records=self.records,
            members=self.members,
            signatures=self.signatures,
            stacks=self.stacks,
        )


def _bytes_of(rows: Records) -> npt.NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)


def _view(rows: Records) -> memoryview:
    flat: Any = np.ascontiguousarray(rows).view(np.uint8)  # numpy is not typed as a buffer
    return memoryview(flat) if len(rows) else memoryview(b"")
