"""What a relay puts into the job's store and takes out of it: sealed, and of limited size.

Whoever reaches the store can write into it. With `hangscope.ring.run_secret.VARIABLE` set on all
nodes, only those who know it can write what counts here. Without it the seal only shows that a
message is whole and of this protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hangscope.ring.run_secret import SEAL_CHARACTERS, RunSecret

MAX_MESSAGE_BYTES = 16 << 20
"""The report of a node takes about a hundred bytes per rank, more if all of it is asked for."""
MAX_TOTAL_BYTES = 256 << 20
"""Of the reports that one node keeps from all others."""
MAX_NOTES = 20
_PUBLIC = "hangscope"


class Store(Protocol):
    """The used part of ``torch.distributed.Store``, which accepts bytes despite its signature."""

    def set(self, key: str, value: Any) -> None: ...
    def get(self, key: str) -> bytes: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


class Letters:
    """Sends and receives through a store.

    Parameters
    ----------
    store:
        The store through which the nodes exchange data.
    secret:
        What the nodes of this job know and others do not, if there is such a thing.
    note:
        Called with a line about each message that is refused, up to `MAX_NOTES`.
    """

    def __init__(self, store: Store, secret: RunSecret, note: Callable[[str], None]) -> None:
        self._store = store
        self._secret = secret if secret.is_shared else RunSecret(_PUBLIC)
        self._note = note
        self._noted: set[str] = set()

    def put(self, key: str, content: bytes) -> None:
        """Send; what is larger than `MAX_MESSAGE_BYTES` stays here."""
        if len(content) > MAX_MESSAGE_BYTES:
            self.refuse(key, f"not sent, as it has over {MAX_MESSAGE_BYTES >> 20} MiB")
            return
        self._store.set(key, self._secret.seal(key, _digest(content)).encode() + content)

    def take(self, key: str) -> bytes | None:
        """Receive what is there; None if there is nothing, or it is refused."""
        return self.take_all([key])[0]

    def take_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Receive several at once; None for each that is not there or is refused."""
        wanted = list(keys)
        if not wanted or not self._store.check(wanted):
            wanted = [key for key in wanted if self._store.check([key])]
        raws = dict(zip(wanted, self._store.multi_get(wanted) if wanted else (), strict=True))
        return [self._opened(key, raws[key]) if key in raws else None for key in keys]

    def _opened(self, key: str, raw: bytes) -> bytes | None:
        seal, content = raw[:SEAL_CHARACTERS], raw[SEAL_CHARACTERS:]
        if len(content) > MAX_MESSAGE_BYTES:
            self.refuse(key, f"it has over {MAX_MESSAGE_BYTES >> 20} MiB")
        elif not self._secret.is_sealed(seal.decode("latin-1"), key, _digest(content)):
            self.refuse(key, "it is not from a node of this job")
        else:
            return content
        return None

    def refuse(self, key: str, why: str) -> None:
        """Say once that the message of this key does not count."""
        if key not in self._noted and len(self._noted) < MAX_NOTES:
            self._noted.add(key)
            self._note(f"a message between nodes is ignored ({key.rpartition('/')[2]}): {why}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
