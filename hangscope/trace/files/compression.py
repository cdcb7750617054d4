"""Compressed files: read as what is in them, as far as they are whole."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

GZIP, BZIP2, XZ, ZSTD = "gzip", "bzip2", "xz", "zstd"
_MAGIC = {b"\x1f\x8b": GZIP, b"BZh": BZIP2, b"\xfd7zXZ": XZ, b"\x28\xb5\x2f\xfd": ZSTD}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""What the readers of compressed data raise where it is cut or damaged. All but gzip's raise an
`OSError` there."""


class NoReader(Exception):  # noqa: N818
    """Nothing is installed that reads this kind of compressed data; the text says what to do."""


def packing_of(head: bytes) -> str:
    """How a file is compressed that begins so; empty where it is not."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def unpacked(path: str | Path, packing: str) -> BinaryIO:
    """The contents of a compressed file, inflated on the way.

    Raises
    ------
    NoReader
        For zstd, where neither Python (before 3.14) nor the package zstandard reads it.
    """
    if packing == GZIP:
        return cast("BinaryIO", gzip.open(path, "rb"))
    if packing == BZIP2:
        return cast("BinaryIO", bz2.open(path, "rb"))
    if packing == XZ:
        return cast("BinaryIO", lzma.open(path, "rb"))
    return cast("BinaryIO", _zstd().open(path, "rb"))


def packed(data: bytes, packing: str) -> bytes:
    """Data compressed in this way; the same data gives the same bytes.

    Raises
    ------
    NoReader
        As `unpacked`.
    """
    if packing == GZIP:
        return gzip.compress(data, mtime=0)
    if packing == BZIP2:
        return bz2.compress(data)
    if packing == XZ:
        return lzma.compress(data)
    return bytes(_zstd().compress(data))


def _zstd() -> Any:
    """Python's own module from 3.14 on, else the package that others know."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise NoReader("compressed with zstd; unpack it first, or install the package zstandard")


class AsFarAsWhole(io.RawIOBase):
    """The contents of a compressed file up to where it is cut or damaged.

    A log is often copied while it is written, and what it tells up to there counts.
    """

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self.is_cut = False
        """Whether the end of what could be read is not that of the file."""

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, if there are as many."""
        parts: list[bytes] = []
        left = size
        while left and not self.is_cut:
            try:
                part = self._inner.read1(left if left > 0 else 1 << 20)  # type: ignore[attr-defined]
            except DAMAGED:
                self.is_cut = True
                break
            if not part:
                break
            parts.append(part)
            left -= len(part) if left > 0 else 0
        return b"".join(parts)

    def readable(self) -> bool:
        """It is made to be read."""
        return True

    def seekable(self) -> bool:
        """Only to its beginning."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Back to the beginning."""
        if offset or whence:
            raise io.UnsupportedOperation("only to the beginning")
        self.is_cut = False
        return self._inner.seek(0)

    def close(self) -> None:
        """Close the file as well."""
        self._inner.close()
        super().close()
