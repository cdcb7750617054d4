"""The words that may stay in a redacted text: those of HangScope's own sources.

Whatever HangScope recognizes in a log or message stands in its sources, so the diagnosis survives;
what a program or its users have named themselves does not.
"""

from __future__ import annotations

import calendar
import re
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
WORD = re.compile(r"[^\W\d_]+")
_LETTER = "(?:[46][1-9A-Fa-f]|[57][0-9Aa])"
WRITTEN_WORD = re.compile(rf"(?:[^\W\d_]|(?:\\u00|\\x|%){_LETTER})+")
"""A word of which ASCII letters may be escaped, as no writer of JSON, Python or URLs needs to."""
ADDRESS = re.compile(r"\b0x[0-9a-f]{12,16}\b")
"""An address in memory, as signal handlers name threads by: its letters are digits."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TOO_SHORT = 2
"""So few letters in a row say nothing about anybody."""


def words_of(text: str) -> set[str]:
    """The words of a text in lower case: also the parts of ``camelCase`` ones."""
    found = set()
    for word in WORD.findall(text):
        found.add(word.lower())
        found.update(part.lower() for part in _PART.findall(word))
    return found


@lru_cache(maxsize=1)
def public_words() -> frozenset[str]:
    """All words in HangScope's sources, and the names of months and days."""
    found = words_of(" ".join((*calendar.month_abbr, *calendar.day_abbr)))
    for path in _PACKAGE.rglob("*.py"):
        found |= words_of(path.read_text(encoding="utf-8"))
    return frozenset(found)


def is_known(word: str, words: frozenset[str]) -> bool:
    """Whether a word, or each of its parts, is one of ``words``."""
    if len(word) <= _TOO_SHORT or word.lower() in words:
        return True
    parts = _PART.findall(word)
    return len("".join(parts)) == len(word) and all(
        len(part) > _TOO_SHORT and part.lower() in words for part in parts
    )
