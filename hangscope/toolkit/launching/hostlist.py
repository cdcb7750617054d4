"""Slurm's host lists: ``node[01-03,7],gpu5`` and so on, without calling scontrol."""

from __future__ import annotations

import re
from itertools import product


def expand_hostlist(text: str) -> list[str]:
    """Host names of a Slurm host list, in order.

    Source: the notation of ``scontrol show hostnames``. A name may have several bracketed ranges
    (``rack[1-2]n[01-04]``); leading zeros keep their width.

    Raises
    ------
    ValueError
        The text has unbalanced brackets or an unreadable range.
    """
    return [host for part in _split(text) for host in _expand(part)]


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in host list {text!r}")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise ValueError(f"unbalanced brackets in host list {text!r}")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [
        [piece] if index % 2 == 0 else _ranges(piece, part) for index, piece in enumerate(pieces)
    ]
    return ["".join(chosen) for chosen in product(*choices)]


def _ranges(text: str, whole: str) -> list[str]:
    values: list[str] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if not match:
            raise ValueError(f"unreadable range {item!r} in host list {whole!r}")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"range {item!r} runs backwards in host list {whole!r}")
        values += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return values
