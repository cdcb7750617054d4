"""Which reduction an operation asked for: read later, off the hot path.

The dispatcher hands the reduce op over as a script object; asking it costs as much as half of the
record (1.5 µs: a method of a custom class runs through the script interpreter). So the record is
written without it, "not known", and completed within half a second by the watcher. Nothing
hangs because of a reduce op, so nothing is lost where a process dies in between.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hangscope.recording.operations import OpSpec
from hangscope.recording.signatures import SignatureInterner, SignatureKey
from hangscope.ring.writer import RingWriter

MAX_UNREAD = 256
MAX_NEWEST = 32
"""Of a job that issues more than the watcher can read, the first of each of its turns and the very
last are read. The last are few, so that what they hold stays in the processor's cache: with 256,
freeing the oldest at every call costs half a microsecond."""
REDUCE_OP = 4
"""Position of the reduce op in a `SignatureKey`."""

Unread = tuple[int, Any, SignatureKey, OpSpec]
"""Record id, reduce op as script object, what the signature without it was made of."""


class Reductions:
    """Reduce ops that are still to be read; ``unread`` is appended to by the hot path."""

    def __init__(self, ring: RingWriter, signatures: SignatureInterner) -> None:
        self._ring = ring
        self._signatures = signatures
        self.unread: deque[Unread] = deque()
        self.newest: deque[Unread] = deque(maxlen=MAX_NEWEST)
        self._tells: bool | None = None

    def read(self) -> bool:
        """Complete the records written so far, if any; those that fell out stay "not known"."""
        if not self.unread:
            return False
        for waiting in (self.unread, self.newest):
            for _ in range(len(waiting)):
                try:
                    unread = waiting.popleft()
                except IndexError:  # another thread does the same
                    break
                self._read(*unread)
        return True

    def _read(self, record_id: int, reduce_op: Any, key: SignatureKey, spec: OpSpec) -> None:
        if self._tells is None:  # before torch 2.6 or so it does not
            self._tells = bool(reduce_op._has_method("op"))
        if self._tells:
            number = int(reduce_op._get_method("op")())
            full: Any = (*key[:REDUCE_OP], number, *key[REDUCE_OP + 1 :])
            self._ring.set_signature(record_id, self._signatures.get(full, spec).identifier)
