"""Signatures of operations, and the running hash of what a group's members must agree on."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from hangscope.recording.operations import OpSpec
from hangscope.recording.shapes import Shapes
from hangscope.ring.layout import ValueKind
from hangscope.ring.writer import RingWriter

MASK = 0xFFFF_FFFF_FFFF_FFFF
FACTOR = 6364136223846793005
INCREMENT = 1442695040888963407
"""Increment of the running hash, from Knuth's MMIX linear congruential generator."""
MAX_DISTINCT = 20_000
"""Signatures cached, about half a kilobyte each. At the limit the cache is cleared; what is already
in the ring is found there again."""

_REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}

Splits = tuple[tuple[int, ...], tuple[int, ...]]
SignatureKey = tuple[str, str, Shapes, Shapes, int, int, str, Splits | None]
"""(operator, backend, inputs, outputs, reduce op, root, peers as text, (out, in) splits)."""


class InternedSignature(NamedTuple):
    """The fields of a signature that a record needs."""

    identifier: int
    agreement: int
    """64-bit hash of the rank-invariant part."""
    input_numel: int
    output_numel: int


class SignatureInterner:
    """Ids of signatures in the ring's value area."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self.known: dict[SignatureKey, InternedSignature] = {}

    def get(self, key: SignatureKey, spec: OpSpec) -> InternedSignature:
        """The interned signature of a key."""
        return self.known.get(key) or self.intern(key, spec)

    def intern(self, key: SignatureKey, spec: OpSpec) -> InternedSignature:
        """Write a new signature into the ring."""
        signature = self._write(spec, key)
        if len(self.known) >= MAX_DISTINCT:
            self.known.clear()
        self.known[key] = signature
        return signature

    def _write(self, spec: OpSpec, key: SignatureKey) -> InternedSignature:
        _, backend, inputs, outputs, reduce_op, root, peers, splits = key
        input_numel = sum(_numel(shape) for shape, _ in inputs)
        output_numel = sum(_numel(shape) for shape, _ in outputs)
        reduction = _REDUCE_OPS[reduce_op] if 0 <= reduce_op < len(_REDUCE_OPS) else None
        dtypes = [dtype_name(dtype) for _, dtype in inputs]
        out_dtypes = [dtype_name(dtype) for _, dtype in outputs]
        fields: dict[str, Any] = {
            "op": f"{backend}:{spec.name}{peers}",
            "in": [shape for shape, _ in inputs],
            "out": [shape for shape, _ in outputs],
            "in_dtypes": dtypes,
            "out_dtypes": out_dtypes,
        }
        if reduction:
            fields["reduce_op"] = reduction
        if splits:
            fields["out_splits"], fields["in_splits"] = splits
        identifier = self._ring.intern(ValueKind.SIGNATURE, _json(fields), essential=False)
        if not identifier:
            # The area is full: keep at least the operation's name; the record has element counts.
            bare = {"op": fields["op"], "in_dtypes": dtypes[:1], "reduce_op": reduction}
            identifier = self._ring.intern(ValueKind.SIGNATURE, _json(bare))
        agreement = agreement_hash(
            spec.name, input_numel, output_numel, (dtypes or out_dtypes)[:1], root
        )
        return InternedSignature(identifier, agreement, input_numel, output_numel)


def agreement_hash(
    name: str,
    input_numel: int,
    output_numel: int,
    dtypes: list[str],
    root: int,
) -> int:
    """Hash of what every member of a group must agree on for one operation.

    The reduce op is not included, because it is read only after the record is written (see
    `reduce_ops`). Sizes are included only if they must be equal on all members: not for all-to-all,
    and for gather and scatter only the side that every rank has.
    """
    if name in ("all_to_all", "barrier", "monitored_barrier"):
        sizes: tuple[int, ...] = ()
    elif name == "all_gather":
        sizes = (output_numel,)  # outputs are the same on all members, inputs may be uneven
    elif name == "gather":
        sizes = (input_numel,)
    elif name in ("scatter", "reduce_scatter"):
        sizes = (output_numel,) if name == "scatter" else (input_numel,)
    elif name in ("all_reduce", "reduce", "broadcast", "allreduce_coalesced"):
        sizes = (input_numel,)
    else:
        sizes = (input_numel, output_numel)
    text = repr((name, sizes, dtypes, root))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def extend_history(history: int, agreement: int) -> int:
    """The running hash after one more operation (a linear congruential step, modulo 2**64)."""
    return (history * FACTOR + agreement + INCREMENT) & MASK or 1


def dtype_name(dtype: Any) -> str:
    """A torch dtype's c10 name, as the Flight Recorder writes it."""
    text = str(dtype)
    text = text[6:] if text.startswith("torch.") else text
    return _DTYPES.get(text, text)


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), default=int).encode()
