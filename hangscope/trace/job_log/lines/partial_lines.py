"""Joins long lines that a container runtime has split.

Kubernetes runtimes split long lines and mark all parts but the last with a ``P``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangscope.trace.job_log.lines.blocks import MAX_LINE, Physical
from hangscope.trace.job_log.lines.line_shapes import shape_of_bytes

_PART = re.compile(
    rb"(?P<head>\S{20,40} (?P<stream>std(?:err|out)) )(?P<mark>[PF]) (?P<rest>.*)", re.S
)
_HEAD = 60
"""The mark is within this many bytes."""


def whole_lines(lines: Iterable[Physical]) -> Iterator[Physical]:
    """The lines, with the parts of split ones joined; each stream is split separately."""
    held: dict[bytes, tuple[int, bytes]] = {}
    for number, line, shape in lines:
        cut = b" P " in line[:_HEAD]
        found = _PART.match(line) if cut or held else None
        if found is None:
            yield number, line, shape
            continue
        stream = found["stream"]
        before = held.pop(stream, None)
        if before is not None:
            number, line = before[0], (before[1] + found["rest"])[:MAX_LINE]
        if found["mark"] == b"P":
            held[stream] = number, line
        elif before is not None:
            line = line.replace(b" P ", b" F ", 1)
            yield number, line, shape_of_bytes(line)
        else:
            yield number, line, shape
    for number, line in held.values():
        yield number, line, shape_of_bytes(line)
