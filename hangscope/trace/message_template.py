"""Masks what differs between ranks in otherwise equal messages."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


def mask_numbers(text: str) -> str:
    """The message with its numbers masked: ranks, sizes, ports and addresses differ per rank."""
    return _NUMBERS.sub("#", text)
