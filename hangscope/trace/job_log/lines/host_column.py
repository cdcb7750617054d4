"""The name of a pod, a host or a file in front of every line, as collectors and ``grep`` put it.

There are hundreds of forms. What they have in common shows in the log itself: nearly all lines
begin with one of a few names, and each name comes again and again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.trace.job_log.lines.shapes import shape_of

_NAME = re.compile(
    r"(?P<open>\[)?(?P<name>(?=[\w./]*[\d\-])(?!\S{0,40}rank)[A-Za-z][\w./\-]{1,120})"
    r"(?(open)\]:? |(?:(?<=\.log|\.out|\.err|\.txt):(?:\d{1,9}:)?|:? +\| ?|: | +))(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_BEHIND = re.compile(r"(?P<name>[A-Za-z][\w.\-]{0,60}(?:\[\d{1,9}\])?:?) ")
"""A container or a unit, whose name comes again as well."""
_NEARLY_ALL = 0.9
_MOST_NAMES = 64
_MOST_BEHIND = 3
_EACH = 4
"""How often each name comes, on the average."""


@dataclass(frozen=True, slots=True)
class HostColumn:
    """The names that stand in front of the lines of one log, and what follows each of them."""

    names: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()

    def taken_off(self, text: str) -> tuple[str | None, str]:
        """The name in front of a text, and the rest; None and the text where none is."""
        found = _NAME.match(text) if self.names else None
        if found is None or found["name"] not in self.names:
            return None, text
        rest = found["rest"]
        unit = _BEHIND.match(rest) if self.behind else None
        if unit is not None and _but_pid(unit["name"]) in self.behind:
            rest = rest[unit.end() :]
        return found["name"].rpartition("/")[2], rest


def judge_column(lines: Iterable[str]) -> HostColumn:
    """What stands in front of nearly all of these lines, which have lost their known prefixes."""
    lines = [*lines]
    found = [m for line in lines if (m := _NAME.match(line))]
    names = frozenset(m["name"] for m in found)
    if len(found) < _NEARLY_ALL * len(lines) or not _are_few(names, found, _MOST_NAMES):
        return HostColumn()
    units = Counter(_but_pid(m["name"]) for one in found if (m := _BEHIND.match(one["rest"])))
    frequent = frozenset(name for name, _ in units.most_common(_MOST_BEHIND))
    constant = sum(units[name] for name in frequent) >= _NEARLY_ALL * len(found)
    return HostColumn(_and_shapes(names), _and_shapes(frequent if constant else frozenset()))


def _and_shapes(names: frozenset[str]) -> frozenset[str]:
    """The names, also as they stand in the shapes of lines."""
    return names | {shape_of(name) for name in names}


def _are_few(names: frozenset[str], found: list[re.Match[str]], most: int) -> bool:
    return 0 < len(names) <= most and len(found) >= _EACH * len(names)


def _but_pid(name: str) -> str:
    return name.partition("[")[0].rstrip(":")
