"""The first place in each group where the operations that members issued are incompatible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.agreement import ROOTED, WITH_REDUCTION, Terms, aspect_of, terms
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.trace.model import MAX_RANK, Flag, Records, State, Trace, flagged

_SPARSE_FACTOR = 8

_ASPECTS = ("op", "dtype", "numel", "reduce_op", "device", "root", None)
"""What differs, most informative first."""


@dataclass(frozen=True, slots=True)
class Part:
    """Members that agree with each other at one place."""

    ranks: tuple[int, ...]
    row: int
    """Row of one of them, as an example."""
    inner: int = -1
    """For a coalesced batch: the row inside it at which it differs from the others, or -1."""

    @property
    def shown(self) -> int:
        """The row that shows the difference."""
        return self.row if self.inner < 0 else self.inner


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``aspect``: op, numel, dtype, reduce_op, root or history.

    The largest part comes first, or, of equally large ones, the one found to be right.
    """

    group: int
    seq: int
    aspect: str
    parts: tuple[Part, ...]
    inside: int = -1
    """Index (from 0) of the operation inside the batches that differs; -1: not a batch."""
    completed_by_all: bool = False
    """Every member has finished it nevertheless: a clue to a later failure, not a hang."""

    @property
    def ranks(self) -> frozenset[int]:
        """The members whose operations are compared."""
        return frozenset(rank for part in self.parts for rank in part.ranks)

    def with_last(self, ranks: Collection[int]) -> Mismatch:
        """The same with the parts of ``ranks`` last."""
        parts = sorted(self.parts, key=lambda part: not set(ranks).isdisjoint(part.ranks))
        return replace(self, parts=tuple(parts))

    def leaving(self, records: Records) -> list[int]:
        """The ranks that issued it in a signal handler or on their way out."""
        away = int(Flag.LEAVING)
        return [r for part in self.parts if records["flags"][part.row] & away for r in part.ranks]


def mismatches(trace: Trace, front: Frontiers) -> list[Mismatch]:
    """At most one `Mismatch` per group: everything after the first is its consequence."""
    rows = np.flatnonzero(front.collective)
    if not len(rows):
        return []
    position, group_of, seq_of = _positions(trace, rows)
    classes, known, examples = _classes(trace, front, rows, position)
    # Each place has one reference class: the best known one, written last.
    reference = np.full(len(group_of), -1, np.int64)
    for level in range(int(known.max()) + 1):
        chosen = known == level
        reference[position[chosen]] = classes[chosen]
    differs = np.flatnonzero(reference[position] != classes)
    if not len(differs):
        return []
    pairs = np.stack([reference[position[differs]], classes[differs]], axis=1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    aspects = [_aspect(examples[int(a)], examples[int(b)]) for a, b in unique]
    bad = np.array([aspect is not None for aspect in aspects])[inverse.reshape(-1)]
    places = np.unique(position[differs[bad]])
    over = _completed(trace, front, rows, position, len(group_of))
    first: dict[int, int] = {}
    for place in sorted(places.tolist(), key=lambda p: (bool(over[p]), int(seq_of[p]))):
        # A mismatch that everybody finished counts only if there is no other.
        first.setdefault(int(group_of[place]), place)
    if not first:
        return []
    wanted = np.isin(position, np.fromiter(first.values(), np.int64))
    found = []
    for group, place in sorted(first.items()):
        here = (
            np.flatnonzero(wanted & (position == place))
            if len(first) > 1
            else np.flatnonzero(wanted)
        )
        mismatch = _parts(trace, rows[here], classes[here], examples, group, int(seq_of[place]))
        if mismatch is not None:
            members = trace.groups[group].ranks
            mismatch = _inside(trace, front, mismatch)
            whole = mismatch.ranks.issuperset(members)
            found.append(replace(mismatch, completed_by_all=whole and bool(over[place])))
    return found


def _completed(
    trace: Trace, front: Frontiers, rows: Ints, position: Ints, places: int
) -> npt.NDArray[np.bool_]:
    """Per place, whether all its records are known to have finished."""
    flags = trace.records["flags"][rows]
    doubtful = int(Flag.UNOBSERVED | Flag.TIMED_OUT | Flag.SYNTHETIC)
    open_ = front.unfinished[rows] | (trace.records["state"][rows] != int(State.COMPLETED))
    open_ |= flagged(flags, doubtful)
    over = np.ones(places, bool)
    over[position[open_]] = False
    return over


def _classes(
    trace: Trace, front: Frontiers, rows: Ints, position: Ints
) -> tuple[Ints, Ints, dict[int, tuple[Terms, int]]]:
    """A class per row; rows of one class have equal terms. Also how much of the terms is known."""
    of_signature = [terms(signature) for signature in trace.signatures]
    numbers: dict[Terms, int] = {}
    ids = np.array([numbers.setdefault(t, len(numbers)) for t in of_signature], np.int64)
    rooted = np.array([t.op in ROOTED for t in of_signature], bool)
    level = np.array([t.known for t in of_signature], np.int64)
    signature = trace.records["signature"][rows]
    contents = _batch_contents(trace, front, rows, position, of_signature)
    root = trace.records["root"][rows].astype(np.int64)
    root[~rooted[signature] | (root < 0) | (root > MAX_RANK)] = -1
    span = int(root.max()) + 2 if len(root) else 1
    # A batch is defined by its members: its own row has only a name.
    number = ids[signature]
    inside = np.flatnonzero(contents)
    if len(inside):
        kinds, place = np.unique(
            np.stack([number[inside], contents[inside]], axis=1), axis=0, return_inverse=True
        )
        number = number.copy()
        for index, (plain, mark) in enumerate(kinds.tolist()):
            t = replace(next(t for t, n in numbers.items() if n == plain), batch=int(mark))
            number[inside[place.reshape(-1) == index]] = numbers.setdefault(t, len(numbers))
    classes = number * span + root + 1
    by_id = {number: t for t, number in numbers.items()}
    examples = {
        int(c): (by_id[int(c) // span], int(c) % span - 1) for c in np.unique(classes).tolist()
    }
    return classes, level[signature] * 2 + (root >= 0), examples


def _batch_contents(
    trace: Trace, front: Frontiers, rows: Ints, position: Ints, of_signature: list[Terms]
) -> Ints:
    """Per row a hash of the operations inside its batch, in any order; 0: not all recorded.

    What is reduced how becomes known a little later than the rest: it is left out at a
    ``position`` where it is not known of all members.
    """
    members = np.flatnonzero(front.batch_row >= 0)
    if not len(members):
        return np.zeros(len(rows), np.int64)
    signature, batch = trace.records["signature"][members], front.batch_row[members]
    lacks = np.array([t.op in WITH_REDUCTION and not t.reduce_op for t in of_signature], bool)
    unknown = np.zeros(len(trace.records), bool)
    unknown[batch[lacks[signature]]] = True
    vague = np.zeros(int(position.max()) + 1, bool)
    vague[position[unknown[rows]]] = True
    is_vague = np.zeros(len(trace.records), bool)
    is_vague[rows] = vague[position]
    numbers: dict[Terms, int] = {}
    full, bare = (
        np.array([numbers.setdefault(t, len(numbers)) for t in terms_], np.int64)
        for terms_ in (of_signature, [replace(t, reduce_op=None) for t in of_signature])
    )
    marks = np.random.default_rng(0).integers(1, 1 << 40, len(numbers) + 1)
    total = np.zeros(len(trace.records), np.int64)
    of_member = np.where(is_vague[batch], bare[signature], full[signature])
    np.add.at(total, batch, marks[of_member])
    total[_cut_batches(trace, front, members)] = 0
    contents: Ints = total[rows]
    return contents


def _cut_batches(trace: Trace, front: Frontiers, members: Ints) -> Ints:
    """Rows of batches that start a group's records on a rank whose older ones are overwritten.

    The first of their operations may be gone.
    """
    records = trace.records
    wrapped = [r for r, facts in trace.ranks.items() if facts.oldest_record_id > 1]
    key = records["rank"].astype(np.int64) * max(len(trace.groups), 1) + records["group"]
    first = np.zeros(len(records), bool)
    first[np.unique(key, return_index=True)[1]] = True
    cut: Ints = front.batch_row[
        members[first[members] & np.isin(records["rank"][members], wrapped)]
    ]
    return cut


def _positions(trace: Trace, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """A dense number for each (group, seq) and what it stands for."""
    group = trace.records["group"][rows].astype(np.int64)
    seq = trace.records["collective_seq"][rows]
    count = int(group.max()) + 1
    low = np.full(count, np.iinfo(np.int64).max, np.int64)
    high = np.full(count, -1, np.int64)
    np.minimum.at(low, group, seq)
    np.maximum.at(high, group, seq)
    # As floats: numbers from a damaged file may be so far apart that integers overflow.
    span = np.where(high >= 0, high.astype(np.float64) - low.astype(np.float64) + 1, 0)
    if span.sum() > _SPARSE_FACTOR * len(rows) + 1_000_000:
        keys = np.stack([group, seq], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        return inverse.reshape(-1).astype(np.int64), unique[:, 0], unique[:, 1]
    width = span.astype(np.int64)
    base = np.concatenate([[0], np.cumsum(width)[:-1]])
    position = base[group] + seq - low[group]
    group_of = np.repeat(np.arange(count), width)
    seq_of = np.arange(len(group_of)) - base[group_of] + low[group_of]
    return position, group_of, seq_of


def _aspect(a: tuple[Terms, int], b: tuple[Terms, int]) -> str | None:
    return aspect_of(a[0], b[0], (a[1], b[1]))


def _parts(
    trace: Trace,
    rows: Ints,
    classes: Ints,
    examples: dict[int, tuple[Terms, int]],
    group: int,
    seq: int,
) -> Mismatch | None:
    """Split the members at one place into parts that agree, largest first."""
    ranks = trace.records["rank"][rows]
    by_class: dict[int, list[int]] = defaultdict(list)
    row_of: dict[int, int] = {}
    seen: set[int] = set()
    for rank, cls, row in zip(ranks.tolist(), classes.tolist(), rows.tolist(), strict=True):
        # One sequence number with several entries: a coalesced batch listed operation by operation.
        if rank in seen:
            continue
        seen.add(rank)
        by_class[cls].append(rank)
        row_of.setdefault(cls, row)
    merged: list[tuple[int, list[int]]] = []
    for cls in sorted(by_class, key=lambda c: (-examples[c][0].known, -len(by_class[c]))):
        for other, members in merged:
            if _aspect(examples[cls], examples[other]) is None:
                members.extend(by_class[cls])
                break
        else:
            merged.append((cls, list(by_class[cls])))
    if len(merged) < 2:
        return None
    merged.sort(key=lambda item: (-len(item[1]), min(item[1])))
    aspects = {_aspect(examples[merged[0][0]], examples[c]) for c, _ in merged[1:]}
    aspect = next(a for a in _ASPECTS if a in aspects)
    parts = tuple(Part(tuple(sorted(m)), row_of[c]) for c, m in merged)
    return Mismatch(group, seq, aspect or "op", parts)


def _inside(trace: Trace, front: Frontiers, mismatch: Mismatch) -> Mismatch:
    """The mismatch, at the first operation inside batches that differs.

    The batches as a whole differ if one holds more operations than another, or if the content is
    not recorded.
    """
    if mismatch.aspect != "op" or int(front.batch_row.max(initial=-1)) < 0:
        return mismatch
    inside = [np.flatnonzero(front.batch_row == part.row).tolist() for part in mismatch.parts]
    if not inside[0] or len({len(rows) for rows in inside}) != 1:
        return mismatch
    for place, rows in enumerate(zip(*inside, strict=True)):
        aspects = [_aspect(_issued(trace, rows[0]), _issued(trace, row)) for row in rows[1:]]
        if aspect := next(filter(None, aspects), None):
            pairs = zip(mismatch.parts, rows, strict=True)
            parts = tuple(replace(part, inner=row) for part, row in pairs)
            return replace(mismatch, aspect=aspect, parts=parts, inside=place)
    return mismatch


def _issued(trace: Trace, row: int) -> tuple[Terms, int]:
    """What an operation requires of the other members, and its root."""
    record = trace.records[row]
    return terms(trace.signatures[int(record["signature"])]), int(record["root"])


def minority(parts: Iterable[Part]) -> tuple[tuple[int, ...], bool]:
    """Ranks that differ from the largest part, and whether that part is strictly larger.

    Without a single largest part nothing decides: all the equally large parts are returned.
    """
    ordered = sorted(parts, key=lambda p: -len(p.ranks))
    largest = [p for p in ordered if len(p.ranks) == len(ordered[0].ranks)]
    if len(largest) == 1:
        return tuple(sorted(r for p in ordered[1:] for r in p.ranks)), True
    return tuple(sorted(r for p in ordered for r in p.ranks)), False


def diverged_before(trace: Trace, front: Frontiers, known: Iterable[int]) -> list[Mismatch]:
    """Groups whose running hashes already differ at the first place that several members still
    hold.

    The difference itself has been overwritten there. If hashes first agree and later differ
    although the operations are compatible, the hash is just stricter than the wire: no finding.
    ``known``: groups with a recorded difference anyway.
    """
    history = trace.records["history"]
    rows = np.flatnonzero(front.collective & (history != 0))
    if not len(rows):
        return []
    position, group_of, seq_of = _positions(trace, rows)
    values = history[rows]
    reference = np.zeros(len(group_of), np.uint64)
    reference[position] = values
    count = np.bincount(position, minlength=len(group_of))
    differs = np.zeros(len(group_of), bool)
    differs[position[reference[position] != values]] = True
    shared = np.flatnonzero(count > 1)
    found = []
    skip = set(known)
    for group in np.unique(group_of[differs]).tolist():
        places = shared[group_of[shared] == group]
        if group in skip or not len(places) or not differs[places[0]]:
            continue
        here = rows[position == places[0]]
        by_hash: dict[int, list[int]] = defaultdict(list)
        row_of: dict[int, int] = {}
        for row in here.tolist():
            value = int(history[row])
            by_hash[value].append(int(trace.records["rank"][row]))
            row_of.setdefault(value, row)
        parts = sorted(
            (Part(tuple(sorted(r)), row_of[v]) for v, r in by_hash.items()),
            key=lambda p: (-len(p.ranks), p.ranks),
        )
        found.append(Mismatch(group, int(seq_of[places[0]]), "history", tuple(parts)))
    return found
