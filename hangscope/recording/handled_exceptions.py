"""The exception that a rank is handling while it issues an operation.

A rank that fails often has an ``except`` or ``finally`` clause to go through before anybody hears
of it, and what runs there may communicate: a barrier, a last checkpoint. The others wait elsewhere,
so the clause never ends, and the exception is never printed.
"""

from __future__ import annotations

import sys
import threading

from hangscope.recording.exceptions import describe_exception
from hangscope.ring.writer import RingWriter

MOST_KEPT = 128
"""So many different exceptions are put into the ring, which keeps each for good."""
_MOST_FRAMES = 16
_MOST_TEXT = 1000
_PLAIN = (str, int, float, bool, bytes, type(None))


class HandledExceptions:
    """Keeps the newest of them in the ring, as text: to hold it would keep its frames alive."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._newest: tuple[int, int, type, tuple[object, ...]] | None = None
        self._kept: set[bytes] = set()

    def note(self) -> None:
        """Keep what the calling thread handles now."""
        error = sys.exc_info()[1]
        if error is None:
            return
        # A whole program may run in an ``except`` clause: what it handles is described once, as its
        # ``__str__`` may be code of the job's. Another one at the same address, with the same words
        # where these are no more than text and numbers, reads nearly the same.
        identity = (id(error), id(error.__traceback__), type(error), _plain(error.args))
        if identity == self._newest:
            return
        self._newest = identity
        described = describe_exception(
            type(error),
            error,
            error.__traceback__,
            threading.current_thread(),
            most_frames=_MOST_FRAMES,
            most_text=_MOST_TEXT,
        )
        known = described in self._kept or len(self._kept) < MOST_KEPT
        if known:
            self._kept.add(described)
        self._ring.record_handled(described if known else None)


def is_handling() -> bool:
    """Whether the calling thread handles an exception."""
    return sys.exc_info()[1] is not None


def _plain(args: tuple[object, ...]) -> tuple[object, ...]:
    """What an exception was made with, if it can be kept and compared without the job's code."""
    kept = (value for value in args[:8] if type(value) in _PLAIN)
    return tuple(v[:_MOST_TEXT] if isinstance(v, (str, bytes)) else v for v in kept)
