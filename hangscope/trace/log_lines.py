"""Lines of a job log, freed of all that launchers, collectors and terminals put around them.

What `log_blocks` lets through is cleaned, split where two messages were glued together, joined
where a terminal wrapped one, and attributed to a rank as far as the prefixes say.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import BinaryIO

import orjson

from hangscope.trace import clean
from hangscope.trace.log_blocks import BLOCK, MAX_LINE, telling
from hangscope.trace.log_line import LogLine as LogLine
from hangscope.trace.log_prefixes import Style, judge_style, strip_one
from hangscope.trace.log_wrap import unwrapped, wrap_width
from hangscope.trace.sniff import log_text

_C10 = re.compile(
    r"(?:\[rank ?(\d{1,7})[\[\]]{1,2}:)?"
    r"\[([IWEF])(?:(\d{3,4}) (\d\d):(\d\d):(\d\d)\.\d{3,9})? "
    r"([\w.+/\-]{1,200}\.(?:cpp|hpp|cc|cu|h|ts)):\d+\] ?"
)
_PYLOG = re.compile(
    r"(?:\[rank ?(\d{1,7})\]:)?([IWEFVC])(\d{4}) (\d\d):(\d\d):(\d\d)\.\d{6} (\d+) "
    r"([\w.+/\-]{1,300}\.(?:py|cpp|h)):\d+\] ?"
)
_ASCEND = re.compile(
    r"\(PID:(?P<pid>\d{1,9}), Device:-?\d+, RankID:(?:-1|(?P<rank>\d{1,7}))\)|"
    r"\bE[A-Z]\d{4}: \[PID: (?P<pid2>\d{1,9})\]"
)
_RANK_HOOK = re.compile(r"\[rank ?(\d{1,7})\]:(?: |$)")
_LABELLED = re.compile(r"\[RANK \d{1,7}\] ")
_MOST_LINES = 400
"""Of one message; deeper tracebacks are cut."""
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_FULL_WIDTH = str.maketrans("［］【】（）：", "[][]():")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|#\d+);")
_NOISE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]")


def read_lines(stream: BinaryIO) -> Iterator[LogLine]:
    """The messages of a log that may matter, in order. Memory does not grow with the log."""
    first = stream.read(BLOCK)
    style = judge_style(first)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        rest = first + stream.read(1 << 28)
        text = rest.decode("utf-16", "replace").encode("utf-8", "replace")
        physical: Iterable[tuple[int, bytes]] = enumerate(text.split(b"\n"), start=1)
    else:
        physical = telling(first, stream)
    for number, text_line in _joined(unwrapped(_cleaned(physical), wrap_width(first), _STARTS)):
        for part in _split_glue(text_line, style):
            line = _strip(part, style, number)
            if line is not None:
                yield line


def _cleaned(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    for number, raw in lines:
        wrapped = raw[:1] == b"{" and b'"' in raw[:40]
        if wrapped:
            raw = _unwrap_json(raw)
        text = raw.decode("utf-8", "replace")
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        pieces = [p for p in text.split("\r") if p.strip()] if "\r" in text else [text]
        if wrapped and "\n" in text:
            pieces = _lines_of(text)
        for piece in pieces:
            if "&" in piece and _ENTITY.search(piece):
                piece = html.unescape(piece)
            if not piece.isascii():
                piece = piece.translate(_FULL_WIDTH)
            piece = _NOISE.sub("", piece)
            if piece.strip():
                yield number, piece


def _lines_of(text: str) -> list[str]:
    """A message of several lines (a traceback), each with the rank in front that it came with."""
    found = _LABELLED.match(text)
    head = found.group() if found else ""
    lines = [line.rstrip("\r") for line in text[len(head) :].split("\n")[:_MOST_LINES]]
    return [head + line for line in lines if line.strip()]


def _unwrap_json(raw: bytes) -> bytes:
    """The message of a line that a collector wrapped as JSON."""
    try:
        text = log_text(orjson.loads(raw))
    except orjson.JSONDecodeError:
        return raw
    return raw if text is None else text.encode("utf-8", "replace")


_STARTS = re.compile(
    r"\s*(?:\[rank ?\d|\[[EWIF]\d{3,4} |\[[EWIF] |[EWIF]\d{4} \d\d:|Traceback"
    r"|Exception raised|frame #|\[default\d|\[hangscope\]|\d{4}-\d\d-\d\d|\(\w+ pid="
    r"|[\w\-.]+:\d+:\d+ \[|terminate called|srun: |slurmstepd: |[=\-]{20,}$)"
)
_OPEN = re.compile(
    r"(?:Watchdog caught|Caught collective operation|Work(?:NCCL|HCCL)\()"
    r"(?!.*(?:before\s*timing\s*out|timed\s*out\s*in))",
    re.S,
)
_OPEN_STATUS = re.compile(
    r"(?:detected by watchdog at work|Timeout at NCCL work|Last enqueued NCCL work)"
    r"(?!.*last\s*completed\s*(?:NCCL\s*)?work:\s*-?\d)",
    re.S,
)
_OPEN_MISMATCH = "Detected mismatch between collectives"
_BOTH_SIDES = re.compile(
    r"inconsistent\s*collective:|but\s*Rank\s*\d+\s*is\s*running\s*collective:"
)
_OPEN_LABEL = re.compile(r"\[(?:Rank ?\d*|PG ?[^\]\[]{0,80}|rank\d*)$")
_MAX_JOIN = 8
_LONGEST_PREFIX = 120


def _joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Put lines together that a terminal wrapped in the middle of a watchdog message."""
    held: tuple[int, str] | None = None
    absorbed = 0
    for number, text in lines:
        if held is not None:
            if absorbed < _MAX_JOIN and not _STARTS.match(text):
                held = (held[0], held[1].rstrip() + text.rstrip())
                absorbed += 1
            else:
                yield held
                held = None
        if held is None:
            held, absorbed = (number, text), 0
        if not _is_open(held[1]):
            yield held
            held = None
    if held is not None:
        yield held


def _is_open(text: str) -> bool:
    return bool(
        ("ork" in text and (_OPEN.search(text) or _OPEN_STATUS.search(text)))
        or ("Watchdog" in text and _OPEN.search(text))
        or (_OPEN_MISMATCH in text and _is_half_a_mismatch(text))
        or _OPEN_LABEL.search(text.rstrip())
    )


def _is_half_a_mismatch(text: str) -> bool:
    """Whether a comparison of two fingerprints goes on behind the end of this line."""
    found = _BOTH_SIDES.search(text)
    if not found:
        return True
    last = text[found.end() :]
    return "CollectiveFingerPrint(" not in last or last.count("(") > last.count(")")


_RAISING = re.compile(r"\[rank ?\d{1,7}\]: Traceback \(most recent call last\)")


def _is_prefix(text: str, style: Style) -> bool:
    """Whether launchers and collectors have put all of it in front of a line."""
    line, rest = LogLine(""), text
    while rest.strip():
        before = rest
        line, rest = strip_one(line, rest, style)
        if rest == before:
            return False
    return True


def _split_glue(text: str, style: Style) -> list[str]:
    """Two c10 messages on one physical line, or one behind a progress bar; a traceback behind the
    question that another rank asks."""
    starts = [m.start() for m in _C10.finditer(text)]
    raising = _RAISING.search(text) if "Traceback" in text and not starts else None
    if raising is not None and not _is_prefix(text[: raising.start()], style):
        return [text[: raising.start()], text[raising.start() :]]
    if len(starts) <= 1 and (not starts or starts[0] < _LONGEST_PREFIX):
        return [text]
    # A short prefix in front of the first message belongs to it; a long one is another message.
    inner = starts[1:] if starts[0] < _LONGEST_PREFIX else starts
    edges = [0, *inner, len(text)]
    return [text[a:b] for a, b in pairwise(edges) if text[a:b].strip()]


def _strip(text: str, style: Style, number: int) -> LogLine | None:
    """Take the prefixes off, outermost first, and keep what they say."""
    line = LogLine("", number=number)
    rest = text.rstrip()
    for _ in range(12):
        before = rest
        line, rest = strip_one(line, rest, style)
        if rest == before:
            break
    found = _C10.search(rest)
    if found:
        line = _with_c10(line, found)
        rest = rest[found.end() :]
    else:
        python = _PYLOG.search(rest)
        if python:
            rank, level, mmdd, hour, minute, second, pid, file = python.groups()
            line = replace(
                line,
                rank=int(rank) if rank else line.rank,
                level=level,
                file=file,
                # Before 2.5 and in C++ the number is a thread's.
                pid=int(pid) if len(pid) < 9 and file.endswith(".py") else line.pid,
                at=_moment(int(mmdd), int(hour), int(minute), int(second)),
            )
            rest = rest[python.end() :]
    ascend = _ASCEND.search(rest) if "PID:" in rest else None
    if ascend:
        rank, pid = ascend.group("rank"), int(ascend.group("pid") or ascend.group("pid2"))
        line = replace(line, rank=int(rank) if rank else line.rank, pid=line.pid or pid)
    hook = _RANK_HOOK.match(rest)
    if not hook and not found and "]: " in rest:  # behind a prefix that nobody knows
        hook = _RANK_HOOK.search(rest, 0, _LONGEST_PREFIX)
    if hook:
        line = replace(line, rank=int(hook.group(1)), excepthook=True)
        rest = rest[hook.end() :]
    rest, left_out = _REPEATED.subn("", rest)
    if not rest.strip():
        return None
    if left_out:
        line = replace(line, repeated=True)
    return replace(line, text=clean.prose(rest, MAX_LINE))


def _with_c10(line: LogLine, found: re.Match[str]) -> LogLine:
    rank, level, mdd, hour, minute, second, file = found.groups()
    return replace(
        line,
        rank=int(rank) if rank else line.rank,
        level=level,
        file=file,
        at=_moment(int(mdd), int(hour), int(minute), int(second)) if mdd else line.at,
    )


def _moment(mdd: int, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
    month, day = divmod(mdd, 100)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return month, day, hour * 3600 + minute * 60 + second
