"""Reports that the nodes of a job exchange if they share no file system.

When a node's ranks make no progress and some of the job's ranks are not in its run directory, each
node's monitor packs a report of its own ranks (newest records, counters, hashes, stacks, process
states) and sends it through the job's own store. The monitor of node 0 reads all of them and sees
the whole job; the others learn its verdict.

A report is a zip file of compacted rings and one journal: the same formats as everywhere, read by
the same readers.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hangscope.replay.compact import compact_ring
from hangscope.replay.observed import NAME as OBSERVED
from hangscope.replay.observed import write_observed
from hangscope.ring.checks import RingError
from hangscope.trace.clocks import shift_fragment
from hangscope.trace.files.sniff import Kind
from hangscope.trace.formats import JOURNAL, RING
from hangscope.trace.loading.one_file import Task, read_task
from hangscope.trace.model import Fragment, Trace

NEWEST_RECORDS = 256
"""Records sent per rank; the history hashes stand for everything before them."""
MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_MEMBERS = 4096
OTHER_CLOCK_NS = 10 * 10**9
"""Clock difference beyond which times are corrected: no report travels that long. Smaller ones are
found by comparing what the nodes have completed together."""
_WRITTEN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that `pack` uses; others would raise exceptions of their own."""
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError,
    NotImplementedError,
)  # fmt: skip
"""Exceptions raised on reading a truncated, altered or forged archive."""


def pack(trace: Trace, rings: Iterable[tuple[int, Path]]) -> bytes:
    """Pack this node's report.

    Parameters
    ----------
    trace:
        The newest look at this node's ranks.
    rings:
        (rank, ring file) of each of them.
    """
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="hangscope-") as name:
        directory = Path(name)
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for rank, ring in rings:
                target = directory / f"rank_{rank}.ring"
                try:
                    compact_ring(ring, target, newest=NEWEST_RECORDS)
                except (RingError, OSError):
                    continue
                archive.write(target, target.name)
            if write_observed(trace, directory / OBSERVED):
                archive.write(directory / OBSERVED, OBSERVED)
    return buffer.getvalue()


def unpack(raw: bytes, directory: Path) -> list[Fragment]:
    """The fragments of another node's report, without what is damaged.

    The archive is not trusted: directories in names are dropped and the total size is limited.
    """
    fragments: list[Fragment] = []
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()[:MAX_MEMBERS]
            if sum(member.file_size for member in members) > MAX_REPORT_BYTES:
                return []
            if any(member.compress_type not in _WRITTEN for member in members):
                return []
            for member in members:
                target = directory / Path(member.filename).name
                target.write_bytes(archive.read(member))
    except _DAMAGED:
        return []
    for path in sorted(directory.iterdir()):
        kind = RING if path.suffix == ".ring" else JOURNAL if path.name == OBSERVED else None
        if kind is not None:
            fragments.extend(read_task(Task(str(path), str(path), Kind(kind))).fragments)
    return fragments


@dataclass(frozen=True, slots=True)
class Report:
    """Another node's fragments, and their observation time on this node's clock."""

    moment_ns: int
    fragments: list[Fragment]


def report_of(said: list[Fragment], ahead_ns: int) -> Report:
    """A report of a node whose clock is ``ahead_ns`` ahead, in this node's time if that is much."""
    moment_ns = max((f.facts.observed_ns for f in said), default=0) - ahead_ns
    if abs(ahead_ns) >= OTHER_CLOCK_NS:
        said = [shift_fragment(fragment, -ahead_ns) for fragment in said]
    return Report(moment_ns, said)


class Relay:
    """The process that carries reports through the job's store.

    A separate process because it needs torch, which the monitor must not import. It is started only
    when a job that spans nodes makes no progress, and exchanges files with the monitor.
    """

    def __init__(self, store: tuple[str, str], *, first: bool, most_nodes: int) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hangscope-relay-"))
        self._seen: dict[Path, int] = {}
        self._reports: dict[Path, Report] = {}
        self._noted = 0
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
                "MASTER_ADDR": store[0],
                "MASTER_PORT": store[1],
            },
        )  # fmt: skip

    @property
    def failed(self) -> bool:
        """Whether the relay process has ended."""
        return self._process.poll() is not None

    @property
    def has_contact(self) -> bool:
        """On node 0, whether another node has reported; elsewhere, whether node 0 has answered."""
        inbox = self._directory / "in"
        return (inbox / "first").exists() or any(inbox.glob("node_*"))

    def publish(self, report: bytes) -> None:
        """Send this node's newest report."""
        self._replace("report", report)

    def publish_verdict(self, text: str) -> None:
        """Send the verdict to the other nodes."""
        self._replace("verdict", text.encode())

    def verdict(self) -> str | None:
        """Node 0's verdict, once it has sent one."""
        try:
            return (self._directory / "in" / "verdict").read_text("utf-8", "replace")
        except OSError:
            return None

    def reports(self, since_ns: int) -> list[Fragment]:
        """Fragments of all other nodes whose newest report was observed since then."""
        for path in (self._directory / "in").glob("node_*"):
            try:
                changed_ns = path.stat().st_mtime_ns
                if path.is_dir() or self._seen.get(path) == changed_ns:
                    continue
                raw = path.read_bytes()
            except OSError:
                continue
            self._seen[path] = changed_ns
            said = unpack(raw, self._directory / f"open_{path.name}")
            self._reports[path] = report_of(said, self._ahead_ns(path))
        new = [report for report in self._reports.values() if report.moment_ns >= since_ns]
        return [fragment for report in new for fragment in report.fragments]

    def notes(self) -> list[str]:
        """Lines about messages that do not count, since the last call."""
        try:
            lines = (self._directory / "notes").read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
        new, self._noted = lines[self._noted :], len(lines)
        return new

    def close(self) -> None:
        """End the relay and remove its files."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ahead_ns(self, report: Path) -> int:
        """How far the clock of a report's sender is ahead of this node's."""
        try:
            number = report.name.removeprefix("node_")
            return int(report.with_name(f"clock_{number}").read_bytes())
        except (OSError, ValueError):
            return 0

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self._directory / f".{name}"
        temporary.write_bytes(content)
        os.replace(temporary, self._directory / name)
