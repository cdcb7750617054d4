"""Names of scalar types: c10's and the ones people write."""

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


def readable_dtype(name: str) -> str:
    """The dtype's usual name: ``Float`` becomes ``float32``."""
    return _SPOKEN.get(name, name)


def is_integer(name: str) -> bool | None:
    """Whether the dtype counts in whole numbers (bool included); None if its name is not known."""
    spoken = _SPOKEN.get(name)
    return spoken.startswith(("int", "uint", "bool")) if spoken is not None else None
