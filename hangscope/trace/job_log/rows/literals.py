"""Texts that a line must contain for a regular expression to match it.

They follow from the expression itself, so that a kind of line is written down once: whether a block
of a log is looked at, and which rows a line is offered to, can never disagree with the expression.
The method is that of the literal optimisations of ripgrep and RE2.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from hangscope.trace.job_log.lines.line_shapes import shape_of

_NEW = sys.version_info >= (3, 11)
ops: Any = import_module("re._constants" if _NEW else "sre_constants")
parser: Any = import_module("re._parser" if _NEW else "sre_parse")

_BREAKS = frozenset('"\\&<>\t\n\r')
"""Characters that collectors escape, so that they may look different in the raw line."""
_MOST = 40
"""More alternatives than this are no help."""

Alternatives = tuple[str, ...]


def literals_of(pattern: re.Pattern[str]) -> Alternatives:
    """Texts, as they appear in the shapes of lines, of which every match contains at least one.

    Empty if the expression requires none.
    """
    found = _required(parser.parse(pattern.pattern, pattern.flags), pattern.flags)
    return tuple(dict.fromkeys(shape_of(text) for text in found))


def _worth(alternatives: Alternatives) -> tuple[int, int]:
    """How selective alternatives are: the shortest counts, then their number."""
    return min(map(len, alternatives), default=0), -len(alternatives)


def _required(items: Iterable[tuple[Any, Any]], flags: int) -> Alternatives:
    best: Alternatives = ()
    run = ""
    for op, value in items:
        character = _character(op, value, flags)
        if character:
            run += character
            continue
        best, run = max(best, (run,) if run else (), key=_worth), ""
        best = max(best, _inside(op, value, flags), key=_worth)
    return max(best, (run,) if run else (), key=_worth)


def _character(op: Any, value: Any, flags: int) -> str:
    """The character that an item stands for; empty if it may be several."""
    if op is not ops.LITERAL:
        return ""
    character = chr(value)
    if character in _BREAKS or not character.isascii():
        return ""
    return "" if flags & re.IGNORECASE and character.isalpha() else character


def _inside(op: Any, value: Any, flags: int) -> Alternatives:
    """What an item that is no character requires."""
    if op is ops.SUBPATTERN:
        _, added, removed, inner = value
        return _required(inner, (flags | added) & ~removed)
    if op is ops.BRANCH:
        return _any_of([_required(branch, flags) for branch in value[1]])
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT) and value[0] > 0:
        return _required(value[2], flags)
    return ()


def _any_of(branches: Sequence[Alternatives]) -> Alternatives:
    if not all(branches):
        return ()
    found = tuple(dict.fromkeys(text for branch in branches for text in branch))
    return found if len(found) <= _MOST else ()


def shortest(texts: Iterable[str]) -> Alternatives:
    """Texts without those that contain another one."""
    kept: list[str] = []
    for text in sorted(set(texts), key=len):
        if not any(other in text for other in kept):
            kept.append(text)
    return tuple(kept)
