"""Python stacks: walked in a microsecond or two, interned once.

A training loop repeats its call sites, so a stack is looked up by the identity of its code objects
and instruction offsets; frames become text only the first time.
"""

from __future__ import annotations

import struct
import sys
import threading
from types import CodeType, FrameType

from hangscope.ring.layout import ValueKind
from hangscope.ring.writer import RingWriter

MAX_FRAMES = 128
MAX_DISTINCT = 20_000
"""Bound on remembered stacks: beyond it, new ones are looked up in the ring's area each time."""


class StackInterner:
    """Ids of Python stacks in the ring's value area."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._known: dict[tuple[int, ...], int] = {}
        # Keys hold ids of code objects; the objects are kept so that no id is ever reused.
        self._codes: dict[int, CodeType] = {}
        self._main = threading.main_thread().ident

    def current(self, frame: FrameType | None) -> int:
        """Id of the stack that starts at ``frame`` (innermost), or 0."""
        key: list[int] = []
        add = key.append
        innermost = frame
        while frame is not None:
            add(id(frame.f_code))
            add(frame.f_lasti)
            frame = frame.f_back
        identity = tuple(key)
        known = self._known.get(identity)
        if known is not None:
            return known
        return self._intern(innermost, identity)

    def main_thread(self) -> int:
        """Id of the main thread's stack: what led to a call from a thread without Python frames."""
        if self._main is None:
            return 0
        return self.current(sys._current_frames().get(self._main))

    def _intern(self, frame: FrameType | None, identity: tuple[int, ...]) -> int:
        ids: list[int] = []
        codes: list[CodeType] = []
        while frame is not None and len(ids) < MAX_FRAMES:
            code = frame.f_code
            codes.append(code)
            text = f"{code.co_name}\x00{code.co_filename}\x00{frame.f_lineno or 0}"
            frame_id = self._ring.intern(ValueKind.FRAME, text.encode("utf-8", "replace"))
            if not frame_id:
                return 0
            ids.append(frame_id)
            frame = frame.f_back
        if not ids:
            return 0
        identifier = self._ring.intern(ValueKind.STACK, struct.pack(f"={len(ids)}I", *ids))
        if identifier and len(self._known) < MAX_DISTINCT:
            for code in codes:
                self._codes[id(code)] = code
            while frame is not None:  # codes beyond MAX_FRAMES are part of the key too
                self._codes[id(frame.f_code)] = frame.f_code
                frame = frame.f_back
            self._known[identity] = identifier
        return identifier
