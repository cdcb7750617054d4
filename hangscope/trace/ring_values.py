"""The interned values of a ring, decoded once for all rings that hold the same.

Ranks of one program intern the same call sites and signatures in the same order, so the value areas
of thousands of rings are often equal byte for byte; comparing 30 kB is far cheaper than decoding
them again.
"""

from __future__ import annotations

import functools
import json
import struct
from typing import Any

from hangscope.ring.layout import VALUE_HEADER, ValueKind
from hangscope.trace.model import Frame, Signature, Stack
from hangscope.trace.operations import canonical

_KEPT_AREAS = 16
_KEPT_FRAMES = 65_536
_KEPT_SIGNATURES = 65_536


class RingValues:
    """Signatures and stacks of one value area, decoded as they are asked for."""

    def __init__(self, area: bytes) -> None:
        self._area = area
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, Stack] = {}

    def signature(self, identifier: int) -> Signature:
        """A signature; one named ``unknown`` where the id means nothing."""
        return _signature(self._value(identifier, ValueKind.SIGNATURE) or b"")

    def stack(self, identifier: int) -> Stack:
        """A stack, innermost frame first; empty where the id means nothing."""
        known = self._stacks.get(identifier)
        if known is not None:
            return known
        raw = self._value(identifier, ValueKind.STACK) or b""
        count = len(raw) // 4
        ids = struct.unpack(f"<{count}I", raw[: count * 4])
        frames = self._frames
        for frame_id in set(ids).difference(frames):
            frames[frame_id] = _frame(self._value(frame_id, ValueKind.FRAME) or b"")
        self._stacks[identifier] = found = tuple(map(frames.__getitem__, ids))
        return found

    def _value(self, identifier: int, kind: ValueKind) -> bytes | None:
        at = identifier * 8
        if identifier <= 0 or at + VALUE_HEADER.size > len(self._area):
            return None
        length, found = VALUE_HEADER.unpack_from(self._area, at)
        at += VALUE_HEADER.size
        if found != kind or at + length > len(self._area):
            return None
        return self._area[at : at + length]


@functools.lru_cache(_KEPT_AREAS)
def values_of(area: bytes) -> RingValues:
    """The decoded values of an area (see `RingReader.values`)."""
    return RingValues(area)


@functools.lru_cache(_KEPT_FRAMES)
def _frame(raw: bytes) -> Frame:
    name, _, rest = raw.decode("utf-8", "replace").partition("\x00")
    filename, _, line = rest.partition("\x00")
    return Frame(name, filename, int(line) if line.isdecimal() and line.isascii() else 0)


@functools.lru_cache(_KEPT_SIGNATURES)
def _signature(raw: bytes) -> Signature:
    try:
        fields = json.loads(raw) if raw else {}
        if not isinstance(fields, dict):
            raise ValueError
        name = str(fields.get("op", ""))
        reduce_op = fields.get("reduce_op")
        return Signature(
            op=canonical(name),
            raw=name,
            backend=name.partition(":")[0] if ":" in name else "",
            input_sizes=_sizes(fields.get("in")),
            output_sizes=_sizes(fields.get("out")),
            input_dtypes=_texts(fields.get("in_dtypes")),
            output_dtypes=_texts(fields.get("out_dtypes")),
            reduce_op=None if reduce_op is None else str(reduce_op),
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
    return None if value is None else tuple(str(item) for item in value)
