"""Interns the signatures of a Flight Recorder dump."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean, operations
from hangscope.trace.flight_recorder.columns import (
    OP_FIELDS,
    Entries,
    dtypes,
    numbers,
    pick,
    rows_of,
    sizes,
)
from hangscope.trace.flight_recorder.intern import Key, Row, RowInterner
from hangscope.trace.model import Signature

Sizes = tuple[tuple[int, ...], ...]
Dtypes = tuple[str, ...]
_MADE_BEFORE: dict[Key, Signature] = {}
"""Shared by all dumps that this process reads: the ranks of a job have the same signatures."""
_NO_TENSOR = "UNKNOWN_SCALAR"
"""The dtype of an undefined tensor, which stands for an empty list."""
_MAX_MADE, _MAX_KEY_BYTES = 4096, 4096


class Signatures:
    """The distinct signatures of one dump; ``coalesced`` terminators carry no sizes."""

    def __init__(self) -> None:
        self.table: list[Signature] = []
        self._by_signature: dict[Signature, int] = {}

    def column(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Index into `table` per entry."""
        fields = [
            pick(entries, *OP_FIELDS),
            pick(entries, "input_sizes", "input_shapes", "in_sizes", "input_shape"),
            pick(entries, "output_sizes", "output_shapes", "out_sizes", "output_shape"),
            pick(entries, "input_dtypes", "input_dtype", "dtype", "data_type", "datatype"),
            pick(entries, "output_dtypes", "output_dtype"),
            pick(entries, "reduce_op", "red_op"),
            pick(entries, "input_split_sizes", "input_splits", "in_split_sizes"),
            pick(entries, "output_split_sizes", "output_splits", "out_split_sizes"),
        ]
        while fields[-1] is None and len(fields) > 2:
            fields.pop()
        return RowInterner(self._make).column(rows_of(entries, fields))

    def _make(self, row: Row, key: Key) -> int:
        signature = _MADE_BEFORE.get(key)
        if signature is None:
            signature = _signature(*row)
            # A key made of object ids is not valid for the next dump.
            if type(key) is bytes and len(key) <= _MAX_KEY_BYTES:
                if len(_MADE_BEFORE) >= _MAX_MADE:
                    _MADE_BEFORE.clear()
                _MADE_BEFORE[key] = signature
        known = self._by_signature.get(signature)
        if known is None:
            known = self._by_signature[signature] = len(self.table)
            self.table.append(signature)
        return known


def _signature(
    raw: Any,
    ins: Any = None,
    outs: Any = None,
    in_types: Any = None,
    out_types: Any = None,
    reduce_op: Any = None,
    in_splits: Any = None,
    out_splits: Any = None,
) -> Signature:
    text = clean.as_name(raw, "unknown") or "unknown"
    parsed = operations.parse(text)
    batch = parsed.op == "coalesced"
    in_sizes, in_dtypes = _given(sizes(ins), dtypes(in_types))
    out_sizes, out_dtypes = _given(sizes(outs), dtypes(out_types))
    return Signature(
        op=parsed.op,
        raw=text,
        backend=parsed.backend,
        input_sizes=None if batch and not ins else in_sizes,
        output_sizes=None if batch and not outs else out_sizes,
        input_dtypes=None if batch and not in_types else in_dtypes,
        output_dtypes=None if batch and not out_types else out_dtypes,
        reduce_op=clean.as_name(reduce_op).upper() or None,
        input_splits=numbers(in_splits),
        output_splits=numbers(out_splits),
    )


def _given(shapes: Sizes | None, types: Dtypes | None) -> tuple[Sizes | None, Dtypes | None]:
    """Sizes and dtypes of the tensors that exist; non-root ranks may pass none."""
    if not shapes or not types or _NO_TENSOR not in types or len(shapes) != len(types):
        return shapes, types
    there = [i for i, dtype in enumerate(types) if dtype != _NO_TENSOR]
    return tuple(shapes[i] for i in there), tuple(types[i] for i in there)
