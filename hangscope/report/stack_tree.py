"""Stacks of many ranks merged into one tree: shared frames once, a fork where ranks diverge.

Outermost frames come first, as in a Python traceback, because that is where stacks agree. A branch
is a run of frames shared by exactly the same ranks, so a job in which all ranks are at the same
place is a single branch, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hangscope.trace.model import Frame, Stack


@dataclass(slots=True)
class Branch:
    """Consecutive frames (outermost first) that all of `ranks` share, and the branches below."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    depth: int
    """Number of forks above."""
    children: list[Branch] = field(default_factory=list)

    def walk(self) -> Iterator[Branch]:
        """This branch and all below it, parents first."""
        todo = [self]
        while todo:
            branch = todo.pop()
            yield branch
            todo.extend(reversed(branch.children))


def merge(stacks: Iterable[tuple[Sequence[int], Stack]]) -> list[Branch]:
    """The roots of the tree over `stacks`, which are pairs of ranks and a stack (innermost first).

    Empty stacks are left out. Branches are ordered by their number of ranks, smallest last, so that
    the exceptional one stands out at the end.
    """
    ranks_of: dict[Stack, set[int]] = {}
    for ranks, stack in stacks:
        if stack:
            ranks_of.setdefault(tuple(reversed(stack)), set()).update(ranks)
    roots: list[Branch] = []
    todo = [(list(ranks_of.items()), 0, 0, roots)]
    while todo:
        entries, start, depth, siblings = todo.pop()
        by_frame: dict[Frame, list[tuple[Stack, set[int]]]] = {}
        for frames, having in entries:
            if len(frames) > start:
                by_frame.setdefault(frames[start], []).append((frames, having))
        for same in by_frame.values():
            end = _common_end([stack for stack, _ in same], start)
            members = set().union(*(ranks for _, ranks in same))
            branch = Branch(tuple(sorted(members)), same[0][0][start:end], depth)
            siblings.append(branch)
            todo.append((same, end, depth + 1, branch.children))
    for root in roots:
        for branch in root.walk():
            branch.children.sort(key=_by_size)
    roots.sort(key=_by_size)
    return roots


def _by_size(branch: Branch) -> tuple[int, tuple[int, ...]]:
    return -len(branch.ranks), branch.ranks


def _common_end(stacks: Sequence[Stack], start: int) -> int:
    """Index after the last frame that all `stacks` share, given that they share `start`."""
    first, end = stacks[0], start + 1
    while end < len(first) and all(len(s) > end and s[end] == first[end] for s in stacks):
        end += 1
    return end
