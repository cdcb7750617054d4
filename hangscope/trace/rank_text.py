"""Compact notation for lists of ranks: ``0–3, 5``, and ``0–56:8`` for every eighth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MIN_STRIDED = 6
"""Minimum number of equally spaced ranks to write as a stride."""


def compress(ranks: Iterable[int], limit: int | None = None, between: str = " ") -> str:
    """`ranks` sorted, with runs joined: ``0–3 5``; equal steps as ``first–last:step``.

    With `limit`, a list longer than that many characters is cut and ends in the number of ranks
    left out: ``0–3 5 9 … +118``. In sentences they are `between` commas.
    """
    parts = list(_parts(sorted(set(ranks))))
    text = between.join(part for part, _ in parts)
    if limit is None or len(text) <= limit:
        return text
    total = sum(count for _, count in parts)
    shown: list[str] = []
    used = 0
    for part, count in parts:
        tail = f" … +{total - used - count}"
        if shown and len(between.join([*shown, part])) + len(tail) > limit:
            break
        shown.append(part)
        used += count
    rest = f" … +{total - used}" if used < total else ""
    return between.join(shown) + rest


def named(ranks: Iterable[int], limit: int | None = None, between: str = " ") -> str:
    """``rank 2`` or ``ranks 0–3 5``; ``no rank`` for an empty list."""
    several = set(ranks)
    if not several:
        return "no rank"
    return f"rank{'s' * (len(several) > 1)} {compress(several, limit, between)}"


def _parts(ranks: Sequence[int]) -> Iterable[tuple[str, int]]:
    """(text, number of ranks) for each run; linear in the number of ranks."""
    start = 0
    while start < len(ranks):
        end = _run(ranks, start, 1)
        if end - start >= 2:
            yield f"{ranks[start]}–{ranks[end]}", end - start + 1
            start = end + 1
            continue
        if start + 1 < len(ranks) and (step := ranks[start + 1] - ranks[start]) > 1:
            end = _run(ranks, start, step)
            # A shorter stride could take the first rank of a run of neighbours and split that run.
            if end - start + 1 >= _MIN_STRIDED:
                yield f"{ranks[start]}–{ranks[end]}:{step}", end - start + 1
                start = end + 1
                continue
        yield str(ranks[start]), 1
        start += 1


def _run(ranks: Sequence[int], start: int, step: int) -> int:
    """Index of the last rank of the run with `step` that begins at `start`."""
    end = start
    while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
        end += 1
    return end
