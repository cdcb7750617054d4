"""Python stacks: walked in a microsecond or two, interned once.

A training loop repeats its call sites. A stack is known by its code objects and the instruction
each of them is at; frames become text only the first time. The offsets of the innermost frames pick
a candidate, which is then compared frame by frame: that costs half of making a key of all frames.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

from hangscope.recording.handled_exceptions import HandledExceptions, is_handling
from hangscope.recording.shutdown import Place, frame_places, interrupted_stack
from hangscope.ring.layout import SlotFlag, ValueKind
from hangscope.ring.writer import RingWriter

MAX_FRAMES = 128
"""Innermost frames kept of a stack; deeper recursion is cut there."""
MAX_KNOWN_FRAMES = 250_000
"""Bound on the frames of all remembered stacks, 100 bytes each. A job with more (endlessly new
code, say) forgets them all and begins again; what is in the ring is found there."""

MAX_CANDIDATES = 1024
LEAVING = 1 << 31
"""Added to the id of a stack on which the process is on its way out. It cannot be part of what the
ring interns: a ``finally`` clause has the same lines with and without an exception."""
HANDLING = 1 << 30
"""Added to the id of a stack on which another exception is handled."""
SAME_END_NS = 60 * 10**9
"""What leaves within a minute of another leaves for the same reason: a handler may be called more
than once, and what it was called from first is what counts."""
_LEAVING, _HANDLING = int(SlotFlag.LEAVING), int(SlotFlag.HANDLING)
Site = tuple[int, int, int]
Candidate = tuple[list[CodeType], list[tuple[CodeType, int]], bool, int]
"""The newest stack of a call site: the code of its three innermost frames, whose offsets are the
site; the frames above them; whether these are all; its id."""


class StackInterner:
    """Ids of Python stacks in the ring's value area."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        # Keys hold ids of code objects; the objects are kept beside, so that no id is ever reused.
        self._known: dict[tuple[int, ...], tuple[int, list[CodeType]]] = {}
        self._known_frames = 0
        self._candidates: dict[Site | None, Candidate] = {}
        self._main = threading.main_thread().ident
        self._left_ns = 0
        self._handled = HandledExceptions(ring)

    def current(self, frame: FrameType | None, *, own_thread: bool = True) -> int:
        """Id of the stack that starts at ``frame`` (innermost), or 0; perhaps with `LEAVING` or
        `HANDLING`, which `unmarked` takes off again.

        ``own_thread``: whether it is the calling thread's.
        """
        if frame is None:
            return 0
        site: Site | None
        try:
            second = frame.f_back
            third = second.f_back  # type: ignore[union-attr]
            site = (frame.f_lasti, second.f_lasti, third.f_lasti)  # type: ignore[union-attr]
        except AttributeError:  # not so many frames
            site = None  # and looked up below: in here an exception would seem to be handled
        candidate = self._candidates.get(site)
        if candidate is not None:
            (first_code, second_code, third_code), outer, whole, identifier = candidate
            if (
                frame.f_code is first_code
                and second.f_code is second_code  # type: ignore[union-attr]
                and third.f_code is third_code  # type: ignore[union-attr]
            ):
                at: Any = third
                try:
                    for code, offset in outer:
                        at = at.f_back
                        if at.f_lasti != offset or at.f_code is not code:
                            break
                    else:
                        if not whole or at.f_back is None:
                            return identifier
                except AttributeError:  # this stack ends here, the other goes on
                    pass
        return self._look_up(frame, site, own_thread)

    def main_thread(self) -> int:
        """Id of the main thread's stack: what led to a call from a thread without Python frames."""
        if self._main is None:
            return 0
        return self.current(sys._current_frames().get(self._main), own_thread=False)

    def unmarked(self, marked: int) -> tuple[int, int]:
        """The id without its mark, and the flag of a record that follows from it.

        Called where an operation is issued: what is being handled there is kept.
        """
        if marked & LEAVING:
            return marked - LEAVING, _LEAVING
        self._handled.note()
        return marked - HANDLING, _HANDLING

    def _look_up(self, frame: FrameType, site: Site | None, own_thread: bool) -> int:
        """The slow way, for a stack that is not its site's newest."""
        key: list[int] = []
        chain: list[tuple[CodeType, int]] = []
        at: FrameType | None = frame
        while at is not None and len(chain) < MAX_FRAMES:
            chain.append((at.f_code, at.f_lasti))
            key += (id(at.f_code), at.f_lasti)
            at = at.f_back
        identity = tuple(key)
        known = self._known.get(identity)
        identifier = known[0] if known is not None else self._first_seen(frame, own_thread)
        if known is None:
            self._remember(identity, [code for code, _ in chain], identifier)
        if len(self._candidates) >= MAX_CANDIDATES:
            self._candidates.clear()
        if site is not None:
            innermost = [code for code, _ in chain[:3]]
            self._candidates[site] = (innermost, chain[3:], at is None, identifier)
        return identifier

    def _first_seen(self, frame: FrameType, own_thread: bool) -> int:
        """Put a stack into the ring: its id, marked where an exception or the end is dealt with.

        That the mark is stable follows from the byte code, see `interrupted_stack`.
        """
        places = frame_places(frame)
        identifier = self._intern(places[:MAX_FRAMES])
        left = interrupted_stack(places, own_thread=own_thread)
        if left is None:
            return identifier | HANDLING if own_thread and is_handling() else identifier
        now_ns = time.time_ns()
        if left and now_ns - self._left_ns > SAME_END_NS:
            self._left_ns = now_ns
            self._ring.put_u4("left_stack", self._intern(left[:MAX_FRAMES]))
            self._ring.put_i8("left_ns", now_ns)
        return identifier | LEAVING

    def _intern(self, places: list[Place]) -> int:
        ids: list[int] = []
        for code, line in places:
            value = f"{code.co_name}\x00{code.co_filename}\x00{line}".encode("utf-8", "replace")
            ids.append(self._ring.intern(ValueKind.FRAME, value, essential=False))
        if not ids or not all(ids):
            return 0
        packed = struct.pack(f"={len(ids)}I", *ids)
        return self._ring.intern(ValueKind.STACK, packed, essential=False)

    def _remember(self, identity: tuple[int, ...], codes: list[CodeType], identifier: int) -> None:
        """Also where there was no room: a full area must not make every call slow."""
        if self._known_frames + len(codes) > MAX_KNOWN_FRAMES:
            self._known.clear()
            self._known_frames = 0
        self._known[identity] = (identifier, codes)
        self._known_frames += len(codes)
