"""``python -m hangscope.toolkit.launching.relay``: carries node reports through the job's TCPStore.

Started by a node's monitor when a job that spans nodes makes no progress. It is one more client of
the store that every job already runs (``MASTER_ADDR``, ``MASTER_PORT``), writes under its own
prefix and never waits for a key, so it cannot disturb the job. It ends when its standard input
closes.

Launchers do not number nodes consistently, and a store may outlive an attempt of the job, whose
successor must not read what it left behind. So the node of rank 0, the first, makes up a name for
the meeting. The others register in its list, and trust a verdict only once the first node
acknowledges that it has heard from them.

All messages are sealed (`hangscope.toolkit.launching.letters`). Files in its directory: ``notes``
(lines for the log), ``report`` and ``verdict`` (to send), ``in/node_K``, ``in/verdict`` and
``in/first`` (received; the last means that the first node has heard from this one), and
``in/clock_K`` (how many nanoseconds that node's clock is ahead of this one's, minus the time its
report has taken).
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from hangscope.ring.run_secret import RunSecret
from hangscope.toolkit.launching.letters import MAX_TOTAL_BYTES, Letters, Store
from hangscope.trace.processes.procfs import status_of

CONNECT_TIMEOUT_S = 30.0
PERIOD_S = 0.5
MOST_NODES = 1 << 16
"""Plausible maximum; a larger count in the store is not ours."""
_MOST_DIGITS = 20
MAX_VERDICT_BYTES = 4096
NO_SECRET = RunSecret()
_NAME = re.compile("[0-9a-f]{32}")
PREFIX = "hangscope/3"
"""Includes the protocol version, so that other versions of HangScope use other keys."""


def main() -> int:
    """Connect, then relay until the monitor closes our standard input."""
    parser = argparse.ArgumentParser(prog="python -m hangscope.toolkit.launching.relay")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--most-nodes", type=int, default=MOST_NODES)
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
        carrier = kind(
            PrefixStore(PREFIX, base),
            arguments.directory,
            secret=RunSecret.of(os.environ),
            most_nodes=arguments.most_nodes,
        )
        _limit_memory()
        while not _is_left(PERIOD_S):
            carrier.carry()
        carrier.carry()
    finally:
        if _is_left(0):  # a killed monitor cannot clean up itself
            shutil.rmtree(arguments.directory, ignore_errors=True)
    return 0


def _limit_memory() -> None:
    """Let a message that is far too large end this process and not fill the node's memory."""
    import resource

    used_kb = int(status_of(os.getpid()).get("VmData", "0 kB").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used_kb * 1024 + MAX_TOTAL_BYTES
    if used_kb and (hard == resource.RLIM_INFINITY or wanted < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _is_left(wait_s: float) -> bool:
    """Whether the monitor has closed our standard input, or has ended."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


class Carrier:
    """Moves files to and from a store.

    Parameters
    ----------
    store:
        The store through which the nodes exchange data.
    directory:
        Where the monitor writes and expects files.
    """

    def __init__(
        self,
        store: Store,
        directory: Path,
        *,
        secret: RunSecret = NO_SECRET,
        most_nodes: int = MOST_NODES,
    ) -> None:
        self._store = store
        self._directory = directory
        self._letters = Letters(store, secret, self._note)
        self._most_nodes = min(most_nodes, MOST_NODES)
        self._name = uuid.uuid4().hex

    def _note(self, line: str) -> None:
        """Leave a line for the monitor to print."""
        with open(self._directory / "notes", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def carry(self) -> None:
        """One round: send what changed, receive what is new."""
        raise NotImplementedError

    def _changed(self, name: str, known_ns: int) -> tuple[int, bytes] | None:
        """mtime and content of a file to send; None if it is missing or unchanged."""
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
    """The node of rank 0: collects the reports and sends the verdict to all."""

    def __init__(self, store: Store, directory: Path, **how: Any) -> None:
        super().__init__(store, directory, **how)
        self._received: dict[int, tuple[int, int]] = {}
        """When each node's newest report was sent, and how many bytes it has."""
        self._verdict_ns = 0
        self._letters.put("first", self._name.encode())

    def carry(self) -> None:
        if verdict := self._changed("verdict", self._verdict_ns):
            self._verdict_ns, content = verdict
            self._letters.put(f"{self._name}/verdict", content)
        count = self._store.add(f"{self._name}/count", 0)
        for number in range(1, min(count, self._most_nodes) + 1):
            self._receive(number)

    def _receive(self, number: int) -> None:
        stamp_key, place = f"{self._name}/{number}/stamp", f"{self._name}/{number}"
        if not self._store.check([stamp_key, place]):
            return
        node, _, sent = (self._letters.take(stamp_key) or b"").partition(b" ")
        if not sent.isdigit() or len(sent) > _MOST_DIGITS:
            return  # not written by a node of this protocol
        if int(sent) <= self._received.get(number, (0, 0))[0]:
            return
        report = self._letters.take(place)
        if report is None:
            return
        others = sum(size for key, (_, size) in self._received.items() if key != number)
        if others + len(report) > MAX_TOTAL_BYTES:
            self._letters.refuse(place, "all reports together are too large")
            return
        self._received[number] = int(sent), len(report)
        self._write(f"clock_{number}", str(int(sent) - time.time_ns()).encode())
        self._write(f"node_{number}", report)
        self._letters.put(f"{self._name}/{number}/heard", node)


class OtherNode(Carrier):
    """Any other node: sends its report and receives the verdict."""

    def __init__(self, store: Store, directory: Path, **how: Any) -> None:
        super().__init__(store, directory, **how)
        self._meeting = ""
        self._number = 0
        self._sent_ns = 0
        self._is_heard = False

    def carry(self) -> None:
        if not self._is_heard and self._store.check(["first"]):
            self._join((self._letters.take("first") or b"").decode("ascii", "replace"))
        if not self._meeting:
            return
        place = f"{self._meeting}/{self._number}"
        if report := self._changed("report", self._sent_ns):
            self._sent_ns, content = report
            self._letters.put(place, content)
            self._letters.put(f"{place}/stamp", f"{self._name} {time.time_ns()}".encode())
        if not self._is_heard and self._store.check([f"{place}/heard"]):
            self._is_heard = self._letters.take(f"{place}/heard") == self._name.encode()
            if self._is_heard:
                self._write("first", b"")
        if self._is_heard and self._store.check([f"{self._meeting}/verdict"]):
            verdict = self._letters.take(f"{self._meeting}/verdict")
            if verdict is not None:
                self._write("verdict", verdict[:MAX_VERDICT_BYTES])

    def _join(self, meeting: str) -> None:
        """Join the first node's meeting if it is a new one."""
        if meeting != self._meeting and _NAME.fullmatch(meeting):
            self._meeting, self._sent_ns = meeting, 0
            self._number = self._store.add(f"{meeting}/count", 1)


if __name__ == "__main__":
    sys.exit(main())
