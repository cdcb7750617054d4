"""``python -m hangscope.toolkit.launching.relay``: carries node reports through the job's TCPStore.

Started by a node's monitor once the job has met. It is one more client of the store that every job
already runs (``MASTER_ADDR``, ``MASTER_PORT``), writes under its own prefix and never waits for a
key, so it cannot disturb the job. It ends when its standard input closes; what comes through that
only tells it to begin the next round at once.

`hangscope.toolkit.launching.tree` says how the nodes report. Files in its directory, each replaced
as a whole:

``report``, ``found``   this node's digest, and what its monitor has found, to send to all
``still``               touched: the report holds still
``verdict``, ``hosts``  the first node's, to send to all
``awake``               the ranks make no progress: look more often
``notes``               lines for the log
``in/node_K``, ``in/group_G``, ``in/heard``  (on the first node) what has come, and from whom
``in/told``, ``in/hosts``                    (elsewhere) what the first node has said
``in/found``            what another node has found
``in/beat``             touched after every round in which the store has answered
``in/lost``             since when the store does not answer, and what the error was
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from hangscope.ring.run_secret import RunSecret
from hangscope.toolkit.launching.letters import MAX_TOTAL_BYTES, Store
from hangscope.toolkit.launching.messages import Report
from hangscope.toolkit.launching.tree import MOST_NODES, FirstNode, Member, OtherNode
from hangscope.trace.processes.procfs import status_of

CONNECT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
"""After this long without an answer, the store counts as lost."""
PERIOD_S = 0.5
QUIET_PERIOD_S = 2.0
"""Time between rounds while the job makes progress."""
FEW_NODES = 16
"""Of so many nodes, reports hold all that is recorded."""
PREFIX = "hangscope/5"
"""Includes the protocol version, so that other versions of HangScope use other keys."""
_RECONNECT_S = 5.0
_CHUNK_BYTES = 4096


def main() -> int:
    """Connect, then relay until the monitor closes our standard input."""
    parser = argparse.ArgumentParser(prog="python -m hangscope.toolkit.launching.relay")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--most-nodes", type=int, default=MOST_NODES)
    arguments = parser.parse_args()
    try:
        os.nice(5)
        relay = Relay(
            connect,
            arguments.directory,
            is_first=arguments.first,
            secret=RunSecret.of(os.environ),
            most_nodes=arguments.most_nodes,
        )
        relay.round()
        _limit_memory()
        while not _is_left(relay.period_s):
            relay.round()
        relay.round()
    finally:
        if _is_left(0):  # a killed monitor cannot clean up itself
            shutil.rmtree(arguments.directory, ignore_errors=True)
    return 0


def connect() -> Store:
    """The job's store."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    base = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
    )
    base.set_timeout(timedelta(seconds=ANSWER_TIMEOUT_S))
    store: Store = PrefixStore(PREFIX, base)
    return store


def _limit_memory() -> None:
    """Let a message that is far too large end this process and not fill the node's memory."""
    import resource

    used_kb = int(status_of(os.getpid()).get("VmData", "0 kB").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used_kb * 1024 + 2 * MAX_TOTAL_BYTES
    if used_kb and (hard == resource.RLIM_INFINITY or wanted < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _is_left(wait_s: float) -> bool:
    """Whether the monitor has closed our standard input, or has ended; what it writes only ends
    the wait."""
    while select.select([sys.stdin], [], [], wait_s)[0]:
        if not os.read(sys.stdin.fileno(), _CHUNK_BYTES):
            return True
        wait_s = 0.0
    return False


class Relay:
    """Moves files to and from a store.

    Parameters
    ----------
    connect:
        Opens the store through which the nodes exchange data; raises what torch raises.
    directory:
        Where the monitor writes and expects files.
    is_first:
        Whether rank 0 runs on this node.
    how:
        As for `hangscope.toolkit.launching.tree.Member`.
    """

    def __init__(self, connect: Any, directory: Path, *, is_first: bool, **how: Any) -> None:
        self._connect = connect
        self._directory = directory
        self._kind = FirstNode if is_first else OtherNode
        self._how = how
        self._member: Member | None = None
        self._known: dict[str, int] = {}
        self._written: dict[str, object] = {}
        self._lost_s = 0.0

    @property
    def period_s(self) -> float:
        """Time until the next round."""
        awake = (self._directory / "awake").exists()
        return PERIOD_S if awake or self._member is None else QUIET_PERIOD_S

    def round(self) -> None:
        """One round: send what changed, receive what is new; without a store, try to reach it."""
        if self._lost_s and time.monotonic() - self._lost_s < _RECONNECT_S:
            return
        try:
            if self._member is None:
                self._member = self._kind(self._connect(), note=self._note, **self._how)
                self._known.clear()
            member = self._member
            self._send(member)
            member.round()
            self._receive(member)
            (self._directory / "in" / "beat").touch()
        except Exception as error:  # torch raises RuntimeError and several of its own
            self._lost_s = time.monotonic()
            if self._member is not None or not self._has("in/lost"):
                text = str(error).strip().partition("\n")[0][:300]
                self._write("in/lost", orjson.dumps([time.time_ns(), text]))
            self._member = None
            return
        if self._lost_s:
            self._lost_s = 0.0
            (self._directory / "in" / "lost").unlink(missing_ok=True)

    def _send(self, member: Member) -> None:
        changed = [self._changed(name) for name in ("report", "still")]
        if any(changed):
            member.report = Report(time.time_ns(), self._content("report"))
        if self._changed("found"):
            member.found = self._content("found").decode("utf-8", "replace")
        if isinstance(member, FirstNode):
            for name in ("verdict", "hosts"):
                if self._changed(name):
                    content = self._content(name)
                    if name == "hosts":
                        member.say(hosts=content)
                    else:
                        member.say(verdict=content.decode("utf-8", "replace"))

    def _receive(self, member: Member) -> None:
        inbox = member.inbox
        if inbox.found:
            self._write_new("in/found", inbox.found.encode())
        if isinstance(member, FirstNode):
            member.say(deep=member.announced.count < FEW_NODES)
            for name, content in inbox.digests.items():
                self._write_new(f"in/{name}", content)
            for path in (self._directory / "in").glob("node_*"):
                if path.name not in inbox.digests:
                    path.unlink(missing_ok=True)
            if inbox.heard:
                rows = [astuple(heard) for _, heard in sorted(inbox.heard.items())]
                self._write_new("in/heard", orjson.dumps(rows))
            return
        if inbox.told is not None:
            self._write_new("in/told", orjson.dumps(astuple(inbox.told)))
        if inbox.hosts:
            self._write_new("in/hosts", inbox.hosts)

    # -- files -----------------------------------------------------------------------------

    def _note(self, line: str) -> None:
        """Leave a line for the monitor to print."""
        with open(self._directory / "notes", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def _changed(self, name: str) -> bool:
        """Whether a file has changed since it was last asked for."""
        try:
            now_ns = (self._directory / name).stat().st_mtime_ns
        except OSError:
            return False
        before, self._known[name] = self._known.get(name), now_ns
        return now_ns != before

    def _content(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except OSError:
            return b""

    def _write_new(self, name: str, content: bytes) -> None:
        """Write, unless it was written before."""
        if self._written.get(name) is not content and self._written.get(name) != content:
            self._written[name] = content
            self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        target = self._directory / name
        temporary = target.with_name(f".{target.name}")
        temporary.write_bytes(content)
        os.replace(temporary, target)


if __name__ == "__main__":
    sys.exit(main())
