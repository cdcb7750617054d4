"""Python stacks: walked in a microsecond or two, interned once.

A training loop repeats its call sites. A stack is identified by its code objects and the current
instruction in each; frames become text only the first time. The instruction offsets in the
innermost frames select a candidate, which is then compared frame by frame: half the cost of
building a key from all frames.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

from hangscope.recording.handled_exceptions import HandledExceptions, is_handling
from hangscope.recording.limits import MAX_FRAMES, MAX_KNOWN_FRAMES
from hangscope.recording.shutdown import Place, frame_places, interrupted_stack
from hangscope.ring.layout import SlotFlag, ValueKind
from hangscope.ring.writer import RingWriter

MAX_CANDIDATES = 1024
LEAVING = 1 << 31
"""Added to the id of a stack of a process that is shutting down. It cannot be part of the interned
value: a ``finally`` clause has the same lines with and without an exception."""
HANDLING = 1 << 30
"""Added to the id of a stack on which any other exception is being handled."""
SAME_END_NS = 60 * 10**9
"""Operations issued during shutdown within this time of each other have the same reason: a handler
may be called repeatedly, and what counts is the stack that its first call interrupted."""
_LEAVING, _HANDLING = int(SlotFlag.LEAVING), int(SlotFlag.HANDLING)
Site = tuple[int, int, int]
Candidate = tuple[list[CodeType], list[tuple[CodeType, int]], bool, int]
"""The newest stack of a call site (identified by the instruction offsets of its three innermost
frames): the code of these frames, the frames above them, whether those are all, the stack's id."""


class StackInterner:
    """Ids of Python stacks in the ring's value area."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        # Keys hold ids of code objects. Keeping the objects alive prevents reuse of an id.
        self._known: dict[tuple[int, ...], tuple[int, list[CodeType]]] = {}
        self._known_frames = 0
        self._candidates: dict[Site | None, Candidate] = {}
        self._main = threading.main_thread().ident
        self._left_ns = 0
        self._handled = HandledExceptions(ring)

    def current(self, frame: FrameType | None, *, own_thread: bool = True) -> int:
        """Id of the stack that starts at ``frame`` (innermost), or 0; it may be marked with
        `LEAVING` or `HANDLING`, which `unmarked` removes.

        ``own_thread``: whether the stack is the calling thread's.
        """
        if frame is None:
            return 0
        site: Site | None
        try:
            second = frame.f_back
            third = second.f_back  # type: ignore[union-attr]
            site = (frame.f_lasti, second.f_lasti, third.f_lasti)  # type: ignore[union-attr]
        except AttributeError:  # not so many frames
            site = None  # look it up below; in this clause an exception would seem to be handled
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
                except AttributeError:  # this stack ends here, the candidate does not
                    pass
        return self._look_up(frame, site, own_thread)

    def main_thread(self) -> int:
        """Id of the main thread's stack, for a call from a thread without Python frames."""
        if self._main is None:
            return 0
        return self.current(sys._current_frames().get(self._main), own_thread=False)

    def unmarked(self, marked: int) -> tuple[int, int]:
        """The id without its mark, and the record flag that the mark stands for.

        Called when an operation is issued; keeps the exception that is being handled there.
        """
        if marked & LEAVING:
            return marked - LEAVING, _LEAVING
        self._handled.note()
        return marked - HANDLING, _HANDLING

    def _look_up(self, frame: FrameType, site: Site | None, own_thread: bool) -> int:
        """The slow path, for a stack that is not the newest of its call site."""
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
        """Intern a new stack; returns its id, marked if it handles an exception or shuts down.

        The mark is the same at every call from there because of the byte code, see
        `interrupted_stack`.
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
        """Cache a stack even if the ring had no room: a full area must not slow down every call."""
        if self._known_frames + len(codes) > MAX_KNOWN_FRAMES:
            self._known.clear()
            self._known_frames = 0
        self._known[identity] = (identifier, codes)
        self._known_frames += len(codes)
