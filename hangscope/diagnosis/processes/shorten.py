"""Cuts long messages so that a reader sees that they go on."""

from __future__ import annotations

import re

_WHERE_IT_WAS_BUILT = re.compile(r"(?<=\[)[^\s\[\]]{1,200}/third_party/[^/\s\[\]]{1,40}/")
"""Gloo's messages begin with a source path on the machine that built torch."""


def shortened(text: str, limit: int = 200) -> str:
    """`text`, or its first words up to `limit` characters, followed by ``…``."""
    text = _WHERE_IT_WAS_BUILT.sub("", text)
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    words = head.rpartition(" ")[0]
    return (words if len(words) * 2 > limit else head[:limit]).rstrip() + " …"
