"""The monitor's side of the exchange between nodes: a relay process, and what comes through it.

A node's report is a digest of its ranks (`hangscope.trace.digests`). What did not change is neither
sent nor read again; node 0 keeps what it has read in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from hangscope.trace.clocks import shift_fragment
from hangscope.trace.digests.codec import decode
from hangscope.trace.digests.digest import Digest, Node, fragments_of
from hangscope.trace.digests.hosts import Host, HostMap
from hangscope.trace.digests.tables import Tables
from hangscope.trace.model import Fragment

OTHER_CLOCK_NS = 10 * 10**9
"""Clock difference beyond which times are corrected: no report travels that long. Smaller ones are
found by comparing what the nodes have completed together."""
ANSWER_NS = 12 * 10**9
"""After this long without an answer, the store is lost; the relay asks every two seconds."""
_MOST_VALUES = 1 << 16
"""When the nodes have sent so many stacks, the tables begin anew."""


@dataclass(frozen=True, slots=True)
class Heard:
    """When a node was last heard of."""

    sent_ns: int
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class Told:
    """What node 0 has told this one."""

    verdict: str = ""
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The job's store does not answer."""

    since_ns: int
    error: str


@dataclass(frozen=True, slots=True)
class _NodeReport:
    """One node's part of what was read."""

    number: int
    observed_ns: int
    fragments: tuple[Fragment, ...]


_Standing = tuple[_NodeReport, Heard]


class Reports:
    """What other nodes have reported, decoded once."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._raw: dict[str, bytes] = {}
        self._read: dict[str, tuple[Digest, list[_NodeReport]]] = {}
        self.version = 0
        """Changes with every report that says something new."""

    def put(self, name: str, raw: bytes) -> None:
        """Take a report; a damaged one counts for nothing."""
        if self._raw.get(name) == raw:
            return
        self.version += 1
        self._raw[name] = raw
        if len(self._tables.stacks) > _MOST_VALUES:
            self._tables = Tables()
            for other, known in self._raw.items():
                self._decode(other, known)
        else:
            self._decode(name, raw)

    def forget(self, name: str) -> None:
        """A report that another one contains."""
        if self._raw.pop(name, None) is not None:
            self._read.pop(name, None)
            self.version += 1

    @property
    def names(self) -> set[str]:
        """The names of all that were put."""
        return set(self._raw)

    def hosts(self) -> list[Host]:
        """The hosts that have reported."""
        found = {}
        for name, (digest, _) in self._read.items():
            for node in digest.nodes:
                number = _number_of(name, node)
                found[number] = Host(node.host, node.ranks, node.addresses, number)
        return [found[number] for number in sorted(found)]

    def standing(self, since_ns: int, heard: dict[int, Heard]) -> list[_Standing]:
        """The reports of nodes that were heard of since then, in this node's time."""
        found = []
        for _, nodes in self._read.values():
            for one in nodes:
                stamp = heard.get(one.number, Heard(one.observed_ns, 0))
                seen_ns = max(one.observed_ns, stamp.sent_ns) - stamp.ahead_ns
                if one.fragments and seen_ns >= since_ns:
                    found.append((one, stamp))
        return found

    def fragments(self, since_ns: int, heard: dict[int, Heard]) -> list[Fragment]:
        """What these say, in this node's time."""
        return [f for one, stamp in self.standing(since_ns, heard) for f in _as_of(one, stamp)]

    def _decode(self, name: str, raw: bytes) -> None:
        try:
            digest = decode(raw, self._tables)
        except ValueError:
            self._read.pop(name, None)
            return
        of_node: list[list[Fragment]] = [[] for _ in digest.nodes]
        for part, fragment in zip(digest.parts, fragments_of(digest), strict=True):
            of_node[part.node].append(fragment)
        self._read[name] = (
            digest,
            [
                _NodeReport(
                    _number_of(name, node),
                    max((f.facts.observed_ns for f in own), default=0),
                    tuple(own),
                )
                for node, own in zip(digest.nodes, of_node, strict=True)
            ],
        )


def _as_of(one: _NodeReport, stamp: Heard) -> Iterator[Fragment]:
    """A node's fragments, as of when it last said that nothing has changed.

    A recorder that ran when its rank was looked at has run since, or that would have changed.
    """
    for fragment in one.fragments:
        facts = fragment.facts
        if stamp.sent_ns > one.observed_ns:
            beats = facts.alive and not facts.gil_blocked and facts.heartbeat_ns
            later_ns = stamp.sent_ns - facts.observed_ns if beats else 0
            facts = replace(
                facts, observed_ns=stamp.sent_ns, heartbeat_ns=facts.heartbeat_ns + later_ns
            )
        shown = replace(fragment, facts=facts)
        is_off = abs(stamp.ahead_ns) >= OTHER_CLOCK_NS
        yield shift_fragment(shown, -stamp.ahead_ns) if is_off else shown


def _number_of(name: str, node: Node) -> int:
    return int(name.rpartition("_")[2]) if name.startswith("node_") else node.number


class RelayProcess:
    """The process that carries reports through the job's store.

    A separate process because it needs torch, which the monitor must not import. It is started once
    the job has met, so that it is there when something happens, and exchanges files with the
    monitor (`hangscope.toolkit.launching.relay`).
    """

    def __init__(self, store: tuple[str, str], *, first: bool, most_nodes: int) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hangscope-relay-"))
        self._known: dict[str, tuple[int, int]] = {}
        self._noted = 0
        self._heard: dict[int, Heard] = {}
        self.reports = Reports()
        (self._directory / "in").mkdir()
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "hangscope.toolkit.launching.relay",
                "--directory", str(self._directory),
                "--most-nodes", str(most_nodes),
                *(["--first"] if first else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": store[0],
                "MASTER_PORT": store[1],
            },
        )  # fmt: skip
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def failed(self) -> bool:
        """Whether the relay process has ended."""
        return self._process.poll() is not None

    @property
    def has_contact(self) -> bool:
        """On node 0, whether another node was heard of; elsewhere, whether node 0 has answered."""
        inbox = self._directory / "in"
        return (inbox / "told").exists() or (inbox / "heard").exists()

    def publish(self, report: bytes) -> None:
        """Send this node's newest report."""
        self._replace("report", report)

    def publish_still(self) -> None:
        """Tell that nothing has changed."""
        self._replace("still", b"")

    def publish_found(self, line: str) -> None:
        """Tell all other nodes what was found here, in one line, at once: the job may end."""
        self._replace("found", line.encode())
        self.hurry()

    def publish_verdict(self, text: str) -> None:
        """Send the verdict to the other nodes."""
        self._replace("verdict", text.encode())
        self.hurry()

    def publish_hosts(self, hosts: HostMap) -> None:
        """Send who runs where to the other nodes."""
        self._replace("hosts", hosts.encode())

    def wake(self, awake: bool) -> None:
        """Have the relay look more often, or less."""
        path = self._directory / "awake"
        if awake:
            path.touch()
            self.hurry()
        else:
            path.unlink(missing_ok=True)

    def hurry(self) -> None:
        """Have the relay send and receive at once."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, or is told already
                os.write(self._process.stdin.fileno(), b"\n")

    def found(self) -> str:
        """What another node has found by itself."""
        try:
            return (self._directory / "in" / "found").read_text("utf-8", "replace")
        except OSError:
            return ""

    def told(self) -> Told:
        """What node 0 has told."""
        said = self._json("told")
        if not isinstance(said, list) or len(said) != 4:
            return Told()
        return Told(str(said[1]), said[3] is True)

    def hosts(self) -> HostMap | None:
        """Who runs where, if node 0 has told that anew."""
        raw = self._changed("hosts")
        try:
            return HostMap.decode(raw) if raw is not None else None
        except ValueError:
            return None

    def lost(self) -> Lost | None:
        """Whether the store does not answer.

        A link that is cut leaves the relay waiting for an answer, without an error.
        """
        said = self._json("lost")
        if isinstance(said, list):
            return Lost(int(said[0]), str(said[1]))
        try:
            beat_ns = (self._directory / "in" / "beat").stat().st_mtime_ns
        except OSError:
            return None  # it has not been there yet
        silent = time.time_ns() - beat_ns > ANSWER_NS
        return Lost(beat_ns, "no answer, and no error") if silent else None

    def heard(self) -> dict[int, Heard]:
        """When each other node was last heard of; on node 0 only."""
        raw = self._changed("heard")
        if raw is not None:
            rows = orjson.loads(raw)
            self._heard = {row[0]: Heard(row[1], row[2]) for row in rows}
        return self._heard

    def receive(self) -> None:
        """Read what is new into `reports`."""
        inbox = self._directory / "in"
        names = {path.name for kind in ("node_*", "group_*") for path in inbox.glob(kind)}
        for name in sorted(names):
            raw = self._changed(name)
            if raw is not None:
                self.reports.put(name, raw)
        for name in self.reports.names - names:
            self.reports.forget(name)

    def notes(self) -> list[str]:
        """Lines about messages that do not count, since the last call."""
        try:
            lines = (self._directory / "notes").read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
        new, self._noted = lines[self._noted :], len(lines)
        return new

    def close(self) -> None:
        """End the relay, which gets a moment to deliver a verdict."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- files -----------------------------------------------------------------------------

    def _changed(self, name: str) -> bytes | None:
        """The content of a file that was received, if it has changed since it was last read."""
        path = self._directory / "in" / name
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if self._known.get(name) == version:
                return None
            raw = path.read_bytes()
        except OSError:
            return None
        self._known[name] = version
        return raw

    def _json(self, name: str) -> Any:
        try:
            return orjson.loads((self._directory / "in" / name).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self._directory / f".{name}"
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self._directory / name)
        except OSError:
            pass  # the disk is full or the relay has ended and cleaned up
