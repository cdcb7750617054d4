"""``python -m hangscope.toolkit.launching.relay``: carries node reports through the job's TCPStore.

Started by a node's monitor when a job that spans nodes stands still. It is one more client of the
store every job already runs (``MASTER_ADDR``, ``MASTER_PORT``), writes under a prefix of its own
and never waits for a key: it cannot disturb the job. It ends when its standard input closes.

Nodes have no number on which all launchers agree, and a store may outlive the life of a job: its
next one must not read what the one before has left. So the node of rank 0, the first, makes up a
name for the meeting; the others put themselves on its list, and believe a verdict only once the
first node says that it has heard them.

Files in its directory: ``report`` and ``verdict`` (to send), ``in/node_K``, ``in/verdict`` and
``in/first`` (received; it says that the first node has heard this one), and ``in/clock_K`` (by how
many nanoseconds the clock of that node is ahead of this one's, less what its report has taken).
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

CONNECT_TIMEOUT_S = 30.0
PERIOD_S = 0.5
MOST_NODES = 1 << 16
"""Who counts more has written into the store what is none of its business."""
_MOST_DIGITS = 20
PREFIX = "hangscope/2"
"""The number is that of the protocol: other versions of HangScope keep to their own keys."""


def main() -> int:
    """Connect, then carry until the monitor closes our standard input."""
    parser = argparse.ArgumentParser(prog="python -m hangscope.toolkit.launching.relay")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--first", action="store_true")
    arguments = parser.parse_args()

    from torch._C._distributed_c10d import PrefixStore, TCPStore

    try:
        base = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
        )
        kind = FirstNode if arguments.first else OtherNode
        carrier = kind(PrefixStore(PREFIX, base), arguments.directory)
        while not _is_left(PERIOD_S):
            carrier.carry()
        carrier.carry()
    finally:
        if _is_left(0):  # a monitor that was killed cannot do it
            shutil.rmtree(arguments.directory, ignore_errors=True)
    return 0


def _is_left(wait_s: float) -> bool:
    """Whether the monitor has closed our standard input, or has ended."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


class Store(Protocol):
    """What is used of ``torch.distributed.Store``, which takes bytes though it does not say so."""

    def set(self, key: str, value: Any) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


class Carrier:
    """Moves files to and from a store.

    Parameters
    ----------
    store:
        Where the nodes leave what they have for each other.
    directory:
        Where the monitor puts and expects files.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._name = uuid.uuid4().hex

    def carry(self) -> None:
        """One round: send what changed, receive what is new."""
        raise NotImplementedError

    def _changed(self, name: str, known_ns: int) -> tuple[int, bytes] | None:
        """When a file to send was written, and what it holds; None: it is not there, or known."""
        path = self._directory / name
        try:
            changed_ns = path.stat().st_mtime_ns
            return None if changed_ns == known_ns else (changed_ns, path.read_bytes())
        except OSError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._directory / f".in-{name}"
        temporary.write_bytes(content)
        os.replace(temporary, self._directory / "in" / name)


class FirstNode(Carrier):
    """The node of rank 0: it collects the reports, and its verdict is for all."""

    def __init__(self, store: Store, directory: Path) -> None:
        super().__init__(store, directory)
        self._received: dict[int, bytes] = {}
        self._verdict_ns = 0
        store.set("first", self._name)

    def carry(self) -> None:
        if verdict := self._changed("verdict", self._verdict_ns):
            self._verdict_ns, content = verdict
            self._store.set(f"{self._name}/verdict", content)
        count = self._store.add(f"{self._name}/count", 0)
        for number in range(1, min(count, MOST_NODES) + 1):
            self._receive(number)

    def _receive(self, number: int) -> None:
        stamp_key, place = f"{self._name}/{number}/stamp", f"{self._name}/{number}"
        if not self._store.check([stamp_key, place]):
            return
        stamp = self._store.get(stamp_key)
        if self._received.get(number) == stamp:
            return
        self._received[number] = stamp
        node, _, sent_ns = stamp.partition(b" ")
        if not sent_ns.isdigit() or len(sent_ns) > _MOST_DIGITS:
            return  # nothing that a node of this protocol writes
        self._write(f"clock_{number}", str(int(sent_ns) - time.time_ns()).encode())
        self._write(f"node_{number}", self._store.get(place))
        self._store.set(f"{self._name}/{number}/heard", node)


class OtherNode(Carrier):
    """Any other node: it reports, and learns the verdict."""

    def __init__(self, store: Store, directory: Path) -> None:
        super().__init__(store, directory)
        self._meeting = ""
        self._number = 0
        self._sent_ns = 0
        self._is_heard = False

    def carry(self) -> None:
        if not self._is_heard and self._store.check(["first"]):
            self._join(self._store.get("first").decode("utf-8", "replace"))
        if not self._meeting:
            return
        place = f"{self._meeting}/{self._number}"
        if report := self._changed("report", self._sent_ns):
            self._sent_ns, content = report
            self._store.set(place, content)
            self._store.set(f"{place}/stamp", f"{self._name} {time.time_ns()}")
        if not self._is_heard and self._store.check([f"{place}/heard"]):
            self._is_heard = self._store.get(f"{place}/heard") == self._name.encode()
            self._write("first", b"")
        if self._is_heard and self._store.check([f"{self._meeting}/verdict"]):
            self._write("verdict", self._store.get(f"{self._meeting}/verdict"))

    def _join(self, meeting: str) -> None:
        """Take part in the first node's meeting, where it is another than before."""
        if meeting != self._meeting:
            self._meeting, self._sent_ns = meeting, 0
            self._number = self._store.add(f"{meeting}/count", 1)


if __name__ == "__main__":
    sys.exit(main())
