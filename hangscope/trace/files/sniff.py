"""Determines the kind of a file from its content; names lie, and ``.gz`` may hide anything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from hangscope.ring.device_layout import PREFIX as DEVICE_PREFIX
from hangscope.ring.layout import HEADER_BYTES, PREFIX
from hangscope.ring.reader import expected_records
from hangscope.trace.files.compression import (
    NoDecompressor,
    compression_of,
    open_tolerant,
)
from hangscope.trace.files.debug_pages import is_page_of_dumps
from hangscope.trace.files.log_exports import log_text
from hangscope.trace.files.regular_files import open_descriptor
from hangscope.trace.files.utf16 import encoding_of
from hangscope.trace.formats import DEVICE_RING, JOURNAL, JSON, LOG, PICKLE, RING

HEAD = 1 << 16
_RING_HEAD = HEADER_BYTES
MAX_INFLATED = 4 << 30
"""A compressed dump that inflates to more than this is refused."""

EMPTY = "empty"
EMPTY_FILE = "empty file"
UNKNOWN = "unknown"
TAR = "tar"
ZIP = "zip"
ARCHIVES = (TAR, ZIP)
"""Kinds that contain other files."""

_BOM = b"\xef\xbb\xbf"
_JSON_START = re.compile(rb'\s*(?:\{\s*(?:"|\})|\[\s*(?:\{|\]|\[\s*[\[{"]))')
_LITERAL = re.compile(rb"\s*(?:\{|\[\s*\{)\s*'")
"""The start of a dump printed by Python, with its quotes instead of JSON's."""
_TEXT_PICKLE = re.compile(rb"(?:\((?:d|l)p?\d*\n|\((?:d|l)p?\d*\r?\n|\}q.|\]q.|\(\}q.|\(lp0|\(dp0)")
_YAML = re.compile(rb"(?m)^[ \t]*(?:-[ \t]+)?(?:profiling_name|collective_seq_id|record_id)[ \t]*:")
_YAML_START = re.compile(rb"\s*(?:---|%YAML|-[ \t]|['\"]?\w[\w ]*['\"]?[ \t]*:(?:\s|$))")
_COLUMN = re.compile(rb"['\"]?[A-Za-z_][\w .]*['\"]?")
_7Z = b"7z\xbc\xaf"
_ZIP = b"PK\x03\x04"


class Unreadable(ValueError):  # noqa: N818
    """A file that cannot be used at all; the text says why, without the file's name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is, and how it is compressed."""

    name: str
    compression: str = ""
    """How it is compressed (`hangscope.trace.files.compression`); empty if it is not."""
    why: str = ""
    """For `UNKNOWN`: what it looks like."""
    records: int = 0
    """For `RING`: the number of records that its header promises."""


def sniff_file(path: str | Path) -> Kind:
    """Determine the kind from a file's first bytes. Raises `OSError` if it cannot be opened."""
    descriptor = open_descriptor(path)  # file objects would be slow for thousands of rings
    try:
        head = os.read(descriptor, _RING_HEAD)
        if head.startswith(PREFIX):
            return Kind(RING, records=expected_records(head))
        while len(head) < HEAD and (more := os.read(descriptor, HEAD - len(head))):
            head += more
    finally:
        os.close(descriptor)
    compression = compression_of(head)
    if compression:
        return _sniff_inside(path, compression)
    return sniff(head)


def _sniff_inside(path: str | Path, compression: str) -> Kind:
    """The kind of a compressed file's contents."""
    try:
        with open_tolerant(path, compression) as stream:
            head = stream.read(HEAD)
            damaged = stream.is_truncated and not head
    except NoDecompressor as error:
        return Kind(UNKNOWN, compression, str(error))
    if damaged:
        return Kind(UNKNOWN, compression, f"damaged {compression} data")
    inside = sniff(head)
    if inside.name in (RING, DEVICE_RING, JOURNAL):
        return Kind(UNKNOWN, compression, f"a compressed {inside.name}; unpack it first")
    return replace(inside, compression=compression)


def sniff(head: bytes) -> Kind:
    """Determine the kind from a file's first bytes (up to `HEAD`, already decompressed)."""
    if not head:
        return Kind(EMPTY, why=EMPTY_FILE)
    return _by_magic(head) or _by_syntax(head) or _text_or_binary(head)


def _by_magic(head: bytes) -> Kind | None:
    """The kind of a file with a magic number; None for everything else."""
    if head.startswith(PREFIX):
        return Kind(RING)
    if head.startswith(DEVICE_PREFIX):
        return Kind(DEVICE_RING, why="it is read with the ring beside it; name that, or the folder")
    if len(head) >= 2 and head[0] == 0x80 and head[1] <= 5:
        return Kind(PICKLE)
    if head.startswith(_ZIP):
        return Kind(ZIP)
    if head.startswith(_7Z):
        return Kind(UNKNOWN, why="a 7z archive; unpack it first")
    if len(head) > 262 and head[257:262] == b"ustar":
        return Kind(TAR)
    return None


def _by_syntax(head: bytes) -> Kind | None:
    """The kind of JSON, alone or on a page, printed dictionaries and text pickles; else None."""
    text = head.removeprefix(_BOM)
    if _JSON_START.match(text):
        first = text.lstrip().split(b"\n", 1)[0]
        if b'"hangscope"' in first and (b"journal/" in first or b'"reduction/' in first):
            return Kind(JOURNAL)
        return Kind(LOG if _is_log_record(first) else JSON)
    if _LITERAL.match(text) and (b"'entries'" in text or b"'profiling_name'" in text):
        return Kind(JSON)
    if is_page_of_dumps(text):
        return Kind(JSON)
    return Kind(PICKLE) if _TEXT_PICKLE.match(head) else None


def _text_or_binary(head: bytes) -> Kind:
    """A log, unless it is clearly something else."""
    if not head.strip(b"\0"):
        return Kind(UNKNOWN, why="nothing but zero bytes")
    if encoding_of(head):
        return Kind(LOG)
    head = head.lstrip(b"\0")  # a log that was truncated while being written starts with a hole
    table = _table(head.removeprefix(_BOM))
    if table:
        return Kind(UNKNOWN, why=table)
    controls = sum(head.count(bytes([c])) for c in (*range(7), *range(14, 27)))
    if controls > len(head) // 50 + 1:
        return Kind(UNKNOWN, why="binary data of an unknown kind")
    return Kind(LOG)


def _table(text: bytes) -> str:
    """A description of a list of operations in an unsupported format; empty for other texts."""
    if _YAML_START.match(text) and len(_YAML.findall(text)) > 1:
        return "a dump in YAML, which is not read; write it as JSON"
    first = text.lstrip().split(b"\n", 1)[0].strip()
    for separator in (b",", b"\t", b";"):
        columns = [c.strip() for c in first.split(separator)]
        if len(columns) < 3 or not all(_COLUMN.fullmatch(c) for c in columns):
            continue
        words = {c.strip(b"'\"").lower() for c in columns}
        if any(w.endswith(b"rank") for w in words) and any(b"seq" in w for w in words):
            shown = ", ".join(c.decode("ascii", "replace") for c in columns[:6])
            return f"a table with the columns {shown}, which is not read; hand in the dumps"
    return ""


def _is_log_record(line: bytes) -> bool:
    """Whether this is a line of a collector's log: an object that contains a text."""
    try:
        return log_text(orjson.loads(line)) is not None
    except orjson.JSONDecodeError:
        return False


def read_all(path: str | Path, compression: str) -> bytes:
    """Read a whole file, decompressed if necessary.

    Raises
    ------
    Unreadable
        For damaged or absurdly large compressed data.
    OSError
        If it cannot be read.
    """
    if not compression:
        return Path(path).read_bytes()
    parts: list[bytes] = []
    total = 0
    with open_tolerant(path, compression) as stream:
        while chunk := stream.read(1 << 20):
            total += len(chunk)
            if total > MAX_INFLATED or stream.is_too_large:
                raise Unreadable("inflates to more than any dump holds")
            parts.append(chunk)
        if stream.is_truncated:
            raise Unreadable(f"damaged or truncated {compression} data")
    return b"".join(parts)


def open_stream(path: str | Path, compression: str) -> BinaryIO:
    """Open a file for reading line by line, decompressing on the fly."""
    if compression:
        return cast("BinaryIO", open_tolerant(path, compression))
    return open(path, "rb")
