"""Long messages, cut where a reader sees that they go on."""

from __future__ import annotations


def shortened(text: str, limit: int = 200) -> str:
    """`text`, or its first words, at most `limit` characters of them, and ``…``."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    words = head.rpartition(" ")[0]
    return (words if len(words) * 2 > limit else head[:limit]).rstrip() + " …"
