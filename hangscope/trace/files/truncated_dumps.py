"""Recovers from a truncated dump everything that precedes its entries.

A rank killed while its watchdog dumps leaves a partial file, and so does copying a dump that is
being written. Torch writes members and counters first and the entries, oldest first, after them.
The file shows how far the rank had come, but not what it issued last.
"""

from __future__ import annotations

from typing import Any

_KEYS = (b"X\x07\x00\x00\x00entries", b"\x8c\x07entries")
"""The string ``entries`` as pickle protocols 2 and 4 encode it."""
_END = b"u."
"""Opcodes that add all pairs to the open dictionary and end the pickle."""
_JSON_KEY = b'"entries"'
_JSON_END = b'"entries": []}'


def pickle_before_entries(data: bytes) -> bytes | None:
    """A complete pickle of everything before the entries, given how torch pickles dictionaries.

    None if no entries have begun. It may still turn out to be damaged when loaded.
    """
    found = [at for key in _KEYS if (at := data.find(key)) > 0]
    return data[: min(found)] + _END if found else None


def json_before_entries(data: bytes) -> bytes | None:
    """The same for a JSON document."""
    at = data.find(_JSON_KEY)
    return data[:at] + _JSON_END if at > 0 else None


def without_entries(document: Any) -> dict[str, Any] | None:
    """The loaded part of such a dump, with an empty list of entries.

    None if it has no counters: then nothing shows how far the rank had come.
    """
    if not isinstance(document, dict) or not document.get("pg_status"):
        return None
    return {**document, "entries": []}
