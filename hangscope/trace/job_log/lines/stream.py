"""Turns a log into messages, without what launchers, collectors and terminals have added.

Lines that `blocks` lets through are cleaned, split if two messages were glued together, joined if a
terminal wrapped one, and attributed to a rank if prefixes state one.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, cast

import orjson

from hangscope.trace.files.log_exports import columns_of_csv, log_text, records_of_csv
from hangscope.trace.files.utf16 import AsUtf8, encoding_of
from hangscope.trace.job_log.lines.blocks import BLOCK, Physical, relevant_lines
from hangscope.trace.job_log.lines.blocks import MAX_LINE as MAX_LINE
from hangscope.trace.job_log.lines.fast_path import FastPath
from hangscope.trace.job_log.lines.line import LogLine as LogLine
from hangscope.trace.job_log.lines.line import Machine
from hangscope.trace.job_log.lines.prefixes import ANSI, Style, detect_style
from hangscope.trace.job_log.lines.strip_prefixes import outer_prefixes, split_messages, strip
from hangscope.trace.job_log.lines.wrapped import MessageJoiner, unwrap, wrap_width

_LABELLED = re.compile(r"(?:\[pod/[\w.\-]+/-\] )?(?:\[RANK \d{1,7}\] )?")
_FIRST_LINES = 400
_LARGEST_TABLE = 1 << 28
_MOST_LINES = 400
"""Of one message; deeper tracebacks are truncated."""
_FULL_WIDTH = str.maketrans("［］【】（）：", "[][]():")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|#\d+);")
_NOISE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")


def read_lines(
    stream: BinaryIO, words: Sequence[bytes], year: int, machines: set[Machine] | None = None
) -> Iterator[LogLine]:
    """The messages of a log that may matter, in order, in bounded memory.

    Messages matter that contain one of the words, and those after them. ``machines`` receives the
    machines in its first lines, even if those lines do not matter.
    """
    first = stream.read(BLOCK)
    encoding = encoding_of(first)
    if encoding:
        stream = cast("BinaryIO", AsUtf8(first, stream, encoding))
        first = stream.read(BLOCK)
    columns = columns_of_csv(first)
    if columns:
        stream = _without_columns(columns, first, stream)
        first = stream.read(BLOCK)
    style = detect_style(first, year)
    if machines is not None:
        machines.update(_machines(first, style))
    return _messages(relevant_lines(first, stream, words), style, wrap_width(first))


def _machines(first: bytes, style: Style) -> Iterator[Machine]:
    for raw in first.split(b"\n", _FIRST_LINES)[:_FIRST_LINES]:
        for _, text in _cleaned(0, raw[:MAX_LINE]):
            line, _ = outer_prefixes(text, style)
            if not line.machine.is_unknown:
                yield line.machine


def _without_columns(columns: tuple[str, ...], first: bytes, stream: BinaryIO) -> BinaryIO:
    """The messages of a table, one per line."""
    table = (first + stream.read(_LARGEST_TABLE)).decode("utf-8", "replace")
    texts = (log_text(record) for record in records_of_csv(columns, table))
    lines = (line for text in texts if text is not None for line in _lines_of(text))
    return io.BytesIO("\n".join(lines).encode("utf-8", "replace"))


def _messages(physical: Iterable[Physical], style: Style, width: int) -> Iterator[LogLine]:
    """The messages of a log, which was copied from a terminal of that width unless it is 0."""
    plain, joiner = FastPath(style), MessageJoiner()
    if width:
        texts = (piece for number, raw, _ in physical for piece in _cleaned(number, raw))
        for number, text in unwrap(texts, width):
            yield from _parts(joiner.put(number, text), style)
    else:
        for number, raw, shape in physical:
            line = None if joiner.waits else plain.line(number, raw, shape)
            if line is not None:
                yield line
                continue
            for _, text in _cleaned(number, raw):
                yield from _parts(joiner.put(number, text), style)
    yield from _parts(joiner.rest(), style)


def _parts(messages: Iterable[tuple[int, str]], style: Style) -> Iterator[LogLine]:
    for number, text in messages:
        for part in split_messages(text, style):
            line = strip(part, style, number)
            if line is not None:
                yield line


def _cleaned(number: int, raw: bytes) -> Iterator[tuple[int, str]]:
    wrapped = raw[:1] == b"{" and b'"' in raw[:40]
    if wrapped:  # by a collector, as JSON
        try:
            message = log_text(orjson.loads(raw))
            raw = raw if message is None else message.encode("utf-8", "replace")
        except orjson.JSONDecodeError:
            pass
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    pieces = [p for p in text.split("\r") if p.strip()] if "\r" in text else [text]
    if wrapped and "\n" in text:
        pieces = _lines_of(text)
    for piece in pieces:
        if "&" in piece and _ENTITY.search(piece):
            piece = html.unescape(piece)
        if not piece.isascii():
            piece = piece.translate(_FULL_WIDTH)
        if not piece.isprintable():
            piece = _NOISE.sub("", piece)
        if piece.strip():
            yield number, piece


def _lines_of(text: str) -> list[str]:
    """The lines of a multi-line message (a traceback), each with the message's rank prefix."""
    found = _LABELLED.match(text)
    head = found.group() if found else ""
    lines = [line.rstrip("\r") for line in text[len(head) :].split("\n")[:_MOST_LINES]]
    return [head + line for line in lines if line.strip()]
