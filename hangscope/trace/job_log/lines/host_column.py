"""Detects a column with the name of a pod, host or file that was put in front of every line.

Collectors and ``grep`` use hundreds of forms. What they have in common shows in the log itself:
nearly all lines begin with one of a few names, and each name recurs. Something constant (a
namespace, a level) may precede the name; of several columns, the one whose names differ identifies
the machines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
    r"(?:(?<=\.log|\.out|\.err|\.txt):(?:\d{1,9}:)?|(?:\[[\w.\-]{1,60}\])?(?::? +[|>]\s?|:?\s+)))"
    r"(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_BEFORE = re.compile(r"[A-Za-z\[(<][^\s=]{1,60}\s+")
"""What may precede the name: a namespace, a level."""
_BEHIND = re.compile(r"(?P<name>[A-Za-z][\w.\-]{0,60}(?:\[\d{1,9}\])?:?) ")
"""A container or unit, whose name also recurs."""
_NEARLY_ALL = 0.9
_MOST_NAMES = 64
_MOST_BEHIND = 3
_MOST_BEFORE = 2
"""Number of words in front of the name."""
_EACH = 4
"""How often each name must occur on average."""


@dataclass(frozen=True, slots=True)
class HostColumn:
    """The names in front of the lines of one log, and the words around them."""

    names: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    before: tuple[frozenset[str], ...] = ()
    """The words that may appear in each of the columns before the names."""
    whole: bool = False
    """Whether names are only unique as a whole, not by their last part."""

    def taken_off(self, text: str) -> tuple[str | None, str]:
        """The name in front of a text, and the rest; None and the text if there is no name."""
        if not self.names:
            return None, text
        inner = _without(text, self.before)
        found = _NAME.match(inner) if inner is not None else None
        if found is None or found["name"] not in self.names:
            return None, text
        rest = found["rest"]
        unit = _BEHIND.match(rest) if self.behind else None
        if unit is not None and _but_pid(unit["name"]) in self.behind:
            rest = rest[unit.end() :]
        name = found["name"]
        return name if self.whole else name.rpartition("/")[2], rest


def detect_host_column(lines: Iterable[str]) -> HostColumn:
    """The column that nearly all of these lines have, after their known prefixes are stripped.

    Of several columns with names, the first whose names differ counts, else the very first.
    """
    lines = [*lines]
    found = []
    before: tuple[frozenset[str], ...] = ()
    while True:
        names, column = _column_behind(before, lines)
        found.append((names > 1, -len(before), column))
        words = _words_behind(before, lines)
        if names > 1 or not words or len(before) == _MOST_BEFORE:
            break
        before = (*before, words)
    named = [one for one in found if one[2].names]
    return max(named, key=lambda one: one[:2])[2] if named else HostColumn()


def _column_behind(before: tuple[frozenset[str], ...], lines: list[str]) -> tuple[int, HostColumn]:
    """How many names follow these words in nearly all lines, and their column."""
    inner = (_without(line, before) for line in lines)
    found = [m for line in inner if line is not None and (m := _NAME.match(line))]
    names = frozenset(m["name"] for m in found)
    if len(found) < _NEARLY_ALL * len(lines) or not _are_few(names, found, _MOST_NAMES):
        return 0, HostColumn()
    units = Counter(_but_pid(m["name"]) for one in found if (m := _BEHIND.match(one["rest"])))
    frequent = frozenset(name for name, _ in units.most_common(_MOST_BEHIND))
    constant = sum(units[name] for name in frequent) >= _NEARLY_ALL * len(found)
    behind = _and_shapes(frequent if constant else frozenset())
    whole = len({name.rpartition("/")[2] for name in names}) < len(names)
    shapes = tuple(map(_and_shapes, before))
    return len(names), HostColumn(_and_shapes(names), behind, shapes, whole)


def _words_behind(before: tuple[frozenset[str], ...], lines: list[str]) -> frozenset[str]:
    """The few words that come next in nearly all lines; empty if there are many."""
    inner = (_without(line, before) for line in lines)
    words = Counter(m[0] for line in inner if line is not None and (m := _BEFORE.match(line)))
    few = frozenset(word for word, _ in words.most_common(_MOST_BEHIND))
    return few if sum(words[word] for word in few) >= _NEARLY_ALL * len(lines) else frozenset()


def _without(text: str, before: Sequence[frozenset[str]]) -> str | None:
    """A text without the words before the names; None if it has other words."""
    for words in before:
        found = _BEFORE.match(text)
        if found is None or found[0] not in words:
            return None
        text = text[found.end() :]
    return text


def _and_shapes(names: frozenset[str]) -> frozenset[str]:
    """The names, and the same names as they appear in line shapes."""
    return names | {shape_of(name) for name in names}


def _are_few(names: frozenset[str], found: list[re.Match[str]], most: int) -> bool:
    return 0 < len(names) <= most and len(found) >= _EACH * len(names)


def _but_pid(name: str) -> str:
    return name.partition("[")[0].rstrip(":")
