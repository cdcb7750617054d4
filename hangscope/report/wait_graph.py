"""The wait-for graph as boxes and arrows: ranks in the same position share a box.

Causes are on the right; every other box is as many columns to the left as there are waits between
it and the nearest cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangscope.diagnosis.model import Diagnosis
from hangscope.report.escape import plain
from hangscope.report.formatting import operation
from hangscope.report.wait_bundles import Bundle, bundles
from hangscope.trace.rank_text import named

_LIMIT = 24
_LABELLED, _LABEL = 10, 27
"""Maximum number of arrows that get labels, and characters that fit between two boxes."""
_LINE = 13.0
"""Minimum vertical distance of two labels, in pixels."""
_CHAR, _HEIGHT, _GAP_X, _GAP_Y, _PAD = 7.6, 30.0, 190.0, 34.0, 8.0


@dataclass(frozen=True, slots=True)
class Box:
    """Ranks that wait for the same ranks and are waited for by the same ranks."""

    ranks: tuple[int, ...]
    label: str
    culprit: bool
    x: float
    y: float
    width: float
    height: float = _HEIGHT


@dataclass(frozen=True, slots=True)
class Arrow:
    """An SVG path from the waiting box to the one it waits on."""

    path: str
    label: str
    label_x: float
    label_y: float
    anchor: str = "middle"
    title: str = ""


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The drawing, in pixels."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float
    left_out: int
    """Number of boxes left out because there are too many."""


def wait_graph(diagnosis: Diagnosis, labels: Mapping[str, str]) -> WaitGraph | None:
    """The drawing of `diagnosis.wait_for`; None if no rank waits on another.

    `labels` maps group names to the labels shown to users (see `wait_bundles.group_labels`).
    """
    joined = bundles(diagnosis.wait_for)
    if not joined:
        return None
    classes, edges = condensed(joined)
    shown = _nearest(classes, diagnosis.culprits)
    layers = _layers(shown, edges, classes, diagnosis.culprits)
    boxes = _placed(classes, layers, diagnosis.culprits)
    drawn = [(a, b) for a, b in edges if a in boxes and b in boxes]
    arrows = []
    for a, b in drawn:
        bundle = edges[a, b]
        group = plain(labels.get(bundle.group, bundle.group) or "default", 80)
        full = f"{operation(bundle.op or None, bundle.seq)} · {group}"
        few = len(drawn) <= _LABELLED
        text = full if len(full) <= _LABEL else operation(bundle.op or None, bundle.seq)[:_LABEL]
        arrow = _arrow(boxes[a], boxes[b], text if few else "", (b, a) in edges)
        arrows.append(replace(arrow, title=f"{boxes[a].label} → {boxes[b].label}: {full}"))
    arrows = _clear(arrows)
    lowest = [a.label_y + 6 for a in arrows if a.label]
    return WaitGraph(
        tuple(boxes.values()),
        tuple(arrows),
        max([b.x + b.width for b in boxes.values()] + [_text_end(a) for a in arrows]) + _PAD,
        max([b.y + b.height + 20 for b in boxes.values()] + lowest),
        len(classes) - len(boxes),
    )


def condensed(
    joined: Sequence[Bundle],
) -> tuple[list[tuple[int, ...]], dict[tuple[int, int], Bundle]]:
    """Classes of ranks in the same position, and the waits between classes."""
    position: dict[int, tuple[list[int], list[int]]] = {}
    for i, bundle in enumerate(joined):
        for rank in bundle.waiters:
            position.setdefault(rank, ([], []))[0].append(i)
        for rank in bundle.on:
            position.setdefault(rank, ([], []))[1].append(i)
    members: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank in sorted(position):
        outward, inward = position[rank]
        members.setdefault((tuple(outward), tuple(inward)), []).append(rank)
    keys = list(members)
    waiting: dict[int, list[int]] = {}
    awaited: dict[int, list[int]] = {}
    for c, (out, into) in enumerate(keys):
        for i in out:
            waiting.setdefault(i, []).append(c)
        for i in into:
            awaited.setdefault(i, []).append(c)
    edges = {
        (a, b): joined[i]
        for i in range(len(joined))
        for a in waiting.get(i, [])[:_LIMIT]
        for b in awaited.get(i, [])[:_LIMIT]
        if a != b
    }
    return [tuple(members[k]) for k in keys], edges


def _nearest(classes: Sequence[tuple[int, ...]], culprits: Sequence[int]) -> list[int]:
    """At most `_LIMIT` classes: those of culprits first, then the largest."""
    guilty = set(culprits)
    order = sorted(
        range(len(classes)), key=lambda c: (not guilty & set(classes[c]), -len(classes[c]), c)
    )
    return order[:_LIMIT]


def _layers(
    shown: Sequence[int],
    edges: dict[tuple[int, int], Bundle],
    classes: Sequence[tuple[int, ...]],
    culprits: Sequence[int],
) -> dict[int, int]:
    """Number of waits between each class and the nearest cause."""
    inside = [(a, b) for a, b in edges if a in set(shown) and b in set(shown)]
    waiting = {a for a, _ in inside}
    roots = [c for c in shown if c not in waiting]
    if not roots:
        guilty = set(culprits)
        roots = [c for c in shown if guilty & set(classes[c])] or list(shown[:1])
    layer = dict.fromkeys(roots, 0)
    frontier = list(roots)
    while frontier:
        reached = []
        for a, b in inside:
            if b in frontier and a not in layer:
                layer[a] = layer[b] + 1
                reached.append(a)
        frontier = reached
    deepest = max(layer.values(), default=0)
    for c in shown:
        layer.setdefault(c, deepest + 1)
    return layer


def _placed(
    classes: Sequence[tuple[int, ...]], layers: dict[int, int], culprits: Sequence[int]
) -> dict[int, Box]:
    guilty = set(culprits)
    columns: dict[int, list[int]] = {}
    for c in sorted(layers, key=lambda c: classes[c]):
        columns.setdefault(layers[c], []).append(c)
    tallest = max(len(column) for column in columns.values())
    boxes: dict[int, Box] = {}
    x = _PAD
    for layer in sorted(columns, reverse=True):
        column = columns[layer]
        texts = {c: named(classes[c], 26) for c in column}
        width = max(len(t) for t in texts.values()) * _CHAR + 24
        top = _PAD + (tallest - len(column)) * (_HEIGHT + _GAP_Y) / 2
        for i, c in enumerate(column):
            mark = bool(guilty & set(classes[c]))
            y = top + i * (_HEIGHT + _GAP_Y)
            boxes[c] = Box(classes[c], texts[c], mark, x, y, width)
        x += width + _GAP_X
    return boxes


def _clear(arrows: Sequence[Arrow]) -> list[Arrow]:
    """The arrows, with labels moved down where they would overlap."""
    out = list(arrows)
    placed: list[Arrow] = []
    for i in sorted(range(len(out)), key=lambda i: out[i].label_y):
        arrow = out[i]
        while arrow.label and any(_touch(arrow, other) for other in placed):
            arrow = replace(arrow, label_y=arrow.label_y + 2)
        if arrow.label:
            placed.append(arrow)
        out[i] = arrow
    return out


def _touch(a: Arrow, b: Arrow) -> bool:
    beside = _text_start(a) > _text_end(b) or _text_start(b) > _text_end(a)
    return not beside and abs(a.label_y - b.label_y) < _LINE


def _text_start(arrow: Arrow) -> float:
    return arrow.label_x - (0 if arrow.anchor == "start" else len(arrow.label) * 6.4 * 0.5)


def _text_end(arrow: Arrow) -> float:
    return arrow.label_x + len(arrow.label) * 6.4 * (1 if arrow.anchor == "start" else 0.5)


def _arrow(a: Box, b: Box, label: str, both_ways: bool) -> Arrow:
    """The arrow from `a` to `b`; curved if they share a column or point at each other."""
    if a.x == b.x:  # same column: curves on the right, the upward one outside
        down = a.y < b.y
        side, reach = a.x + a.width, 44.0 if down else 96.0
        y1, y2 = a.y + a.height / 2, b.y + b.height / 2
        bow, nudge = side + reach, 8 if down else -8
        path = (
            f"M{side:.0f} {y1 + nudge:.0f}C{bow:.0f} {y1 + nudge:.0f}"
            f" {bow:.0f} {y2 + nudge:.0f} {side:.0f} {y2 + nudge:.0f}"
        )
        y = (y1 + y2) / 2 + (14 if down else -6)
        return Arrow(path, label, side + 0.75 * reach + 8, y, "start")
    forward = a.x < b.x
    x1, x2 = (a.x + a.width, b.x) if forward else (a.x, b.x + b.width)
    y1, y2 = a.y + a.height / 2, b.y + b.height / 2
    lift = (-8 if forward else 8) if both_ways else 0
    middle = (x1 + x2) / 2
    path = (
        f"M{x1:.0f} {y1 + lift:.0f}C{middle:.0f} {y1 + lift:.0f}"
        f" {middle:.0f} {y2 + lift:.0f} {x2:.0f} {y2 + lift:.0f}"
    )
    below = both_ways and not forward
    return Arrow(path, label, middle, (y1 + y2) / 2 + lift + (15 if below else -6))
