"""The interned values of a ring, decoded once for all rings that contain them.

Ranks of one program intern the same call sites and signatures, so values decoded for one ring are
found by their raw bytes when the next is read. Stacks are decoded only on access.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import orjson

from hangscope.ring.layout import GROUP, VALUE_HEADER, ValueKind
from hangscope.trace import clean
from hangscope.trace.model import MAX_RANK, Frame, Group, Signature, Stack
from hangscope.trace.operations import canonical

_KEPT_FRAMES = 65_536
_KEPT_SIGNATURES = 65_536
_KEPT_TABLES = 256
_KEPT_GROUPS = 16_384
_KEPT_STACKS = 16_384
_MOST_FRAMES = 4096
_LAZY_BYTES = 1 << 18
"""Larger value areas are not kept for the sake of stacks that have not been accessed."""

Ids = npt.NDArray[np.int64]
Span = tuple[int, int]
"""Where a value, including its header, begins and ends in its area."""

# Plain integers, because accessing an enum member costs a microsecond.
_SIGNATURE, _STACK, _FRAME = int(ValueKind.SIGNATURE), int(ValueKind.STACK), int(ValueKind.FRAME)
_TEXT, _RANKS = int(ValueKind.TEXT), int(ValueKind.RANKS)
_unpack = VALUE_HEADER.unpack_from
_GROUP = struct.Struct(f"<4x5Ii{GROUP.itemsize - 28}x")
"""The fields ``name`` to ``size`` of a group's entry."""
assert GROUP.names is not None
assert GROUP.names[:7] == ("commit", "name", "desc", "ranks", "backend", "epoch", "size")


class RingValues:
    """Texts, groups, signatures and stacks of one value area, decoded on demand.

    All returned texts except raw ones are sanitised, because a ring can be forged.

    Parameters
    ----------
    area:
        The used part of the area.
    """

    def __init__(self, area: bytes) -> None:
        self._area = area

    def spans(self, ids: Ids, kind: int) -> list[Span]:
        """The spans of values, in order; empty if an id refers to nothing or to another kind."""
        words = np.frombuffer(self._area, "<u4", len(self._area) // 8 * 2).reshape(-1, 2)
        if not len(words):
            return [(0, 0)] * len(ids)
        at = np.where((ids > 0) & (ids < len(words)), ids, 0)  # id 0 is never assigned
        lengths, found = words[at].T
        starts = at * 8
        ends = starts + VALUE_HEADER.size + lengths
        usable = (found == kind) & (ends <= len(self._area)) & (at > 0)
        ends = np.where(usable, ends, starts)
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def raw(self, ids: Ids, kind: int) -> list[bytes]:
        """The bytes of values, in order; empty if an id refers to nothing or to another kind."""
        area, header = self._area, VALUE_HEADER.size
        return [area[a + header : b] for a, b in self.spans(ids, kind)]

    def signatures(self, ids: Ids) -> tuple[Signature, ...]:
        """Signatures; named ``unknown`` if an id refers to nothing.

        Rings with the same signatures get the same tuple.
        """
        return _signatures(tuple(self.raw(ids, _SIGNATURE)))

    def stacks(self, ids: Ids) -> Sequence[Stack]:
        """Stacks, innermost frame first; empty if an id refers to nothing."""
        if len(self._area) > _LAZY_BYTES:
            return tuple(map(self.stack, ids.tolist()))
        return _LazyStacks(self, ids)

    def stack(self, identifier: int) -> Stack:
        """One stack, innermost frame first; empty if the id refers to nothing."""
        raw, value = self._value(identifier, _STACK), self._value
        ids = struct.unpack_from(f"<{min(len(raw) // 4, _MOST_FRAMES)}I", raw)
        return _stack(tuple([value(i, _FRAME) for i in ids]))

    def _value(self, identifier: int, kind: int) -> bytes:
        area, at = self._area, identifier * 8
        if identifier <= 0 or at + 8 > len(area):
            return b""
        length, found = _unpack(area, at)
        end = at + 8 + length
        return area[at + 8 : end] if found == kind and end <= len(area) else b""

    def text(self, identifier: int) -> str:
        """A text as stored in the ring; empty if absent."""
        return self._value(identifier, _TEXT).decode("utf-8", "replace")

    def groups(self, table: npt.NDArray[np.void]) -> tuple[Group, ...]:
        """The groups of a ring's group table (dtype `hangscope.ring.layout.GROUP`)."""
        value = self._value
        return tuple(
            [
                _group(
                    value(name, _TEXT), value(desc, _TEXT), value(backend, _TEXT),
                    value(ranks, _RANKS), epoch, size,
                )
                for name, desc, ranks, backend, epoch, size in _GROUP.iter_unpack(table.tobytes())
            ]
        )  # fmt: skip


class _LazyStacks(Sequence[Stack]):
    """The stacks of one ring, decoded on access."""

    def __init__(self, values: RingValues, ids: Ids) -> None:
        self._values, self._ids = values, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Stack: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Stack]: ...

    def __getitem__(self, index: int | slice) -> Stack | Sequence[Stack]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._values.stack(int(self._ids[index]))


@functools.lru_cache(_KEPT_STACKS)
def _stack(raws: tuple[bytes, ...]) -> Stack:
    return tuple(map(frame, raws))


@functools.lru_cache(_KEPT_FRAMES)
def frame(raw: bytes) -> Frame:
    """Decode a frame: name, file and line, separated by zero bytes."""
    name, _, rest = raw.decode("utf-8", "replace").partition("\x00")
    filename, _, line = rest.partition("\x00")
    number = int(line) if line.isdecimal() and line.isascii() else 0
    return Frame(clean.name(name), clean.name(filename), number)


@functools.lru_cache(_KEPT_GROUPS)
def _group(name: bytes, desc: bytes, backend: bytes, ranks: bytes, epoch: int, size: int) -> Group:
    listed = _ranks(ranks)
    known = tuple([rank for rank in listed if rank >= 0]) if -1 in listed else listed
    return Group(
        name=_text(name),
        desc=_text(desc),
        ranks=known,
        epoch=epoch,
        backend=_text(backend),
        size=size if 0 <= size <= MAX_RANK + 1 else None,
        place=listed.index(known[0]) if len(known) == 1 < len(listed) else None,
    )


@functools.lru_cache(_KEPT_GROUPS)
def _ranks(raw: bytes) -> tuple[int, ...]:
    """Global ranks; cached, so that equal lists are one object (every rank of a large job has all).

    -1 stands for a member that is not known to be a rank of this job.
    """
    ranks = struct.unpack(f"<{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    if not ranks or min(ranks) < -1 or max(ranks) > MAX_RANK:
        return ()
    members = [rank for rank in ranks if rank >= 0]
    return ranks if len(set(members)) == len(members) else ()


def _text(raw: bytes) -> str:
    return clean.name(raw.decode("utf-8", "replace"))


@functools.lru_cache(_KEPT_TABLES)
def _signatures(raws: tuple[bytes, ...]) -> tuple[Signature, ...]:
    return tuple(map(_signature, raws))


@functools.lru_cache(_KEPT_SIGNATURES)
def _signature(raw: bytes) -> Signature:
    try:
        fields = orjson.loads(raw) if raw else {}
        if not isinstance(fields, dict):
            raise ValueError
        name = clean.name(str(fields.get("op", "")))
        reduce_op = fields.get("reduce_op")
        return Signature(
            op=canonical(name),
            raw=name,
            backend=name.partition(":")[0] if ":" in name else "",
            input_sizes=_sizes(fields.get("in")),
            output_sizes=_sizes(fields.get("out")),
            input_dtypes=_texts(fields.get("in_dtypes")),
            output_dtypes=_texts(fields.get("out_dtypes")),
            reduce_op=None if reduce_op is None else clean.name(str(reduce_op)),
            input_splits=_integers(fields.get("in_splits")),
            output_splits=_integers(fields.get("out_splits")),
        )
    except (ValueError, TypeError, RecursionError):
        return Signature(op="unknown")


def _sizes(value: Any) -> tuple[tuple[int, ...], ...] | None:
    return None if value is None else tuple(tuple(int(n) for n in shape) for shape in value)


def _integers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(n) for n in value)


def _texts(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(clean.name(str(item)) for item in value)
