"""When two processes say the same, if in numbers of their own."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


def but_numbers(text: str) -> str:
    """A message without its numbers: ranks, sizes, ports and addresses differ from rank to rank."""
    return _NUMBERS.sub("#", text)
