"""Detects a column with the name of a pod, host or file that was put in front of every line.

Collectors and ``grep`` use hundreds of forms. What they have in common shows in the log itself:
nearly all lines begin with one of a few names, and each name recurs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.trace.job_log.lines.line_shapes import shape_of

_ADDRESS = r"(?:\d{1,3}\.){3}\d{1,3}"
_NUMBERED = r"(?:node|host|machine|pod)[ #]\d{1,5}"
_WORD = r"[A-Za-z][\w.\-]{1,60}(?= +\|)"
"""Any word counts if a bar follows, as drawn by docker compose."""
_USUAL = r"(?=[\w./@]*[\d\-])[A-Za-z][\w./@\-]{1,120}"
_NAME = re.compile(
    r"(?P<open>[\[(])?(?:(?:pod|pod_name|host|hostname|node|instance)=)?(?![\w./@\-]{0,40}rank)"
    rf"(?P<name>{_ADDRESS}|{_NUMBERED}|{_WORD}|{_USUAL})"
    r"(?(open)(?:[ /][\w.\-]{1,60})?[\])]:?(?: +[|>])?(?:\s|(?=\[))|"
    r"(?:(?<=\.log|\.out|\.err|\.txt):(?:\d{1,9}:)?|(?:\[[\w.\-]{1,60}\])?(?::? +[|>]\s?|:\s|\s+)))"
    r"(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_BEHIND = re.compile(r"(?P<name>[A-Za-z][\w.\-]{0,60}(?:\[\d{1,9}\])?:?) ")
"""A container or unit, whose name also recurs."""
_NEARLY_ALL = 0.9
_MOST_NAMES = 64
_MOST_BEHIND = 3
_EACH = 4
"""How often each name must occur on average."""


@dataclass(frozen=True, slots=True)
class HostColumn:
    """The names in front of the lines of one log, and the words behind them."""

    names: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    whole: bool = False
    """Whether names are only unique as a whole, not by their last part."""

    def taken_off(self, text: str) -> tuple[str | None, str]:
        """The name in front of a text, and the rest; None and the text if there is no name."""
        found = _NAME.match(text) if self.names else None
        if found is None or found["name"] not in self.names:
            return None, text
        name, rest = found["name"], found["rest"]
        unit = _BEHIND.match(rest) if self.behind else None
        if unit is not None and _but_pid(unit["name"]) in self.behind:
            rest = rest[unit.end() :]
        return name if self.whole else name.rpartition("/")[2], rest


def detect_host_column(lines: Iterable[str]) -> HostColumn:
    """The column that nearly all of these lines have, after their known prefixes are stripped."""
    lines = [*lines]
    found = [m for line in lines if (m := _NAME.match(line))]
    names = {m["name"] for m in found}
    few = 0 < len(names) <= _MOST_NAMES and len(found) >= _EACH * len(names)
    if not few or len(found) < _NEARLY_ALL * len(lines):
        return HostColumn()
    units = Counter(_but_pid(m["name"]) for one in found if (m := _BEHIND.match(one["rest"])))
    frequent = {name for name, _ in units.most_common(_MOST_BEHIND)}
    constant = sum(units[name] for name in frequent) >= _NEARLY_ALL * len(found)
    if constant and len(names) == 1 < len(frequent):
        return HostColumn()  # a name of all machines; what tells them apart stands behind it
    whole = len({name.rpartition("/")[2] for name in names}) < len(names)
    # The same names also as they appear in the shapes of lines.
    both = [frozenset(each | {shape_of(n) for n in each}) for each in (names, frequent)]
    return HostColumn(both[0], both[1] if constant else frozenset(), whole)


def _but_pid(name: str) -> str:
    return name.partition("[")[0].rstrip(":")
