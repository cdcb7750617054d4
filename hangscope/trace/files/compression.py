"""Reads compressed files, including the intact start of truncated ones."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

GZIP, BZIP2, XZ, ZSTD = "gzip", "bzip2", "xz", "zstd"
_MAGIC = {b"\x1f\x8b": GZIP, b"BZh": BZIP2, b"\xfd7zXZ": XZ, b"\x28\xb5\x2f\xfd": ZSTD}
_MOST_INFLATION = 300
"""Logs and dumps rarely shrink to less than a hundredth."""
_HARMLESS_BYTES = 16 << 20
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""Errors raised for truncated or damaged compressed data; except for gzip, they include
`OSError`."""


class NoDecompressor(Exception):  # noqa: N818
    """Nothing installed can read this kind of compressed data; the text says what to do."""


def compression_of(head: bytes) -> str:
    """The compression of a file with these first bytes; empty if it is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def open_decompressed(path: str | Path, compression: str) -> BinaryIO:
    """Open a compressed file for reading its contents.

    Raises
    ------
    NoDecompressor
        For zstd, if neither Python (before 3.14) nor the package zstandard can read it.
    """
    if compression == GZIP:
        return cast("BinaryIO", gzip.open(path, "rb"))
    if compression == BZIP2:
        return cast("BinaryIO", bz2.open(path, "rb"))
    if compression == XZ:
        return cast("BinaryIO", lzma.open(path, "rb"))
    return cast("BinaryIO", _zstd().open(path, "rb"))


def compress(data: bytes, compression: str) -> bytes:
    """Compress data reproducibly.

    Raises
    ------
    NoDecompressor
        As `open_decompressed`.
    """
    if compression == GZIP:
        return gzip.compress(data, mtime=0)
    if compression == BZIP2:
        return bz2.compress(data)
    if compression == XZ:
        return lzma.compress(data)
    return bytes(_zstd().compress(data))


def _zstd() -> Any:
    """The standard library's module from Python 3.14 on, else the package zstandard."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise NoDecompressor("compressed with zstd; unpack it first, or install the package zstandard")


def most_inflated(compressed_bytes: int) -> int:
    """To how many bytes a log or dump may inflate; more is no log or dump."""
    return max(_HARMLESS_BYTES, _MOST_INFLATION * compressed_bytes)


def open_tolerant(path: str | Path, compression: str) -> TolerantReader:
    """Open a compressed file for reading what of it is intact. Raises as `open_decompressed`."""
    return TolerantReader(open_decompressed(path, compression), os.stat(path).st_size)


class TolerantReader(io.RawIOBase):
    """The contents of a compressed file up to where it is truncated or damaged.

    Logs are often copied while they are written; what precedes the damage still counts. Data that
    inflates more than any log or dump counts as damaged from there on.

    Parameters
    ----------
    inner:
        Reads the file decompressed.
    compressed_bytes:
        The size of the file.
    """

    def __init__(self, inner: BinaryIO, compressed_bytes: int) -> None:
        self._inner = inner
        self._most = self._left = most_inflated(compressed_bytes)
        self.is_truncated = False
        """Whether reading stopped before the end of the file."""

    def read(self, size: int = -1) -> bytes:
        """Return as many bytes as requested, if there are that many."""
        parts: list[bytes] = []
        left = size
        while left and not self.is_truncated:
            try:
                part = self._inner.read1(left if left > 0 else 1 << 20)  # type: ignore[attr-defined]
            except DAMAGED:
                self.is_truncated = True
                break
            if not part:
                break
            parts.append(part)
            left -= len(part) if left > 0 else 0
            self._left -= len(part)
            self.is_truncated = self._left < 0
        return b"".join(parts)

    @property
    def is_too_large(self) -> bool:
        """Whether reading stopped because the contents are larger than any log or dump."""
        return self._left < 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Only to the start."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return to the start."""
        if offset or whence:
            raise io.UnsupportedOperation("only to the beginning")
        self.is_truncated, self._left = False, self._most
        return self._inner.seek(0)

    def close(self) -> None:
        """Close the underlying file as well."""
        self._inner.close()
        super().close()
