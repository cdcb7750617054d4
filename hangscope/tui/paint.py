"""Draws one rank's row of the timeline as characters; pure, and only the visible columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style

from hangscope.report import palette
from hangscope.report.escape import plain
from hangscope.report.palette import KINDS, kind_of
from hangscope.report.spans import End
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, WAITING

EMPTY, OPEN, ABSENT, PARTED = 0, 100, 101, 102
_CODES = {kind: i + 1 for i, kind in enumerate(KINDS)}
_LETTERS = {
    "reduce": "R",
    "gather": "G",
    "scatter": "S",
    "exchange": "A",
    "broadcast": "B",
    "barrier": "H",
    "p2p": "P",
    "other": "O",
}
BAR, WAIT, GAP = "▆", "░", "·"

_COLOURS = {
    "reduce": "#3d9be0",
    "gather": "#1fb587",
    "scatter": "#7cc8f0",
    "exchange": "#d78fb8",
    "broadcast": "#cfc04a",
    "barrier": "#a5abb5",
    "p2p": "#a48be8",
    "other": "#8593a6",
}


def kind_style(kind: str) -> Style:
    """The style of a kind of operation on a dark terminal background."""
    return Style(color=_COLOURS[kind])


OPEN_STYLE = Style(color=WAITING)
ABSENT_STYLE = Style(color=CULPRIT, bold=True)
CULPRIT_STYLE = Style(color=CULPRIT, bold=True)
PARTED_STYLE = Style(color=palette.CULPRIT)


def glyph(kind: str, letters: bool) -> str:
    """The character that draws a completed operation; a letter if there is no colour."""
    return _LETTERS[kind] if letters else BAR


@dataclass(frozen=True, slots=True)
class Window:
    """The visible time range: `width` columns of `scale_ns` each, from `left_ns`."""

    left_ns: int
    scale_ns: int
    width: int

    def column(self, ns: int) -> int:
        """The column of time `ns`; may be off the screen."""
        return (ns - self.left_ns) // self.scale_ns

    def at(self, column: int) -> int:
        """The time in the middle of `column`."""
        return self.left_ns + column * self.scale_ns + self.scale_ns // 2

    @property
    def right_ns(self) -> int:
        """The end of the last column."""
        return self.left_ns + self.width * self.scale_ns


def cells(
    snapshot: Snapshot, rank: int, window: Window
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """(record or -1, code) for each column. Completed operations hide unfinished ones."""
    records = np.full(window.width, -1, np.int64)
    codes = np.zeros(window.width, np.uint8)
    lo, hi = snapshot.rows(rank)
    start, end = snapshot.timing.start_ns[lo:hi], snapshot.timing.end_ns[lo:hi]
    seen = np.flatnonzero((end >= window.left_ns) & (start < window.right_ns) & (start > 0))
    if len(seen):
        first = np.clip((start[seen] - window.left_ns) // window.scale_ns, 0, window.width - 1)
        last = np.clip(-((window.left_ns - end[seen]) // window.scale_ns), 1, window.width)
        last = np.maximum(last, first + 1)
        is_open = snapshot.timing.end[lo:hi][seen] == End.OPEN
        if is_open.any():  # all of them reach the end, so the latest to begin covers the rest
            records[first[is_open]] = lo + seen[is_open]
            at = np.maximum.accumulate(np.where(records >= 0, np.arange(window.width), -1))
            at[int(last[is_open].max()) :] = -1
            records[:] = np.where(at >= 0, records[at], -1)
            codes[at >= 0] = OPEN
        _finished(snapshot, lo + seen[~is_open], first[~is_open], last[~is_open], records, codes)
    return records, codes


def _finished(
    snapshot: Snapshot,
    rows: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    codes: npt.NDArray[np.uint8],
) -> None:
    """Draw finished operations, long ones first so that short ones stay visible."""
    signatures = snapshot.trace.records["signature"][rows]
    table = [_CODES[kind_of(s.op)] for s in snapshot.trace.signatures] + [_CODES["other"]]
    kinds = np.asarray(table, np.uint8)[signatures]
    wide = last - first > 1
    order = np.flatnonzero(wide)
    for i in order[np.argsort(-(last - first)[order], kind="stable")].tolist():
        records[first[i] : last[i]] = rows[i]
        codes[first[i] : last[i]] = kinds[i]
    records[first[~wide]] = rows[~wide]
    codes[first[~wide]] = kinds[~wide]


def absence(snapshot: Snapshot, rank: int) -> tuple[int, str] | None:
    """(start, what it did instead) for a rank that issued nothing where the others wait."""
    side = snapshot.side_of(rank)
    if side is None or side.op is not None:
        return None
    lo, hi = snapshot.rows(rank)
    ended = snapshot.timing.end_ns[lo:hi]
    if lo < hi and bool((snapshot.timing.end[lo:hi] == End.OPEN).any()):
        return None
    since = int(ended.max()) if lo < hi else snapshot.timing.first_ns
    report = snapshot.reports.get(rank)
    state = report.state if report and report.state != "unknown" else ""
    return since, plain(side.activity or state, 60)


def row(
    snapshot: Snapshot,
    rank: int,
    window: Window,
    *,
    letters: bool = False,
    cursor: int | None = None,
    base: Style | None = None,
) -> list[Segment]:
    """The row of `rank` as segments, exactly `window.width` columns wide.

    `letters` draws operations by letter instead of colour, `cursor` is the record to highlight, and
    `base` is the background style.
    """
    base = base or Style()
    records, codes = cells(snapshot, rank, window)
    text = np.full(window.width, " ", "<U1")
    by_code = {code: kind for kind, code in _CODES.items()}
    for code in np.unique(codes).tolist():
        if code in by_code:
            text[codes == code] = glyph(by_code[code], letters)
    text[codes == OPEN] = WAIT
    gone = absence(snapshot, rank)
    if gone is not None:
        columns = np.arange(window.width)
        until = window.column(snapshot.timing.last_ns)
        where = (codes == EMPTY) & (columns > window.column(gone[0])) & (columns <= until)
        text[where], codes[where] = GAP, ABSENT
    if snapshot.divergence_ns is not None:
        column = window.column(snapshot.divergence_ns)
        if 0 <= column < window.width and codes[column] in (EMPTY, ABSENT):
            text[column], codes[column] = "│", PARTED
    _labels(snapshot, records, codes, text, gone)
    return _segments(text, codes, records, by_code, cursor, base)


def _labels(
    snapshot: Snapshot,
    records: npt.NDArray[np.int64],
    codes: npt.NDArray[np.uint8],
    text: npt.NDArray[np.str_],
    gone: tuple[int, str] | None,
) -> None:
    """Write names into bars that are wide enough."""
    key = records * 256 + codes
    edges = np.flatnonzero(np.r_[True, key[1:] != key[:-1], True])
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        room = end - begin
        if codes[begin] == ABSENT and gone is not None:
            label = f" {gone[1]} "
        elif codes[begin] not in (EMPTY, PARTED) and records[begin] >= 0 and room >= 8:
            label = f" {plain(snapshot.label(int(records[begin])), 40)} "
            if len(label) > room - 4:
                label = f" #{snapshot.seq(int(records[begin]))} "
        else:
            continue
        if label.strip() and len(label) <= room - 3:
            text[begin + 2 : begin + 2 + len(label)] = list(label)


def _segments(
    text: npt.NDArray[np.str_],
    codes: npt.NDArray[np.uint8],
    records: npt.NDArray[np.int64],
    by_code: dict[int, str],
    cursor: int | None,
    base: Style,
) -> list[Segment]:
    chosen = (records == cursor) if cursor is not None else np.zeros(len(codes), bool)
    key = codes.astype(np.int64) * 2 + chosen
    edges = np.flatnonzero(np.r_[True, key[1:] != key[:-1], True])
    out = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        code = int(codes[begin])
        if code in by_code:
            style = base + kind_style(by_code[code])
        else:
            style = base + {OPEN: OPEN_STYLE, ABSENT: ABSENT_STYLE, PARTED: PARTED_STYLE}.get(
                code, Style()
            )
        if chosen[begin]:
            style += Style(reverse=True)
        out.append(Segment("".join(text[begin:end].tolist()), style))
    return out
