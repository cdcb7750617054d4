"""When the larger of two sides is no majority because ranks that left nothing could balance it.

Code that depends on the rank usually splits a job in halves (``rank < n // 2``, odd and even) or
singles out one rank. So three or more ranks that did the same odd thing are more likely half of the
job than a minority, if at least as many ranks left nothing as that half lacks. One rank, or two,
stay a minority.
"""

from __future__ import annotations

_EVEN = 8
"""One or two ranks are a half only if the sides differ by less than this fraction of both."""
_SEVERAL = 3
"""So many ranks that issue the same odd thing took another branch of the program."""
_OUTVOTED = 32
"""Sides that differ by less than this fraction are halves even if all members are on record."""


def may_be_tie(first: int, second: int, unknown: int) -> bool:
    """Whether sides of ``first`` and ``second`` ranks could be halves but for ``unknown``
    others."""
    nearly = unknown if second >= _SEVERAL else min(unknown, (first + second) // _EVEN)
    return first - second <= max(nearly, (first + second) // _OUTVOTED)
