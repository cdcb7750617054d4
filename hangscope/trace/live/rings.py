"""The rings of the followed attempt, in a directory that other processes write to."""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hangscope.ring.checks import RingError
from hangscope.ring.layout import HEADER, ExitKind, header_offset
from hangscope.ring.process_identity import machine_id
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace.facts import machine_name
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank, find_duplicate_ranks
from hangscope.trace.job_selection.incarnations import in_newest_incarnation, in_same_incarnation
from hangscope.trace.job_selection.processes import Key, RankProcess
from hangscope.trace.job_selection.ring_ranks import assign_ranks, other_world_note
from hangscope.trace.live.facts import ProcessView
from hangscope.trace.live.open_ring import OpenRing, RunKey
from hangscope.trace.live.own_run import OwnRun

FINDINGS = ("reduction_rank", ".jsonl")
"""Prefix and suffix of the files to which ranks write wrong results of reductions."""
JournalFiles = tuple[tuple[str, int, int], ...]
"""Name, size and modification time (ns) of each journal."""


def _field_reader(names: Sequence[str]) -> struct.Struct:
    """Reads fields of a ring's header at once, as bytes; ``names`` in their order in the file."""
    code, at = "<", 0
    for name in names:
        start, length = header_offset(name), HEADER[name].itemsize
        code, at = f"{code}{start - at}x{length}s", start + length
    return struct.Struct(code)


_RANK_FIELDS = _field_reader(
    ("rank", "world_size", "flags", "initialized", "finalized", "exit_kind", "rendezvous")
)
"""The fields that determine a ring's rank and job: if these bytes are unchanged, so are those."""


class Listing(NamedTuple):
    """The files in a run directory; full paths except for journals."""

    rings: list[str]
    journals: JournalFiles
    findings: list[str]


class RingFolder:
    """Opens the rings of a run directory, and selects those of one attempt.

    Parameters
    ----------
    directory:
        The run directory.
    key:
        The attempt to follow; by default the newest at each refresh (each look of a `LiveRun`).
    skip:
        Attempts that are never followed.
    own:
        Tells which rings belong to the run to follow; by default all may.
    """

    def __init__(
        self,
        directory: Path,
        key: RunKey | None,
        skip: frozenset[RunKey] = frozenset(),
        own: OwnRun | None = None,
    ) -> None:
        self.directory = directory
        self.listing = Listing([], (), [])
        self.replaced: set[tuple[int, int | None]] = set()
        """(rank, process id) of earlier jobs with the same run id."""
        self.duplicate_ranks: list[DuplicateRank] = []
        """Ranks that two living processes have."""
        self.followed: RunKey | None = None
        self.declared: set[Key] = set()
        """Processes (machine, process id) that have declared their rank themselves."""
        self._wanted = key
        self._skip = skip
        self._own = own
        self._rings: dict[str, OpenRing] = {}
        self._refused: dict[Path, tuple[int, str]] = {}
        self._named: list[OpenRing] = []
        self._said: list[tuple[bytes, ...]] = []
        """The `_RANK_FIELDS` of the rings in `_named` when they were given their ranks."""

    def refresh(self) -> list[OpenRing]:
        """Find the rings of the followed attempt, opening new files; lowest rank first."""
        self.listing = files_of(self.directory)
        self._close_unsound()
        for path in self.listing.rings:
            if path not in self._rings:
                self._open(Path(path))
        wanted = self._wanted or self._newest()
        rings = self._of_run(wanted)
        self._name(rings)
        rings = [ring for ring in rings if ring.is_rank]
        newest: dict[int, OpenRing] = {}
        for ring in sorted(rings, key=lambda ring: (ring.is_certain, ring.created_ns)):
            newest[ring.rank] = ring  # an earlier ring of the same rank is from an older job
        if len(newest) < len(rings):
            kept = self._newest_incarnation(rings)
            newest = {rank: ring for rank, ring in newest.items() if id(ring) in kept}
        self.followed = wanted
        newest |= {ring.rank: ring for ring in self._same_incarnation(newest, wanted)}
        return [newest[rank] for rank in sorted(newest)]

    def rank_of_process(self) -> dict[Key, int | None]:
        """The rank of each process (machine, process id) that has a ring in the directory.

        None for processes that are not ranks.
        """
        return {
            (ring.machine, ring.process.pid): ring.rank if ring.is_rank else None
            for ring in self._rings.values()
        }

    def warnings(self, rings: list[OpenRing]) -> list[str]:
        """Notes on the directory for the user; ``rings`` are the followed ones."""
        lines = [f"{path.name}: {why}" for path, (_, why) in sorted(self._refused.items())]
        if {ring.key for ring in self._rings.values()} - {ring.key for ring in rings}:
            lines.append(f"{self.directory}: other attempts or runs are there too and were ignored")
        ranks = {(ring.machine, ring.process.pid) for ring in rings}
        worlds: dict[str, list[OpenRing]] = defaultdict(list)
        for ring in self._rings.values():
            if not ring.is_rank and ring.reader.place()[2]:
                worlds[_process_of(ring).rendezvous].append(ring)
        for meeting, those in sorted(worlds.items()):
            started = (r for r in those if (r.machine, r.parent_pid) in ranks)
            helpers = next((r.reader.path.name for r in started), "")
            lines.append(f"{self.directory}: {other_world_note(meeting, len(those), helpers)}")
        return lines + [pair.text for pair in self.duplicate_ranks]

    def close(self) -> None:
        """Unmap everything."""
        for ring in self._rings.values():
            ring.reader.close()
        self._rings.clear()

    # -- pieces ----------------------------------------------------------------------------

    def _close_unsound(self) -> None:
        """Close rings that were truncated or replaced; they are reopened if possible."""
        for path, ring in list(self._rings.items()):
            if not ring.reader.is_sound():
                ring.reader.close()
                del self._rings[path]

    def _open(self, path: Path) -> None:
        try:
            status = path.stat()
            if self._refused.get(path, (0, ""))[0] == status.st_mtime_ns:
                return
            reader = self._own.open_ring(path) if self._own else RingReader(path)
        except FileNotFoundError:
            return  # it disappeared between listing and opening
        except (RingError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            self._refused[path] = (status.st_mtime_ns, why or str(error))
            return
        header = reader.header()
        why = self._own.refuses(reader, header) if self._own else ""
        if why:
            reader.close()
            self._refused[path] = (status.st_mtime_ns, why)
            return
        self._refused.pop(path, None)
        self._rings[str(path)] = OpenRing(
            reader,
            RunKey(decode_text(header.run_id), header.attempt),
            header.rank,
            header.created_ns,
            machine_name(
                decode_text(header.host),
                machine_id(decode_text(header.boot_id), header.pid_namespace),
            ),
            ProcessView.of(header),
            header.parent_pid,
            is_certain=self._own is None or self._own.is_certain(header),
        )

    def _name(self, rings: list[OpenRing]) -> None:
        """Assign ranks to the rings of one attempt, if they state something new."""
        said = [_RANK_FIELDS.unpack_from(ring.reader.head) for ring in rings]
        if said == self._said and rings == self._named:
            return
        self._named, self._said = rings, said
        for ring in rings:
            ring.rank, ring.is_rank = ring.reader.place()[0], True
        present = _processes_of(rings)
        self.declared = {one.key for one in present if one.declared}
        meetings = {one.rendezvous for one in present}
        if len(meetings) > 1 or not all(one.declared for one in present):
            for ring, found in zip(rings, assign_ranks(present), strict=True):
                ring.is_rank = found is not None
                ring.rank = ring.rank if found is None else found
        # If one of two processes has meanwhile declared another rank, there is no duplicate.
        ranks = self.rank_of_process()
        self.duplicate_ranks = [
            pair
            for pair in self.duplicate_ranks
            if {ranks.get(process, pair.rank) for process in (pair.one, pair.two)} == {pair.rank}
        ]

    def _same_incarnation(self, own: dict[int, OpenRing], key: RunKey | None) -> list[OpenRing]:
        """Rings of the same incarnation as ``own`` whose node counts a different attempt."""
        others = [
            ring
            for ring in self._rings.values()
            if key is not None and ring.key != key and ring.key.run_id == key.run_id
        ]
        if not others or not own:
            return []
        for ring in others:
            ring.rank = ring.reader.place()[0]
        flags = in_same_incarnation(
            [_process_of(ring) for ring in own.values()], [_process_of(ring) for ring in others]
        )
        found = [ring for ring, is_one in zip(others, flags, strict=True) if is_one]
        return [*{r.rank: r for r in sorted(found, key=lambda r: r.created_ns)}.values()]

    def _of_run(self, key: RunKey | None) -> list[OpenRing]:
        """The rings of one attempt; what only may belong to it counts where ranks are elsewhere."""
        rings = [ring for ring in self._rings.values() if ring.key == key]
        certain = [ring for ring in rings if ring.is_certain]
        return certain if len(certain) < len(rings) and _are_all_here(certain) else rings

    def up_to_followed(self) -> set[RunKey]:
        """The followed attempt and those that began before it."""
        began = {ring.key: ring.created_ns for ring in self._rings.values()}
        last_ns = began.get(self.followed, 0) if self.followed is not None else 0
        return {key for key, began_ns in began.items() if began_ns <= last_ns}

    def are_all_here(self) -> bool:
        """Whether all ranks of the followed attempt are on this node."""
        return _are_all_here(
            [r for r in self._rings.values() if r.key == self.followed and r.is_certain]
        )

    def _newest(self) -> RunKey | None:
        """The attempt that began last, apart from those never followed."""
        candidates = [
            ring for ring in self._rings.values() if ring.is_certain and ring.key not in self._skip
        ]
        newest = max(candidates, key=lambda ring: ring.created_ns, default=None)
        return newest.key if newest is not None else None

    def _newest_incarnation(self, rings: list[OpenRing]) -> set[int]:
        """If several rings have the same rank: the ``id()`` of each ring of the newest job."""
        present = _processes_of(rings)
        flags = in_newest_incarnation(present)
        kept = {id(ring) for ring, is_new in zip(rings, flags, strict=True) if is_new}
        self.replaced = {(r.rank, r.process.pid) for r in rings if id(r) not in kept}
        if not self.duplicate_ranks:
            self.duplicate_ranks = find_duplicate_ranks(present)
        return kept


def _are_all_here(certain: Sequence[OpenRing]) -> bool:
    """Whether the rings that are certainly of this node and run say that there is no other node."""
    headers = [ring.reader.header() for ring in certain]
    return any(header.local_world_size == header.world_size for header in headers)


def run_directory_of(path: str | os.PathLike[str]) -> Path | None:
    """The directory to follow for a path given by the user: itself, or its newest run."""
    directory = Path(path)
    if not directory.is_dir():
        return None
    if files_of(directory).rings:
        return directory
    latest = directory / "latest"
    if latest.is_dir() and files_of(latest).rings:
        return latest
    return None


def files_of(directory: Path) -> Listing:
    """The files in a run directory; empty if it cannot be read.

    FIFOs are skipped: opening one blocks until its other end is opened.
    """
    rings: list[str] = []
    journals: list[tuple[str, int, int]] = []
    findings: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                finding = name.startswith(FINDINGS[0]) and name.endswith(FINDINGS[1])
                if not (finding or name.endswith((".ring", ".journal"))) or not entry.is_file():
                    continue
                if finding:
                    findings.append(entry.path)
                elif name.endswith(".ring"):
                    rings.append(entry.path)
                else:
                    status = entry.stat()
                    journals.append((name, status.st_size, status.st_mtime_ns))
    except OSError:
        pass
    return Listing(rings, tuple(sorted(journals)), findings)


def _processes_of(rings: Sequence[OpenRing]) -> list[RankProcess]:
    """Their processes; whether one runs is looked up where another has its rank."""
    count = Counter(ring.rank for ring in rings)
    return [_process_of(ring, look=count[ring.rank] > 1) for ring in rings]


def _process_of(ring: OpenRing, *, look: bool = False) -> RankProcess:
    header = ring.reader.header()
    return RankProcess(
        ring.rank,
        (ring.machine, ring.process.pid),
        ring.created_ns,
        max(header.heartbeat_ns, header.exit_ns),
        ring.parent_pid,
        ring.reader.text(header.rendezvous) if header.rendezvous else "",
        header.world_size,
        header.declared,
        alive=look and bool(ring.process.look().alive),
        exited=header.exit_kind == ExitKind.CLEAN,
        initialized=bool(header.initialized or header.finalized),
    )
