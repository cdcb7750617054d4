"""Reduce ops of recorded operations, read later, off the hot path.

The dispatcher passes the reduce op as a script object. Reading it takes half as long as making the
whole record (1.5 µs: a method of a custom class runs through the script interpreter). So the record
is written without it ("not known"), and the watcher completes it within half a second. A reduce op
never causes a hang, so nothing is lost if the process dies in between.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hangscope.recording.operations import OpSpec
from hangscope.recording.signatures import SignatureInterner, SignatureKey
from hangscope.ring.writer import RingWriter

MAX_UNREAD = 256
MAX_NEWEST = 32
"""If a job issues more than the watcher can read, only the first of each turn and the very last are
read. The last are few so that they stay in the CPU cache: with 256, freeing the oldest at every
call costs half a microsecond."""
REDUCE_OP = 4
"""Position of the reduce op in a `SignatureKey`."""

Unread = tuple[int, Any, SignatureKey, OpSpec]
"""Record id, reduce op as a script object, key of the signature without it."""


class Reductions:
    """Reduce ops still to be read; the hot path appends to ``unread``."""

    def __init__(self, ring: RingWriter, signatures: SignatureInterner) -> None:
        self._ring = ring
        self._signatures = signatures
        self.unread: deque[Unread] = deque()
        self.newest: deque[Unread] = deque(maxlen=MAX_NEWEST)
        self._tells: bool | None = None

    def read(self) -> bool:
        """Complete the records written so far; those dropped from the queue stay "not known"."""
        if not self.unread:
            return False
        for waiting in (self.unread, self.newest):
            for _ in range(len(waiting)):
                try:
                    unread = waiting.popleft()
                except IndexError:  # another thread is doing the same
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
