"""Decodes Python source files, which say themselves how they are encoded."""

from __future__ import annotations

import io
import re
import tokenize

_TEXT_ENCODING = re.compile(
    r"utf-8(?:-sig)?|ascii|iso-?8859-?\d+|latin-?\d|cp\d+|koi8-[rut]|gb\w+|big5\w*|euc[-_]\w+"
    r"|shift_jis\w*",
    re.I,
)
"""Python has other codecs: some are no text encodings (hex, zlib), some take quadratic time."""


def decode_source(source: bytes) -> str:
    """The text of a file as it declares it (PEP 263), else as UTF-8; never raises."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError:
        encoding = "utf-8"
    if not _TEXT_ENCODING.fullmatch(encoding):
        encoding = "utf-8"
    return source.decode(encoding, "replace")
