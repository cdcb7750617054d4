"""When the larger of two sides is no majority: those who left nothing may even them out.

Code that depends on the rank splits a job in halves as a rule (``rank < n // 2``, odd and even) or
sets one rank apart. Three ranks or more that did the same odd thing are therefore rather a half
than a minority where as many left nothing as they lack; one, or a pair, stays odd.
"""

from __future__ import annotations

_EVEN = 8
"""One or a pair is no half unless the sides differ by less than this part of both."""
_SEVERAL = 3
"""So many that issue the same odd thing took another branch of the program: no slip of one."""
_OUTVOTED = 32
"""Sides that differ by less than this part are halves even where all members are on record."""


def may_be_even(first: int, second: int, unknown: int) -> bool:
    """Whether sides of ``first`` and ``second`` ranks are halves, but for ``unknown`` others."""
    nearly = unknown if second >= _SEVERAL else min(unknown, (first + second) // _EVEN)
    return first - second <= max(nearly, (first + second) // _OUTVOTED)
