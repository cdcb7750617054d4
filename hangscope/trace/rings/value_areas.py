"""Stores the value areas of many rings as differences from one another.

Ranks of one program intern the same values, except for an occasional list of ranks or text. Stored
as a difference, an area takes a hundredth of its size, and a value decoded from one area is known
to be in another without comparing bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]
Span = tuple[int, int]
"""Where a value, including its header, begins and ends in its area."""
_T = TypeVar("_T")

_MOST_DIFFERENT = 8
"""An area in which more than one word in this many differs is stored whole."""


@dataclass(frozen=True, slots=True)
class StoredArea:
    """One area, as a difference from another."""

    base: bytes
    changed: list[int]
    """Which 8-byte words differ from the base."""
    words: Words
    """Their values."""
    length: int
    """In bytes; the base may be longer."""

    def area(self) -> bytes:
        """The area's bytes."""
        if not self.changed:
            return self.base[: self.length]
        whole = bytearray(self.base[: self.length])
        _words(whole)[self.changed] = self.words
        return bytes(whole)


class AreaStore:
    """Stores areas given to it one after another."""

    def __init__(self) -> None:
        self._base = b""
        self._words = _NO_WORDS

    def keep(self, area: bytes) -> StoredArea:
        """Store an area so that its bytes can be restored."""
        words = _words(area)
        rest = slice(len(words) * 8, len(area))  # the incomplete last word
        if len(area) <= len(self._base) and self._base[rest] == area[rest]:
            places = (words != self._words[: len(words)]).nonzero()[0]
            if len(places) * _MOST_DIFFERENT <= len(words):
                return StoredArea(self._base, places.tolist(), words[places], len(area))
        self._base, self._words = area, words
        return StoredArea(area, [], _NO_WORDS, len(area))


class Decoded(Generic[_T]):
    """A decoded value, and the words of the area that it was decoded from."""

    __slots__ = ("_base", "_end", "_words", "value")

    def __init__(self, kept: StoredArea, spans: list[Span], value: _T) -> None:
        self._base = kept.base
        self._end = max((end for _, end in spans), default=0)
        self._words = frozenset(w for a, b in spans for w in range(a // 8, (b + 7) // 8))
        self.value = value

    def is_in(self, kept: StoredArea) -> bool:
        """Whether an area is known to have the same bytes at the same place."""
        return (
            kept.base is self._base
            and kept.length >= self._end
            and self._words.isdisjoint(kept.changed)
        )


_NO_WORDS: Words = np.zeros(0, np.int64)


def _words(area: bytes | bytearray) -> Words:
    return np.frombuffer(area, np.int64, len(area) // 8)
