"""Follows the rings of a running job: a `Trace` per look, re-reading only what changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hangscope.ring.reader import RingError, RingReader, decode_text
from hangscope.trace.from_journal import looks_like_journal, read_journal
from hangscope.trace.from_ring import facts_of, fragment_of
from hangscope.trace.merge import facts_by_rank, merge
from hangscope.trace.model import Fragment, RankFacts, Stack, Trace
from hangscope.trace.process import look_at, signal_thread

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class RunKey:
    """One attempt of one run; files of different keys are never mixed."""

    run_id: str
    attempt: int


@dataclass(slots=True)
class OpenRing:
    """An open ring and what was last read from it."""

    reader: RingReader
    key: RunKey
    rank: int
    created_ns: int
    fingerprint: bytes = b""
    fragment: Fragment | None = None
    cpu_ticks: int = 0
    cpu_at_s: float = 0.0
    main_stack: Stack = ()
    asked_at_count: int = -1


class LiveRun:
    """The rings of one attempt below a run directory.

    Parameters
    ----------
    directory:
        The run directory.
    key:
        The attempt to follow; by default the newest at each look.
    skip:
        Attempts that are never followed.

    Notes
    -----
    Maps are read-only: looking costs the job nothing. `ask_for_stacks` is the one exception, and
    only reaches processes whose ring says that they registered a handler for it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        key: RunKey | None = None,
        *,
        skip: frozenset[RunKey] = frozenset(),
    ) -> None:
        self.directory = Path(directory)
        self._wanted = key
        self._skip = skip
        self._rings: dict[Path, OpenRing] = {}
        self._refused: dict[Path, tuple[int, str]] = {}
        self._merged: Trace | None = None
        self._merged_state: object = None
        self.looks = 0

    def look(self, others: Sequence[Fragment] = ()) -> Trace:
        """The job as it is now; ``trace.looks`` counts the looks that could be compared.

        ``others`` are fragments of ranks whose rings are not here.
        """
        rings = self.refresh()
        self.looks += 1
        fragments = [self._read(ring) for ring in rings]
        here = {ring.rank for ring in rings}
        state = None if others else tuple(ring.fingerprint for ring in rings)
        fragments.extend(fragment for fragment in others if fragment.facts.rank not in here)
        if rings:
            fragments.extend(self._journal(rings[0].key))
        left_out = {ring.key for ring in self._rings.values()} - {ring.key for ring in rings}
        warnings = [f"{path.name}: {why}" for path, (_, why) in sorted(self._refused.items())]
        if left_out:
            warnings.append(
                f"{self.directory}: other attempts or runs are there too and were left out"
            )
        if state is not None and state == self._merged_state and self._merged is not None:
            # No rank has issued or finished anything: only what is known of processes is new.
            trace = replace(self._merged, ranks=facts_by_rank(fragments))
        else:
            trace = merge(fragments, warnings=warnings)
        self._merged, self._merged_state = trace, state
        live = any(facts.alive for facts in trace.ranks.values())
        return replace(trace, live=live, looks=self.looks, observed_ns=time.time_ns())

    def refresh(self) -> list[OpenRing]:
        """Find the rings of the followed attempt, opening new files; lowest rank first."""
        for path in _ring_files(self.directory):
            self._open(path)
        wanted = self._wanted or self._newest()
        rings = [ring for ring in self._rings.values() if ring.key == wanted]
        newest: dict[int, OpenRing] = {}
        for ring in sorted(rings, key=lambda ring: ring.created_ns):
            newest[ring.rank] = ring  # an earlier ring of the same rank is an older job's
        return [newest[rank] for rank in sorted(newest)]

    def ask_for_stacks(self, wanted: Callable[[RankFacts], bool]) -> int:
        """Have processes that cannot run Python write their stacks; returns how many were asked.

        Each is asked once per stall: again only after its heartbeat has moved.
        """
        asked = 0
        for ring in self._rings.values():
            fragment = ring.fragment
            if fragment is None or not wanted(fragment.facts):
                continue
            header = ring.reader.header()
            number, beats = int(header["fault_signal"]), int(header["heartbeat_count"])
            pid, thread = fragment.facts.pid, int(header["watcher_thread"])
            if not (number and pid and thread and fragment.facts.alive):
                continue
            if ring.asked_at_count == beats:
                continue
            look = look_at(
                pid=pid,
                start_ticks=int(header["start_ticks"]),
                boot_id=decode_text(header["boot_id"]),
                pid_namespace=int(header["pid_namespace"]),
            )
            if not look.alive or look.state == "stopped":
                continue
            ring.asked_at_count = beats
            asked += signal_thread(pid, thread, number)
        return asked

    def close(self) -> None:
        """Unmap everything."""
        for ring in self._rings.values():
            ring.reader.close()
        self._rings.clear()

    # -- pieces ----------------------------------------------------------------------------

    def _open(self, path: Path) -> None:
        try:
            status = path.stat()
            if path in self._rings or self._refused.get(path, (0, ""))[0] == status.st_mtime_ns:
                return
            reader = RingReader(path)
        except RingError as error:
            self._refused[path] = (status.st_mtime_ns, str(error))
            return
        except OSError:
            return  # gone again between listing and opening
        self._refused.pop(path, None)
        header = reader.header()
        self._rings[path] = OpenRing(
            reader,
            RunKey(decode_text(header["run_id"]), int(header["attempt"])),
            int(header["rank"]),
            int(header["created_ns"]),
        )

    def _newest(self) -> RunKey | None:
        """The attempt that began last, apart from those never followed."""
        candidates = [ring for ring in self._rings.values() if ring.key not in self._skip]
        newest = max(candidates, key=lambda ring: ring.created_ns, default=None)
        return newest.key if newest is not None else None

    def _read(self, ring: OpenRing) -> Fragment:
        header = ring.reader.header()
        # What moves with every record and every completion; heartbeats alone change only facts.
        fingerprint = ring.reader.groups().tobytes() + int(header["last_record_id"]).to_bytes(
            8, "little"
        )
        if ring.fragment is not None and fingerprint == ring.fingerprint:
            old = ring.fragment.facts
            facts = facts_of(ring.reader, header, old.dropped, old.oldest_record_id)
            calls = tuple(t for t in old.threads if t.source == "record")
            if calls and calls[0].sampled_ns > max(
                (t.sampled_ns for t in facts.threads), default=0
            ):
                facts = replace(facts, threads=(*facts.threads, *calls))
            fragment = replace(ring.fragment, facts=facts)
        else:
            fragment = fragment_of(ring.reader)
        ring.fingerprint = fingerprint
        ring.fragment = replace(fragment, facts=self._compared(ring, fragment.facts, header))
        return ring.fragment

    def _compared(self, ring: OpenRing, facts: RankFacts, header: object) -> RankFacts:
        """Add what only two looks can tell: CPU use, and whether the stack moved."""
        if not facts.alive or not facts.pid:
            return facts
        look = look_at(
            pid=facts.pid,
            start_ticks=int(header["start_ticks"]),  # type: ignore[index]
            boot_id=decode_text(header["boot_id"]),  # type: ignore[index]
            pid_namespace=int(header["pid_namespace"]),  # type: ignore[index]
        )
        now_s = time.monotonic()
        stack = facts.main_stack
        if ring.cpu_at_s and now_s - ring.cpu_at_s > 0.2:
            used_s = (look.cpu_ticks - ring.cpu_ticks) / _TICKS_PER_SECOND
            facts = replace(
                facts,
                cpu_busy=max(0.0, used_s / (now_s - ring.cpu_at_s)),
                stack_moved=stack != ring.main_stack,
            )
        ring.cpu_ticks, ring.cpu_at_s, ring.main_stack = look.cpu_ticks, now_s, stack
        return facts

    def _journal(self, key: RunKey) -> Iterable[Fragment]:
        for path in sorted(self.directory.glob("*.journal")):
            try:
                with open(path, "rb") as file:
                    if not looks_like_journal(file.read(64)):
                        continue
                fragments = read_journal(path)
            except (OSError, ValueError):
                continue
            for fragment in fragments:
                facts = fragment.facts
                if (facts.run_id, facts.attempt) == (key.run_id, key.attempt):
                    yield fragment


def is_gil_blocked(facts: RankFacts) -> bool:
    """A rank that only a signal can make tell its stack."""
    return bool(facts.gil_blocked)


def run_directory_of(path: str | os.PathLike[str]) -> Path | None:
    """The directory to follow for a path a user gives: itself, or its newest run."""
    directory = Path(path)
    if not directory.is_dir():
        return None
    if _ring_files(directory):
        return directory
    latest = directory / "latest"
    if latest.is_dir() and _ring_files(latest):
        return latest
    return None


def _ring_files(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(".ring")]
    except OSError:
        return []
