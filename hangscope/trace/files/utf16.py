"""Text in UTF-16, as PowerShell and some exports write it; a piece of it has no byte order mark."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO

_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_CHUNK = 1 << 18
_FEWEST = 16
"""Bytes from which a text without a mark can be recognised."""


def encoding_of(head: bytes) -> str:
    """``utf-16-le`` or ``utf-16-be``; empty for anything else.

    Without a mark: nearly every second byte is zero and hardly any of the others, as in text that
    is mostly ASCII.
    """
    marked = _MARKS.get(head[:2])
    if marked or len(head) < _FEWEST:
        return marked or ""
    half = len(head) // 2
    zeros = head[0::2].count(0), head[1::2].count(0)
    if zeros[1] * 10 > half * 9 and zeros[0] * 100 < half:
        return "utf-16-le"
    return "utf-16-be" if zeros[0] * 10 > half * 9 and zeros[1] * 100 < half else ""


class AsUtf8(io.RawIOBase):
    """A stream of UTF-16 read as UTF-8, in bounded memory; what is damaged is replaced."""

    def __init__(self, head: bytes, stream: BinaryIO, encoding: str) -> None:
        self._head = head
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, left = [], size if size >= 0 else 1 << 62
        while left > 0:
            if not self._ready and not self._fill():
                break
            piece, self._ready = self._ready[:left], self._ready[left:]
            parts.append(piece)
            left -= len(piece)
        return b"".join(parts)

    def _fill(self) -> bool:
        """Decode the next chunk. Returns False at the end."""
        while not self._ready:
            chunk, self._head = self._head, b""
            chunk = chunk or self._stream.read(_CHUNK)
            text = self._decoder.decode(chunk, final=not chunk)
            self._ready = text.encode("utf-8", "replace")
            if not chunk:
                break
        return bool(self._ready)
