"""The exception that a rank is handling while it issues an operation.

A failing rank often runs an ``except`` or ``finally`` clause before its exception is printed, and
that clause may communicate: a barrier, a last checkpoint. As the other ranks wait elsewhere, the
clause never ends and the exception is never printed.
"""

from __future__ import annotations

import sys
import threading

from hangscope.recording.exceptions import describe_exception
from hangscope.ring.writer import RingWriter

MOST_KEPT = 128
"""Limit on different exceptions put into the ring, which keeps each for good."""
_MOST_FRAMES = 16
_MOST_TEXT = 1000
_PLAIN = (str, int, float, bool, bytes, type(None))


class HandledExceptions:
    """Keeps the newest one in the ring, as text: holding the object would keep its frames alive."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._newest: tuple[int, int, type, tuple[object, ...]] | None = None
        self._kept: set[bytes] = set()

    def note(self) -> None:
        """Keep the exception that the calling thread is handling now."""
        error = sys.exc_info()[1]
        if error is None:
            return
        # A whole program may run inside an ``except`` clause. Describe its exception only once, as
        # ``__str__`` may be the job's own code. Another exception with the same address, traceback
        # address, type and plain arguments would read nearly the same.
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
    """Whether the calling thread is handling an exception."""
    return sys.exc_info()[1] is not None


def _plain(args: tuple[object, ...]) -> tuple[object, ...]:
    """Those arguments of an exception that can be kept and compared without running job code."""
    kept = (value for value in args[:8] if type(value) in _PLAIN)
    return tuple(v[:_MOST_TEXT] if isinstance(v, (str, bytes)) else v for v in kept)
