"""``python -m hangscope.toolkit.launching.relay``: carries node reports through the job's TCPStore.

Started by a node's monitor when a job that spans nodes stands still. It is one more client of the
store every job already runs (``MASTER_ADDR``, ``MASTER_PORT``), writes under a prefix of its own
and never waits for a key: it cannot disturb the job. It ends when its standard input closes.

Files in its directory: ``report`` and ``verdict`` (to send), ``in/node_K``, ``in/verdict`` and
``in/first`` (received; the last says that node 0 takes part).
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

CONNECT_TIMEOUT_S = 30.0
PERIOD_S = 0.5


def main() -> int:
    """Connect, then carry until the monitor closes our standard input."""
    parser = argparse.ArgumentParser(prog="python -m hangscope.toolkit.launching.relay")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    arguments = parser.parse_args()

    from torch._C._distributed_c10d import PrefixStore, TCPStore

    base = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
    )
    carrier = Carrier(
        PrefixStore(arguments.prefix, base), arguments.directory, arguments.node, arguments.nodes
    )
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        carrier.carry()
    carrier.carry()
    return 0


class Store(Protocol):
    """What is used of ``torch.distributed.Store``, which takes bytes though it does not say so."""

    def set(self, key: str, value: Any) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Carrier:
    """Moves files to and from a store.

    Parameters
    ----------
    store:
        Where the nodes leave what they have for each other.
    directory:
        Where the monitor puts and expects files.
    node, nodes:
        This node's rank and the number of nodes. Node 0 collects.
    """

    def __init__(self, store: Store, directory: Path, node: int, nodes: int) -> None:
        self._store = store
        self._directory = directory
        self._node = node
        self._nodes = nodes
        self._sent: dict[str, int] = {}
        self._received: dict[int, bytes] = {}
        self._hears_first = False

    def carry(self) -> None:
        """One round: send what changed, receive what is new."""
        self._send("report", f"node/{self._node}")
        if self._node == 0:
            self._send("verdict", "verdict")
            for node in range(1, self._nodes):
                self._receive(node)
            return
        if not self._hears_first and self._store.check(["node/0/stamp"]):
            self._write("first", b"")
            self._hears_first = True
        if self._store.check(["verdict"]):
            self._write("verdict", self._store.get("verdict"))

    def _send(self, name: str, key: str) -> None:
        path = self._directory / name
        try:
            changed_ns = path.stat().st_mtime_ns
            if self._sent.get(name) == changed_ns:
                return
            content = path.read_bytes()
        except OSError:
            return
        self._store.set(key, content)
        self._store.set(f"{key}/stamp", str(time.time_ns()))
        self._sent[name] = changed_ns

    def _receive(self, node: int) -> None:
        stamp_key = f"node/{node}/stamp"
        if not self._store.check([stamp_key]):
            return
        stamp = self._store.get(stamp_key)
        if self._received.get(node) == stamp:
            return
        self._write(f"node_{node}", self._store.get(f"node/{node}"))
        self._received[node] = stamp

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._directory / f".in-{name}"
        temporary.write_bytes(content)
        os.replace(temporary, self._directory / "in" / name)


if __name__ == "__main__":
    sys.exit(main())
