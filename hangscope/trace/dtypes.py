"""The names c10 gives to scalar types, against those people write."""

from __future__ import annotations

_SPOKEN = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Bool": "bool",
    "BFloat16": "bfloat16",
}


def spoken(name: str) -> str:
    """A dtype as people write it: ``Float`` becomes ``float32``."""
    return _SPOKEN.get(name, name)
