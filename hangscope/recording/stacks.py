"""Python stacks: walked in a microsecond or two, interned once.

A training loop repeats its call sites. A stack is known by its code objects and the instruction
each of them is at; frames become text only the first time. The offsets of the innermost frames pick
a candidate, which is then compared frame by frame: that costs half of making a key of all frames.
"""

from __future__ import annotations

import struct
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from hangscope.ring.layout import ValueKind
from hangscope.ring.writer import RingWriter

MAX_FRAMES = 128
"""Innermost frames kept of a stack; deeper recursion is cut there."""
MAX_KNOWN_FRAMES = 250_000
"""Bound on the frames of all remembered stacks, 100 bytes each. A job with more (endlessly new
code, say) forgets them all and begins again; what is in the ring is found there."""

MAX_CANDIDATES = 1024
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
        self._candidates: dict[Site, Candidate] = {}
        self._main = threading.main_thread().ident

    def current(self, frame: FrameType | None) -> int:
        """Id of the stack that starts at ``frame`` (innermost), or 0."""
        if frame is None:
            return 0
        try:
            second = frame.f_back
            third = second.f_back  # type: ignore[union-attr]
            site = (frame.f_lasti, second.f_lasti, third.f_lasti)  # type: ignore[union-attr]
        except AttributeError:  # not so many frames
            return self._look_up(frame, None)
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
        return self._look_up(frame, site)

    def main_thread(self) -> int:
        """Id of the main thread's stack: what led to a call from a thread without Python frames."""
        if self._main is None:
            return 0
        return self.current(sys._current_frames().get(self._main))

    def _look_up(self, frame: FrameType, site: Site | None) -> int:
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
        identifier = known[0] if known is not None else self._intern(frame, identity)
        if len(self._candidates) >= MAX_CANDIDATES:
            self._candidates.clear()
        if site is not None:
            innermost = [code for code, _ in chain[:3]]
            self._candidates[site] = (innermost, chain[3:], at is None, identifier)
        return identifier

    def _intern(self, frame: FrameType | None, identity: tuple[int, ...]) -> int:
        ids: list[int] = []
        codes: list[CodeType] = []
        while frame is not None and len(codes) < MAX_FRAMES:
            code = frame.f_code
            text = f"{code.co_name}\x00{code.co_filename}\x00{frame.f_lineno or 0}"
            codes.append(code)
            value = text.encode("utf-8", "replace")
            ids.append(self._ring.intern(ValueKind.FRAME, value, essential=False))
            frame = frame.f_back
        identifier = 0
        if ids and all(ids):
            packed = struct.pack(f"={len(ids)}I", *ids)
            identifier = self._ring.intern(ValueKind.STACK, packed, essential=False)
        # Remembered also where there was no room: a full area must not make every call slow.
        if self._known_frames + len(codes) > MAX_KNOWN_FRAMES:
            self._known.clear()
            self._known_frames = 0
        self._known[identity] = (identifier, codes)
        self._known_frames += len(codes)
        return identifier
