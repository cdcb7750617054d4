"""Reads the stacks of a Flight Recorder dump."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import Entries, values_of
from hangscope.trace.flight_recorder.intern import Row, ValueTable
from hangscope.trace.model import NONE, Frame, Stack

MAX_FRAMES = 256
_KEPT_FRAMES = 32_768
_MADE_BEFORE: dict[bytes, Stack | None] = {}


class Stacks(ValueTable[Stack]):
    """The distinct stacks of one dump, innermost frame first."""

    def __init__(self) -> None:
        super().__init__(_stack, _MADE_BEFORE)

    def of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Index into `table` per entry; -1 if an entry has no frames."""
        if "frames" not in entries.names:
            return np.full(len(entries), NONE, np.int32)
        return self.column([(_bounded(frames),) for frames in values_of(entries, "frames")])


def _bounded(frames: Any) -> Any:
    """The frames, or the first of very many."""
    return frames[:MAX_FRAMES] if type(frames) is list and len(frames) > MAX_FRAMES else frames


def _stack(row: Row) -> Stack | None:
    (frames,) = row
    return tuple(map(_frame, frames)) if frames and isinstance(frames, (list, tuple)) else None


def _frame(frame: Any) -> Frame:
    if not isinstance(frame, dict):
        return Frame(clean.as_name(frame, "?"), "", 0)
    name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
    plain = type(name) is str and type(file) is str and type(line) is int
    return (_known if plain else _made)(name, file, line)


def _made(name: Any, file: Any, line: Any) -> Frame:
    return Frame(clean.as_name(name, "?"), clean.as_name(file), clean.as_int(line, 0, low=0))


_known = lru_cache(_KEPT_FRAMES)(_made)
