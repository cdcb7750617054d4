"""Strips the prefixes of a message, outermost first, and keeps what they say."""

from __future__ import annotations

import re
from itertools import pairwise

from hangscope.trace import clean
from hangscope.trace.job_log.lines.blocks import MAX_LINE
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.prefixes import Style, moment_ns, strip_one

HEAD = re.compile(
    r"(?:\[rank ?(?P<rank>\d{1,7})[\[\]]{1,2}:)?(?:\[(?=[IWEF])|(?=[IWEFVC]\d{4} \d))"
    r"(?P<level>[IWEFVC])(?:(?P<mdd>\d{3,4}) (?P<clock>\d\d:\d\d:\d\d)\.\d{3,9})? "
    r"(?:(?P<pid>\d+) )?(?P<file>[\w.+/\-]{1,300}\.(?:py|cpp|hpp|cc|cu|h|ts)):\d+\] ?"
)
"""Of messages that torch logs itself: those of C++ stand in brackets."""
_ASCEND = re.compile(
    r"\(PID:(?P<pid>\d{1,9}), Device:-?\d+, RankID:(?:-1|(?P<rank>\d{1,7}))\)|"
    r"\bE[A-Z]\d{4}: \[PID: (?P<pid2>\d{1,9})\]"
)
_RANK_HOOK = re.compile(r"\[rank ?(\d{1,7})\]:(?: |$)")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_LONGEST_PREFIX = 120
_MOST_PREFIXES = 12
_SOURCES = (".py:", ".cpp:", ".hpp:", ".cc:", ".cu:", ".h:", ".ts:")
_BARS = ("%|", "it/s", "s/it")
_LABEL_OF_LOCAL_RANK = re.compile(r"\[[A-Za-z_]\w{0,20}?\d{1,4}\]:")
_FRONT_NAMES = re.compile(r"(?<![\w.])(?:(?:\d{1,3}\.){3}\d{1,3}|[A-Za-z_][\w.@/\-]*)")
_BAR = re.compile(r"(?:it/s|s/it)(?:, [^\[\]]{1,200})?\](?= ?\S)")
"""The end of a progress bar in front of a message."""


def split_messages(text: str, style: Style) -> list[str]:
    """Split several messages on one physical line.

    These are two messages of torch's, or a message after a progress bar.
    """
    starts = [m.start() for m in HEAD.finditer(text)] if _may_hold_head(text) else []
    if not starts and ("it/s" in text or "s/it" in text):
        edges = [0, *(m.end() for m in _BAR.finditer(text)), len(text)]
        head = text[: len(text) - len(outer_prefixes(text, style)[1])]
    elif len(starts) <= 1 and (not starts or starts[0] < _LONGEST_PREFIX):
        return [text]
    else:
        # Short text before the first of them is its prefix; longer text is another message.
        head, edges = "", [0, *(starts[1:] if starts[0] < _LONGEST_PREFIX else starts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges) if text[a:b].strip()]
    return [*pieces[:1], *(head + piece.lstrip() if head else piece for piece in pieces[1:])]


def outer_prefixes(text: str, style: Style) -> tuple[LogLine, str]:
    """What launchers and collectors say in front of a message, and the message."""
    line = LogLine("")
    for _ in range(_MOST_PREFIXES):
        before = text
        line, text = strip_one(line, text, style)
        if text == before:
            break
    return line, text


def strip(text: str, style: Style, number: int) -> LogLine | None:
    """Strip the prefixes, outermost first, and keep what they say."""
    line, rest = outer_prefixes(text.rstrip(), style)
    line = line._replace(number=number)
    found = HEAD.search(rest) if _may_hold_head(rest) else None
    if found:
        line = with_head(with_front(line, rest[: found.start()]), found, style.year)
        rest = rest[found.end() :]
    ascend = _ASCEND.search(rest) if "PID:" in rest else None
    if ascend:
        rank, pid = ascend.group("rank"), int(ascend.group("pid") or ascend.group("pid2"))
        line = line._replace(rank=int(rank) if rank else line.rank, pid=line.pid or pid)
    hook = _RANK_HOOK.match(rest)
    if not hook and not found and "]: " in rest:  # after an unknown prefix
        hook = _RANK_HOOK.search(rest, 0, _LONGEST_PREFIX)
    if hook:
        line = line._replace(rank=int(hook.group(1)), excepthook=True)
        rest = rest[hook.end() :]
    rest, left_out = _REPEATED.subn("", rest)
    if not rest.strip():
        return None
    if left_out:
        line = line._replace(repeated=True)
    return line._replace(text=clean.prose(rest, MAX_LINE))


def with_front(line: LogLine, front: str) -> LogLine:
    """The line with the part of its prefix that is left after all known parts are stripped.

    Unknown wrappers put the machine's name there. Numbers, times, local rank labels and progress
    bars are no such names.
    """
    if not front or len(front) > _LONGEST_PREFIX or any(bar in front for bar in _BARS):
        return line
    return line._replace(front=" ".join(_FRONT_NAMES.findall(_LABEL_OF_LOCAL_RANK.sub(" ", front))))


def _may_hold_head(text: str) -> bool:
    return any(source in text for source in _SOURCES)


def with_head(line: LogLine, found: re.Match[str], year: int) -> LogLine:
    """The line with what the head of a message of torch's says."""
    rank, level, mdd, clock, pid, file = found.groups()
    at_ns = moment_ns(year, int(mdd), *map(int, clock.split(":"))) if mdd else line.at_ns
    # Before 2.5, and in C++, the number is a thread id.
    is_pid = pid and len(pid) < 9 and file.endswith(".py")
    return line._replace(
        rank=int(rank) if rank else line.rank,
        level=level,
        file=file,
        pid=int(pid) if is_pid else line.pid,
        at_ns=at_ns,
    )
