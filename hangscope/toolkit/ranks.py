"""Compact notation for lists of ranks in messages: ``0-3, 7``."""

from __future__ import annotations

from collections.abc import Iterable


def compress(ranks: Iterable[int]) -> str:
    """``[0, 1, 2, 7]`` becomes ``"0-2, 7"``; nothing becomes ``"none"``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


def expand(text: str) -> list[int]:
    """The inverse of `compress`."""
    ranks: list[int] = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit():
            ranks += range(int(low), int(high or low) + 1)
    return ranks


def name_ranks(ranks: Iterable[int]) -> str:
    """``"rank 3"`` or ``"ranks 0-2, 7"``."""
    listed = list(ranks)
    return f"rank{'' if len(listed) == 1 else 's'} {compress(listed)}"
