"""Entries of a Flight Recorder dump, turned into columns without keeping the dictionaries.

A training loop repeats its call sites and shapes, so signatures and stacks are interned: by
identity where the pickle shares objects (one frame is one object however often it is mentioned),
by value otherwise. Everything takes whatever a hand-made dump may hold and costs time linear in
the file's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean, operations
from hangscope.trace.model import Frame, Signature, Stack

MAX_FRAMES = 256
MAX_TENSORS = 4096
MAX_DIMS = 32

Entry = dict[str, Any]
IntArray = npt.NDArray[np.int64]

_FRAME_FIELDS: Callable[[Any], tuple[Any, ...]] = itemgetter("name", "filename", "line")
_PROBE = 64


def pick(entries: Sequence[Entry], *names: str) -> str | None:
    """The first of several spellings of a field that any entry has."""
    if not entries:
        return None
    for probe in (entries[0], entries[-1]):
        for name in names:
            if name in probe:
                return name
    for name in names:
        if any(name in entry for entry in entries):
            return name
    return None


def int_column(entries: Sequence[Entry], default: int, *names: str) -> IntArray:
    """One integer per entry; ``default`` where it is absent, null or no number."""
    name = pick(entries, *names)
    if name is None:
        return np.full(len(entries), default, np.int64)
    values = [entry.get(name) for entry in entries]
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        pass
    fixed = [v if type(v) is int else clean.as_int(v, default) for v in values]
    try:
        return np.fromiter(fixed, np.int64, len(fixed))
    except OverflowError:
        return np.fromiter((clean.as_int(v, default) for v in fixed), np.int64, len(fixed))


def bool_column(entries: Sequence[Entry], *names: str) -> npt.NDArray[np.bool_] | None:
    """One truth value per entry, or None where no entry has the field."""
    name = pick(entries, *names)
    if name is None:
        return None
    values = [entry.get(name) for entry in entries]
    return np.fromiter((v is True or (v is not False and clean.as_bool(v)) for v in values), bool)


_STATES = {
    "scheduled": 0,
    "started": 1,
    "completed": 2,
    "finished": 2,
    "running": 1,
    "enqueued": 0,
    "timed_out": 0,
}


def state_column(entries: Sequence[Entry]) -> npt.NDArray[np.uint8]:
    """`hangscope.trace.model.State` per entry, from names in any case or numbers."""
    name = pick(entries, "state", "status") or "state"
    values = [entry.get(name) for entry in entries]
    try:
        return np.fromiter((_STATES[v] for v in values), np.uint8, len(values))  # type: ignore[index]
    except (KeyError, TypeError):
        return np.fromiter((_state(v) for v in values), np.uint8, len(values))


def _state(value: Any) -> int:
    if isinstance(value, str):
        return _STATES.get(value.strip().lower(), 0)
    number = clean.as_int(value, 0)
    return number if number in (0, 1, 2) else 0


class Stacks:
    """Interns the stacks of one dump; `table` holds each stack once, innermost frame first."""

    def __init__(self) -> None:
        self.table: list[Stack] = []
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_fields: dict[tuple[Any, ...], int] = {}
        self._by_stack: dict[Stack, int] = {}
        self._frames: dict[tuple[Any, Any, Any], Frame] = {}
        self._seen = 0
        self._misses = 0

    def column(self, entries: Sequence[Entry]) -> npt.NDArray[np.int32]:
        """Index into `table` per entry; -1 where an entry has no frames."""
        name = pick(entries, "frames", "stack", "stack_trace", "traceback")
        if name is None:
            return np.full(len(entries), -1, np.int32)
        index = self.index
        return np.fromiter((index(e.get(name)) for e in entries), np.int32, len(entries))

    def index(self, frames: Any) -> int:
        """Index of one entry's frames."""
        if not frames or type(frames) not in (list, tuple):
            return self._from_text(frames) if isinstance(frames, str) and frames else -1
        # Identities stay valid: the whole dump is alive while its columns are made.
        known = self._by_list.get(id(frames))
        if known is not None:
            return known
        if len(frames) > MAX_FRAMES:
            found = self._intern(frames[:MAX_FRAMES])
            self._by_list[id(frames)] = found
            return found
        self._seen += 1
        if self._misses * 2 > self._seen and self._seen > _PROBE:
            return self._by_value(frames)  # frames are not shared in this dump
        key = tuple(map(id, frames))
        known = self._by_frames.get(key)
        if known is None:
            self._misses += 1
            known = self._by_frames[key] = self._by_value(frames)
        return known

    def _by_value(self, frames: Sequence[Any]) -> int:
        try:
            key = tuple(map(_FRAME_FIELDS, frames))
            known = self._by_fields.get(key)
        except (KeyError, TypeError, IndexError):
            return self._intern(frames)
        if known is None:
            known = self._by_fields[key] = self._intern(frames)
        return known

    def _intern(self, frames: Sequence[Any]) -> int:
        stack = tuple(self._frame(frame) for frame in frames)
        return self._add(stack)

    def _add(self, stack: Stack) -> int:
        known = self._by_stack.get(stack)
        if known is None:
            known = self._by_stack[stack] = len(self.table)
            self.table.append(stack)
        return known

    def _frame(self, frame: Any) -> Frame:
        if isinstance(frame, dict):
            name = frame.get("name", frame.get("func", frame.get("function")))
            file, line = frame.get("filename", frame.get("file")), frame.get("line")
        elif isinstance(frame, (list, tuple)) and len(frame) == 3:
            name, file, line = frame
        else:
            return Frame(clean.as_name(frame, "?"), "", 0)
        try:
            known = self._frames.get((name, file, line))
        except TypeError:
            return Frame(clean.as_name(name, "?"), clean.as_name(file), clean.as_int(line, 0))
        if known is None:
            known = Frame(
                clean.as_name(name, "?"), clean.as_name(file), clean.as_int(line, 0, low=0)
            )
            self._frames[(name, file, line)] = known
        return known

    def _from_text(self, text: str) -> int:
        return self._add((Frame(clean.name(text[:300]), "", 0),))


class Signatures:
    """Interns the signatures of one dump; ``coalesced`` terminators carry no sizes."""

    def __init__(self) -> None:
        self.table: list[Signature] = []
        self._by_key: dict[tuple[Any, ...], int] = {}
        self._by_signature: dict[Signature, int] = {}

    def column(self, entries: Sequence[Entry]) -> npt.NDArray[np.int32]:
        """Index into `table` per entry."""
        fields = (
            pick(entries, "profiling_name", "op_name", "operation", "op", "name") or "",
            pick(entries, "input_sizes", "input_shapes", "in_sizes") or "",
            pick(entries, "output_sizes", "output_shapes", "out_sizes") or "",
            pick(entries, "input_dtypes", "input_dtype", "dtype") or "",
            pick(entries, "output_dtypes", "output_dtype") or "",
        )
        extras = (
            pick(entries, "reduce_op", "red_op") or "",
            pick(entries, "input_split_sizes", "input_splits", "in_split_sizes") or "",
            pick(entries, "output_split_sizes", "output_splits", "out_split_sizes") or "",
        )
        index = self._index_with_extras(fields, extras) if any(extras) else self._index(fields)
        return np.fromiter(map(index, entries), np.int32, len(entries))

    def _index(self, fields: tuple[str, ...]) -> Callable[[Entry], int]:
        name, ins, outs, in_types, out_types = fields
        by_key = self._by_key
        by_identity: dict[tuple[int, ...], int] = {}
        add = self._add

        def index(entry: Entry) -> int:
            get = entry.get
            a, b, c, d = get(ins), get(outs), get(in_types), get(out_types)
            try:
                # Cheap key: rows are short lists of ints, looked at one level deep only.
                key = (
                    get(name),
                    _row(a[0]) if len(a) == 1 else _rows(a),  # type: ignore[index,arg-type]
                    _row(b[0]) if len(b) == 1 else _rows(b),  # type: ignore[index,arg-type]
                    c if type(c) is str else _names(c),  # type: ignore[arg-type]
                    d if type(d) is str else _names(d),  # type: ignore[arg-type]
                )
                known = by_key.get(key)
            except (TypeError, IndexError):
                # Odd shapes; one object mentioned a thousand times must not cost a thousand times.
                odd = (id(get(name)), id(a), id(b), id(c), id(d))
                known = by_identity.get(odd)
                if known is None:
                    known = by_identity[odd] = add(_signature(get(name), a, b, c, d))
                return known
            if known is None:
                known = by_key[key] = add(_signature(get(name), a, b, c, d))
            return known

        return index

    def _index_with_extras(
        self, fields: tuple[str, ...], extras: tuple[str, ...]
    ) -> Callable[[Entry], int]:
        name, ins, outs, in_types, out_types = fields
        reduce_op, in_splits, out_splits = extras

        def index(entry: Entry) -> int:
            get = entry.get
            return self._add(
                _signature(
                    get(name),
                    get(ins),
                    get(outs),
                    get(in_types),
                    get(out_types),
                    get(reduce_op),
                    get(in_splits),
                    get(out_splits),
                )
            )

        return index

    def _add(self, signature: Signature) -> int:
        known = self._by_signature.get(signature)
        if known is None:
            known = self._by_signature[signature] = len(self.table)
            self.table.append(signature)
        return known


def _row(row: Sequence[int]) -> tuple[int, ...]:
    if len(row) > MAX_DIMS:
        raise TypeError
    return tuple(row)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    if len(names) > MAX_TENSORS:
        raise TypeError
    return tuple(names)


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    if len(rows) > MAX_TENSORS:
        raise TypeError
    return (None, *map(_row, rows))  # None: never equal to the row of a single tensor


def _signature(
    raw: Any,
    ins: Any,
    outs: Any,
    in_types: Any,
    out_types: Any,
    reduce_op: Any = None,
    in_splits: Any = None,
    out_splits: Any = None,
) -> Signature:
    text = clean.as_name(raw, "unknown") or "unknown"
    parsed = operations.parse(text)
    batch = parsed.op == "coalesced"
    return Signature(
        op=parsed.op,
        raw=text,
        backend=parsed.backend,
        input_sizes=None if batch and not ins else sizes(ins),
        output_sizes=None if batch and not outs else sizes(outs),
        input_dtypes=None if batch and not in_types else dtypes(in_types),
        output_dtypes=None if batch and not out_types else dtypes(out_types),
        reduce_op=clean.as_name(reduce_op).upper() or None,
        input_splits=_numbers(in_splits),
        output_splits=_numbers(out_splits),
    )


def sizes(value: Any) -> tuple[tuple[int, ...], ...] | None:
    """Shapes from lists of lists, one flat list, tuples, or strings of numbers."""
    if not isinstance(value, (list, tuple)):
        return None
    if value and not any(isinstance(row, (list, tuple)) for row in value[:MAX_TENSORS]):
        flat = _numbers(value)
        return None if flat is None else (flat,)
    rows: list[tuple[int, ...]] = []
    for row in value[:MAX_TENSORS]:
        if not isinstance(row, (list, tuple)):
            return None
        rows.append(tuple(clean.as_int(n, -1) for n in row[:MAX_DIMS]))
    return tuple(rows)


def _numbers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    return tuple(clean.as_int(n, -1) for n in value[:MAX_TENSORS])


def dtypes(value: Any) -> tuple[str, ...] | None:
    """dtype names from a list or one bare string."""
    if isinstance(value, str):
        return (_dtype(value),) if value else None
    if not isinstance(value, (list, tuple)):
        return None
    return tuple(_dtype(clean.as_name(item)) for item in value[:MAX_TENSORS])


_DTYPES = {
    "float32": "Float",
    "float": "Float",
    "float64": "Double",
    "double": "Double",
    "float16": "Half",
    "half": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "long": "Long",
    "int32": "Int",
    "int": "Int",
    "int16": "Short",
    "short": "Short",
    "int8": "Char",
    "char": "Char",
    "uint8": "Byte",
    "byte": "Byte",
    "bool": "Bool",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}


def _dtype(text: str) -> str:
    bare = clean.name(text.removeprefix("torch."))
    return _DTYPES.get(bare.lower(), bare)
