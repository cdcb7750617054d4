"""Escapes untrusted text before it reaches a terminal or a page.

Names, paths and messages come from dumps that anybody may have written. Terminals obey escape
sequences, and characters that change the writing direction mislead readers, so every such character
is replaced by its code. Rich and Jinja then only ever see text without markup.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1 controls, ESC and CSI among them
    "\u00ad\u034f\u061c\u180e"  # soft hyphen, joiners and marks that do not show
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, separators, direction
    "\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff"  # lone surrogates: no encoder takes them
    "]"
)


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str) -> str:
    """`text` with every character replaced that a terminal would obey, except breaks and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_visible_in_line, text)


def _visible_in_line(match: re.Match[str]) -> str:
    return match.group() if match.group() in "\n\t" else _visible(match)


def visible_json(document: bytes) -> bytes:
    """A JSON document in UTF-8 with the same content and no such character in it.

    JSON encoders escape only those below a space.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return _UNSAFE.sub(_json_escape, document.decode("utf-8", "surrogatepass")).encode()


def _json_escape(match: re.Match[str]) -> str:
    if match.group() in "\n\t":  # between values; inside of texts the encoder has escaped them
        return match.group()
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def plain(text: object, limit: int = 2000) -> str:
    """`text` as one line without control characters, at most `limit` characters long.

    Line breaks and tabs become spaces; every other invisible or control character is replaced by
    its escape, such as ``\\x1b``.
    """
    line = str(text)
    if len(line) > limit:
        line = line[: limit - 1] + "…"
    line = line.replace("\r\n", " ").replace("\n", " ").replace("\t", " ").replace("\r", " ")
    return _UNSAFE.sub(_visible, line)
