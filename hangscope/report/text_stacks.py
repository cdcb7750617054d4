"""The stacks of all sides as one small tree: shared frames first, then the divergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hangscope.diagnosis.model import Side
from hangscope.report.escape import plain
from hangscope.report.formatting import short_path
from hangscope.report.source_lines import Sources
from hangscope.report.stack_tree import Branch, merge
from hangscope.trace.model import Frame
from hangscope.trace.rank_text import named

_SHARED = (0, 3)
_OWN = (2, 6)
"""Frames shown of a longer stack, at its outer and at its inner end. A side parts from the others
at its outer end, and what it does is at the inner one; what all share matters at its inner end."""
_SIDES = 6


def side_stacks(
    sides: Sequence[Side], culprits: Sequence[int], sources: Sources, *, everything: bool
) -> Iterator[Text]:
    """Lines of the tree over the stacks of `sides`; none if no side has a stack."""
    shown = [s for s in sides if s.stack][: None if everything else _SIDES]
    roots = merge([(s.ranks, s.stack) for s in shown])
    marked = {_marked(s) for s in shown} - {None}
    if len(roots) == 1 and not roots[0].children:  # all ranks at the same place
        yield from _frames(roots[0].frames, "", _OWN, marked, sources, everything)
        return
    everyone = {r for root in roots for r in root.ranks}
    for root in roots:
        for branch, indent, bar in _drawn(root, alone=len(roots) == 1):
            if set(branch.ranks) == everyone:
                yield from _frames(branch.frames, indent, _SHARED, set(), sources, everything)
                continue
            guilty = bool(culprits) and set(branch.ranks) <= set(culprits)
            yield Text(indent).append(named(branch.ranks, 60), "bold red" if guilty else "bold")
            yield from _frames(branch.frames, indent + bar, _OWN, marked, sources, everything)


def _drawn(root: Branch, *, alone: bool) -> Iterator[tuple[Branch, str, str]]:
    """(branch, indent, prefix of its frames) for each branch of the tree below `root`."""
    for branch in root.walk():
        depth = branch.depth - (1 if alone and branch.depth else 0)
        yield branch, "  " * depth, "  "


def _marked(side: Side) -> Frame | None:
    """The frame where a side diverges from the others, if the diagnosis tells."""
    if side.differs_at is None or not 0 <= side.differs_at < len(side.stack):
        return None
    return side.stack[side.differs_at]


def _frames(
    frames: Sequence[Frame],
    indent: str,
    limits: tuple[int, int],
    marked: set[Frame | None],
    sources: Sources,
    everything: bool,
) -> Iterator[Text]:
    """One line per frame, outermost first, with the source line below if it can be read.

    ``limits``: how many are shown at the outer and at the inner end if those between are left out.
    """
    outer, inner = limits
    left_out = 0 if everything or len(frames) <= outer + inner + 1 else len(frames) - outer - inner
    kept = [*frames[:outer], *frames[-inner:]] if left_out else frames
    places = [f"{short_path(f.filename)}:{f.line}" for f in kept]
    width = min(max((len(p) for p in places), default=0), 36)
    for at, (frame, where) in enumerate(zip(kept, places, strict=True)):
        if left_out and at == outer:
            # How many lie between is not known: a sample of a deep stack has a gap there, too.
            yield Text(f"{indent}  … {'more' if outer else f'{left_out} outer'} frames", "dim")
        hit = frame in marked
        line = Text(indent)
        line.append("▸ " if hit else "  ", "bold yellow")
        line.append(where.ljust(width), "bold" if hit else "")
        line.append(f"  in {plain(frame.name, 80)}", "" if hit else "dim")
        yield line
        code = sources.line(frame) if hit or frame is kept[-1] else ""
        if code:
            yield Text(f"{indent}      {code}", "cyan")
