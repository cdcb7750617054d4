"""Which reduction an operation asked for: read later, off the hot path.

The dispatcher hands the reduce op over as a script object; asking it costs more than the rest of
the record together (1.5 µs: a method of a custom class runs through the script interpreter). So the
record is written without it, "not known", and completed within a tenth of a second by the watcher.
Nothing hangs because of a reduce op, so nothing is lost where a process dies in between.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hangscope.recording.operations import OpSpec
from hangscope.recording.signatures import SignatureInterner, SignatureKey
from hangscope.ring.writer import RingWriter

MAX_UNREAD = 1024
READ_AT_ONCE = 256
"""Read at each of the watcher's turns, so that it never holds the interpreter for long."""
REDUCE_OP = 4
"""Position of the reduce op in a `SignatureKey`."""

Unread = tuple[int, Any, SignatureKey, OpSpec]
"""Record id, reduce op as script object, signature key without it, spec."""


class Reductions:
    """Reduce ops that are still to be read; ``unread`` is appended to by the hot path."""

    def __init__(self, ring: RingWriter, signatures: SignatureInterner) -> None:
        self._ring = ring
        self._signatures = signatures
        # Where the watcher cannot follow, the oldest fall out: they stay "not known".
        self.unread: deque[Unread] = deque(maxlen=MAX_UNREAD)

    def read(self, limit: int = MAX_UNREAD) -> None:
        """Complete up to ``limit`` of the records written so far."""
        unread = self.unread
        for _ in range(min(limit, len(unread))):
            try:
                record_id, reduce_op, key, spec = unread.popleft()
            except IndexError:  # another thread does the same
                return
            number = int(reduce_op._get_method("op")())
            full: Any = (*key[:REDUCE_OP], number, *key[REDUCE_OP + 1 :])
            self._ring.set_signature(record_id, self._signatures.get(full, spec).identifier)
