"""Sanitises text and numbers from untrusted files for terminals, HTML pages and reports."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from hangscope.trace.rows import MAX_RANK

MAX_TEXT = 4096
_MOST = 1e9
"""Upper limit for seconds or events per second; anything larger is an error in the source."""
_MOST_LOOKS = 1 << 31

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\|\Z)"  # OSC, DCS and other strings
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
# Controls, bidirectional overrides, zero-width characters, line separators and lone surrogates.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\ufff9-\ufffb]"
)
_BREAKS = re.compile(r"[\t\n]+")
_PLAIN = re.compile(r"[ -~]*\Z")


@lru_cache(maxsize=65536)
def name(text: str) -> str:
    """One printable line without escape sequences, at most 300 characters long."""
    if len(text) > 300:
        text = text[:297] + "..."
    if _PLAIN.match(text):
        return text
    text = _BREAKS.sub(" ", _ESCAPES.sub("", text))
    return _CONTROLS.sub("", text)


def prose(text: str, limit: int = MAX_TEXT) -> str:
    """Printable text that may contain line breaks."""
    text = _ESCAPES.sub("", text[: limit * 2])
    return _CONTROLS.sub("", text.replace("\r\n", "\n"))[:limit]


def as_name(value: Any, default: str = "") -> str:
    """Convert any value found in place of a name to a `name`."""
    if type(value) is str:
        return name(value)
    if isinstance(value, bytes):
        return name(value[:400].decode("utf-8", "replace"))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return name(str(value)[:64]) if abs(value) < 1e300 else default
    return default


def as_int(
    value: Any, default: int = 0, *, low: int = -(1 << 63), high: int = (1 << 63) - 1
) -> int:
    """Convert any value found in place of an integer: int, numeric string, float, None."""
    if type(value) is int:
        number = value
    elif isinstance(value, bool):
        number = int(value)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return default
        number = int(value)
    elif isinstance(value, (str, bytes)):
        text = value[:40].decode("ascii", "replace") if isinstance(value, bytes) else value[:40]
        try:
            number = int(text.strip())
        except ValueError:
            try:
                return as_int(float(text), default, low=low, high=high)
            except ValueError:
                return default
    else:
        return default
    return number if low <= number <= high else default


def as_rank(value: Any) -> int | None:
    """A rank; None if it is not valid, because readers build lists up to the largest rank."""
    return value if type(value) is int and 0 <= value <= MAX_RANK else None


def as_quantity(value: Any) -> float | None:
    """Convert any value found in place of a rate or duration; None if it is not plausible."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < _MOST else None


def as_looks(value: Any) -> int | None:
    """A number of looks at a running job; None if it is not stated."""
    return as_int(value, 0, low=0, high=_MOST_LOOKS) or None


def as_bool(value: Any) -> bool:
    """Convert any spelling of a truth value."""
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1", "yes")
    if isinstance(value, (bool, int, float)):
        return bool(value)
    return False
