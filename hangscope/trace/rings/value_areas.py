"""The value areas of many rings, each as what differs from another one.

Ranks of one program intern the same values, but for a list of ranks or a text here and there. Kept
as a difference, an area is a hundredth of its size; and what was decoded from one area is known to
stand in another without a look at its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]
Span = tuple[int, int]
"""Where a value with its header begins and ends in its area."""
_T = TypeVar("_T")

_MOST_DIFFERENT = 8
"""An area of which more than one word in so many differs is kept whole."""


@dataclass(frozen=True, slots=True)
class KeptArea:
    """One area, as its difference from another."""

    base: bytes
    changed: list[int]
    """Which words (of eight bytes) of the base are others here."""
    words: Words
    """What they are."""
    length: int
    """In bytes; the base may be longer."""

    def area(self) -> bytes:
        """The bytes of the area."""
        if not self.changed:
            return self.base[: self.length]
        whole = bytearray(self.base[: self.length])
        _words(whole)[self.changed] = self.words
        return bytes(whole)


class AreaKeeper:
    """Keeps areas, given to it one after another."""

    def __init__(self) -> None:
        self._base = b""
        self._words = _NO_WORDS

    def keep(self, area: bytes) -> KeptArea:
        """An area from which the same bytes can be had again."""
        words = _words(area)
        rest = slice(len(words) * 8, len(area))  # less than a word
        if len(area) <= len(self._base) and self._base[rest] == area[rest]:
            places = (words != self._words[: len(words)]).nonzero()[0]
            if len(places) * _MOST_DIFFERENT <= len(words):
                return KeptArea(self._base, places.tolist(), words[places], len(area))
        self._base, self._words = area, words
        return KeptArea(area, [], _NO_WORDS, len(area))


class Decoded(Generic[_T]):
    """Something decoded, and the words of an area that it was decoded from."""

    __slots__ = ("_base", "_end", "_words", "value")

    def __init__(self, kept: KeptArea, spans: list[Span], value: _T) -> None:
        self._base = kept.base
        self._end = max((end for _, end in spans), default=0)
        self._words = frozenset(w for a, b in spans for w in range(a // 8, (b + 7) // 8))
        self.value = value

    def stands_in(self, kept: KeptArea) -> bool:
        """Whether an area is known to have the same values at the same places."""
        return (
            kept.base is self._base
            and kept.length >= self._end
            and self._words.isdisjoint(kept.changed)
        )


_NO_WORDS: Words = np.zeros(0, np.int64)


def _words(area: bytes | bytearray) -> Words:
    return np.frombuffer(area, np.int64, len(area) // 8)
