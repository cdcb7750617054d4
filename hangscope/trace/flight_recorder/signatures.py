"""Reads the signatures of a Flight Recorder dump."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean, operations
from hangscope.trace.flight_recorder.columns import (
    Entries,
    dtypes,
    numbers,
    pick,
    rows_of,
    sizes,
)
from hangscope.trace.flight_recorder.intern import ValueTable
from hangscope.trace.model import Signature

Sizes = tuple[tuple[int, ...], ...]
Dtypes = tuple[str, ...]
_FIELDS = (
    "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "reduce_op",
    "input_split_sizes", "output_split_sizes",
)  # fmt: skip
_NO_TENSOR = "UNKNOWN_SCALAR"
"""The dtype of an undefined tensor, which stands for an empty list."""
_MADE_BEFORE: dict[bytes, Signature | None] = {}


class Signatures(ValueTable[Signature]):
    """The distinct signatures of one dump; ``coalesced`` terminators carry no sizes."""

    def __init__(self) -> None:
        super().__init__(lambda row: _signature(*row), _MADE_BEFORE)

    def of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Index into `table` per entry."""
        fields = [pick(entries, name) for name in _FIELDS]
        while fields[-1] is None and len(fields) > 2:
            fields.pop()
        return self.column(rows_of(entries, fields))


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
