"""Interns the stacks of a Flight Recorder dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import Entries, pick, values_of
from hangscope.trace.flight_recorder.intern import index_repeating
from hangscope.trace.model import Frame, Stack

MAX_FRAMES = 256

_FRAME_FIELDS: Callable[[Any], tuple[Any, ...]] = itemgetter("name", "filename", "line")
_PROBE = 64
_FLAT = frozenset({str, int})

Fields = tuple[tuple[Any, ...], ...]
"""Name, file and line of each frame of a stack, as read."""
_MADE_BEFORE: dict[tuple[str, str, int], Frame] = {}
_STACKS_BEFORE: dict[Fields, Stack] = {}
"""Shared by all dumps that this process reads: the ranks of a job run the same code."""
_MAX_MADE, _MAX_STACKS, _MAX_CHARACTERS = 32_768, 4_096, 600


class Stacks:
    """The distinct stacks of one dump; `table` holds each once, innermost frame first.

    Frames are looked up by identity if the pickle shares objects (one frame is one object, however
    often it is used), else by value.
    """

    def __init__(self) -> None:
        self.table: list[Stack] = []
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_fields: dict[tuple[Any, ...], int] = {}
        self._by_stack: dict[Stack, int] = {}
        self._plain: dict[int, list[Any]] = {}
        """For each stack, a list as it was read, if it contains nothing but flat dictionaries."""
        self._long: dict[int, int] = {}
        self._seen = 0
        self._misses = 0

    def column(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Index into `table` per entry; -1 if an entry has no frames."""
        name = pick(entries, "frames", "stack", "stack_trace", "traceback")
        if name is None:
            return np.full(len(entries), -1, np.int32)
        return index_repeating(values_of(entries, name), self.index, self._plain)

    def index(self, frames: Any) -> int:
        """The index of one entry's frames."""
        if not frames or type(frames) not in (list, tuple):
            return self._from_text(frames) if isinstance(frames, str) and frames else -1
        if len(frames) > MAX_FRAMES:
            # Object ids stay valid: the whole dump is kept while its columns are built.
            known = self._long.get(id(frames))
            if known is None:
                known = self._long[id(frames)] = self._intern(frames[:MAX_FRAMES])
            return known
        self._seen += 1
        if self._misses * 2 > self._seen and self._seen > _PROBE:
            return self._by_value(frames)  # this dump does not share frame objects
        key = tuple(map(id, frames))
        known = self._by_frames.get(key)
        if known is None:
            self._misses += 1
            known = self._by_frames[key] = self._by_value(frames)
        return known

    def _by_value(self, frames: Sequence[Any]) -> int:
        try:
            key = tuple(map(_FRAME_FIELDS, frames))
            known = self._by_fields.get(key)
        except (KeyError, TypeError, IndexError):
            return self._intern(frames)
        if known is None:
            known = self._by_fields[key] = self._intern_shared(key, frames)
        return known

    def _intern_shared(self, key: Fields, frames: Sequence[Any]) -> int:
        """Like `_intern`, for frames that may equal a stack in another rank's dump."""
        stack = _STACKS_BEFORE.get(key)
        if stack is None:
            index = self._intern(frames)
            stack = self.table[index]
            if stack == key:  # no field had to be corrected
                if len(_STACKS_BEFORE) >= _MAX_STACKS:
                    _STACKS_BEFORE.clear()
                _STACKS_BEFORE[key] = stack
            return index
        index = self._add(stack)
        if type(frames) is list and {3}.issuperset(map(len, frames)):
            self._plain.setdefault(index, frames)  # frames have only name, file and line
        return index

    def _intern(self, frames: Sequence[Any]) -> int:
        index = self._add(tuple([self._frame(frame) for frame in frames]))
        if type(frames) is list and index not in self._plain and all(map(_is_flat, frames)):
            self._plain[index] = frames
        return index

    def _add(self, stack: Stack) -> int:
        known = self._by_stack.get(stack)
        if known is None:
            known = self._by_stack[stack] = len(self.table)
            self.table.append(stack)
        return known

    def _frame(self, frame: Any) -> Frame:
        if isinstance(frame, dict):
            name = frame.get("name", frame.get("func", frame.get("function")))
            file, line = frame.get("filename", frame.get("file")), frame.get("line")
        elif isinstance(frame, (list, tuple)) and len(frame) == 3:
            name, file, line = frame
        else:
            return Frame(clean.as_name(frame, "?"), "", 0)
        if type(name) is not str or type(file) is not str or type(line) is not int:
            return _made(name, file, line)
        known = _MADE_BEFORE.get((name, file, line))
        if known is None:
            known = _made(name, file, line)
            if len(name) + len(file) <= _MAX_CHARACTERS:
                if len(_MADE_BEFORE) >= _MAX_MADE:
                    _MADE_BEFORE.clear()
                _MADE_BEFORE[name, file, line] = known
        return known

    def _from_text(self, text: str) -> int:
        return self._add((Frame(clean.name(text[:300]), "", 0),))


def _made(name: Any, file: Any, line: Any) -> Frame:
    return Frame(clean.as_name(name, "?"), clean.as_name(file), clean.as_int(line, 0, low=0))


def _is_flat(frame: Any) -> bool:
    return type(frame) is dict and len(frame) < 16 and _FLAT.issuperset(map(type, frame.values()))
