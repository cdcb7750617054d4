"""What a dump that ends in the middle still tells: all that stands before its entries.

A rank that is killed while its watchdog dumps leaves a part of a file, and so does whoever copies
one that is being written. Torch writes members and counters first and the entries after them, the
oldest first: how far the rank had come is there, what it issued last is not.
"""

from __future__ import annotations

from typing import Any

_KEYS = (b"X\x07\x00\x00\x00entries", b"\x8c\x07entries")
"""The name of the entries as pickles of protocols 2 and 4 write a string."""
_END = b"u."
"""Put all pairs into the dictionary that was begun; the pickle ends."""
_JSON_KEY = b'"entries"'
_JSON_END = b'"entries": []}'


def head_of_pickle(data: bytes) -> bytes | None:
    """A whole pickle of what stands before the entries, as torch's pickler writes dictionaries.

    None where no entries have begun. Whether it can be loaded shows when it is.
    """
    found = [at for key in _KEYS if (at := data.find(key)) > 0]
    return data[: min(found)] + _END if found else None


def head_of_json(data: bytes) -> bytes | None:
    """As `head_of_pickle`, of a JSON document."""
    at = data.find(_JSON_KEY)
    return data[:at] + _JSON_END if at > 0 else None


def without_entries(document: Any) -> dict[str, Any] | None:
    """What was loaded of such a dump, with no entries.

    None where it has no counters: then nothing tells how far the rank had come.
    """
    if not isinstance(document, dict) or not document.get("pg_status"):
        return None
    return {**document, "entries": []}
