"""The shape of a line: the line with all digits replaced by zeros.

Logs are long because the same messages recur with different numbers: millions of lines have a few
hundred shapes. Whatever depends only on the shape is computed once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Shape = TypeVar("Shape", str, bytes)
Found = TypeVar("Found")

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_DIGITS_OF_TEXT = str.maketrans("123456789", "0" * 9)
_ADDRESS = r"0x(?<!\w0x)[0a-f]{12}\b", "0x" + "0" * 12
"""Of user memory, as in every frame of a C++ stack."""
_HASH = r"0x(?<!\w0x)[0a-f]{16}\b", "0x" + "0" * 16
_IN_BYTES = [(re.compile(p.encode()), z.encode()) for p, z in (_ADDRESS, _HASH)]
_IN_TEXT = [(re.compile(p), z) for p, z in (_ADDRESS, _HASH)]
_LONGEST = 1 << 12
"""Longer lines hardly recur."""
_MOST_BYTES = 1 << 23
_OVERHEAD = 400


def shape_of_bytes(lines: bytes) -> bytes:
    """The shape of lines; every byte keeps its position."""
    shape = lines.translate(_DIGITS)
    if b" 0x" in shape or b"(0x" in shape:
        for pattern, zeros in _IN_BYTES:
            shape = pattern.sub(zeros, shape)
    return shape


def shape_of(text: str) -> str:
    """The shape of a text, consistent with that of its bytes."""
    shape = text.translate(_DIGITS_OF_TEXT)
    if " 0x" in shape or "(0x" in shape:
        for pattern, zeros in _IN_TEXT:
            shape = pattern.sub(zeros, shape)
    return shape


def contains_any(shape: Shape, words: tuple[Shape, ...]) -> bool:
    """Whether it contains one of the words."""
    for word in words:  # noqa: SIM110  # a generator doubles the cost
        if word in shape:
            return True
    return False


class ShapeCache(dict[Shape, Found]):
    """Caches results per shape; cleared when it would take too much memory."""

    def __init__(self, find: Callable[[Shape], Found]) -> None:
        super().__init__()
        self._find: Callable[[Shape], Found] = find
        self._held = 0

    def __missing__(self, shape: Shape) -> Found:
        found = self._find(shape)
        if len(shape) <= _LONGEST:
            self._held += len(shape) + _OVERHEAD
            if self._held > _MOST_BYTES:
                self.clear()
                self._held = 0
            self[shape] = found
        return found
