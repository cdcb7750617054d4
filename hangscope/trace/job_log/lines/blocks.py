"""Selects the physical lines of a log that may matter, numbered, as bytes.

Blocks without a relevant word are skipped before they are decoded, which makes gigabytes bearable.
Whether lines contain such a word is determined once per line shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from hangscope.trace.job_log.lines.line_shapes import ShapeCache, contains_any, shape_of_bytes

BLOCK = 1 << 18
MAX_LINE = 1 << 15
CONTEXT = 20
"""How many lines after a relevant one are passed on, whatever they contain."""

_ABOVE = 3
"""How many lines above a traceback or dump may state whose it is."""
_HEADS = (b"Traceback", b"Python v", b"MainThread", b"most recent call first")
_STACKS = (
    b"most recent call first",
    b"Traceback for thread",
    b'"MainThread"',
    b" (active",
    b" (idle",
)
_STACK_CONTEXT = 200
"""How many lines after the head of a stack are passed on; frames contain no relevant word."""
_ANNOUNCING = (b"opCount", b"Running collective:")
"""Words in lines that are printed for every operation. Only the last of them show where ranks
diverged, and a log of gigabytes may contain nothing else."""
_ANNOUNCED_BLOCKS = 64

Physical = tuple[int, bytes, bytes]
"""(number, line, its shape)"""

_TELLS, _ANNOUNCES, _IS_HEAD, _IS_STACK = 1, 2, 4, 8


def _marks(words: Sequence[bytes]) -> ShapeCache[bytes, int]:
    """What the lines of a shape are; those that contain one of the words tell something."""
    each = (tuple(words), _ANNOUNCING, _HEADS, _STACKS)
    return ShapeCache(
        lambda s: sum(1 << i for i, known in enumerate(each) if contains_any(s, known))
    )


def relevant_lines(first: bytes, stream: BinaryIO, words: Sequence[bytes]) -> Iterator[Physical]:
    """Numbered lines of the blocks that contain one of the words, and some lines after each.

    Of a long run of blocks that merely announce operations, the last ones are kept.
    """
    marks, context, number = _marks(words), 0, 0
    announced: deque[tuple[int, bytes]] = deque(maxlen=_ANNOUNCED_BLOCKS)
    for block in _whole_lines(first, stream):
        shape = shape_of_bytes(block)
        found = 0
        for piece in set(shape.replace(b"\r", b"\n").split(b"\n")):
            found |= marks[piece]
        lines = shape.split(b"\n") if found & _ANNOUNCES else []
        if lines and not any(marks[x] & (_TELLS | _ANNOUNCES) == _TELLS for x in lines):
            own = _end_of_line(block, context)  # context of a line in the previous block
            yield from _all_numbered([(number, block[:own])], [context], marks)
            announced.append((number + block.count(b"\n", 0, own), block[own:]))
            context = 0
        elif context or found & _TELLS:
            left = [context]
            yield from _all_numbered([*announced], left, marks)
            yield from _numbered(block, shape, number, left, marks)
            announced.clear()
            context = left[0]
        number += block.count(b"\n")
    yield from _all_numbered([*announced], [context], marks)


def _whole_lines(first: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of a log, each of whole lines; an endless line is split."""
    rest, block = b"", first
    while block:
        block = rest + block
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) > MAX_LINE * 4:
            cut = len(block)
        rest = block[cut:]
        if cut:
            yield block[:cut]
        block = stream.read(BLOCK)
    if rest:
        yield rest


def _end_of_line(block: bytes, count: int) -> int:
    """The position after this many lines."""
    at = 0
    for _ in range(count):
        at = block.find(b"\n", at) + 1 or len(block)
    return at


def _all_numbered(
    blocks: Sequence[tuple[int, bytes]], left: list[int], marks: ShapeCache[bytes, int]
) -> Iterator[Physical]:
    for number, block in blocks:
        yield from _numbered(block, shape_of_bytes(block), number, left, marks)


def _numbered(
    block: bytes, shape: bytes, number: int, left: list[int], marks: ShapeCache[bytes, int]
) -> Iterator[Physical]:
    context = left[0]
    before: deque[tuple[bytes, bytes]] = deque(maxlen=_ABOVE)
    lines = zip(block.split(b"\n"), shape.split(b"\n"), strict=True)
    for i, (line, its_shape) in enumerate(lines, start=number + 1):
        mark = marks[its_shape]
        if mark & _TELLS:
            if context == 0 and mark & _IS_HEAD:
                for back, above in enumerate(before):  # a logger's prefix, py-spy's heading
                    yield i - len(before) + back, above[0][:MAX_LINE], above[1][:MAX_LINE]
            before.clear()
            context = _STACK_CONTEXT if mark & _IS_STACK else max(CONTEXT, context - 1)
        elif context == 0:
            before.append((line, its_shape))
            continue
        else:
            context -= 1
        yield i, line[:MAX_LINE], its_shape[:MAX_LINE]
    left[0] = context
