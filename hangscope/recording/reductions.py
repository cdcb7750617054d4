"""Which reduction an operation asked for: read later, off the hot path.

The dispatcher hands the reduce op over as a script object; asking it costs more than the rest of
the record together (1.5 µs: a method of a custom class runs through the script interpreter). So the
record is written without it, "not known", and completed within a tenth of a second by the watcher.
Nothing hangs because of a reduce op, so nothing is lost where a process dies in between.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hangscope.recording.signatures import SignatureInterner
from hangscope.ring.writer import RingWriter

MAX_UNREAD = 256
"""Few, so that what they hold stays in the processor's cache: with a thousand, freeing the oldest
at every call costs as much as the record."""
REDUCE_OP = 4
"""Position of the reduce op in a `SignatureKey`."""

Unread = tuple[int, Any, int]
"""Record id, reduce op as script object, id of the signature without it."""


class Reductions:
    """Reduce ops that are still to be read; ``unread`` is appended to by the hot path."""

    def __init__(self, ring: RingWriter, signatures: SignatureInterner) -> None:
        self._ring = ring
        self._signatures = signatures
        # Where the watcher cannot follow, the oldest fall out: they stay "not known".
        self.unread: deque[Unread] = deque(maxlen=MAX_UNREAD)

    def read(self) -> None:
        """Complete the records written so far."""
        unread = self.unread
        for _ in range(len(unread)):
            try:
                record_id, reduce_op, identifier = unread.popleft()
            except IndexError:  # another thread does the same
                return
            origin = self._signatures.origins.get(identifier)
            if origin is None:
                continue
            key, spec = origin
            if not reduce_op._has_method("op"):  # before torch 2.6 or so it does not tell
                continue
            number = int(reduce_op._get_method("op")())
            full: Any = (*key[:REDUCE_OP], number, *key[REDUCE_OP + 1 :])
            self._ring.set_signature(record_id, self._signatures.get(full, spec).identifier)
