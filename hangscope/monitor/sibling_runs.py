"""Other run directories of the same job, which ranks make that disagree about where to meet.

Without a launcher's id, the rendezvous names the run. A rank with another ``MASTER_PORT`` therefore
records beside the others, and neither side ever meets the other: each would miss ranks that run on
the same machine. Directories belong together if together they hold every rank of one world exactly
once, all of them alive, started from the same place at about the same time, and none has met
others.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hangscope.ring.header import RingHeader
from hangscope.ring.reader import decode_text
from hangscope.ring.run_directory import RUNS
from hangscope.trace.live.open_ring import OpenRing, RunKey
from hangscope.trace.live.own_run import OwnRun
from hangscope.trace.live.rings import RingFolder
from hangscope.trace.model import Fragment
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.process import is_local
from hangscope.trace.rings.batch import RingBatch

LOOK_S = 2.0
"""How often to look for other directories."""
WINDOW_S = 600.0
"""Ranks of one job start within this time."""
SETTLED_S = 20.0
"""So old must a ring be: until then it may be the first of a complete job of its own."""


class Home(NamedTuple):
    """The directory of a job's lowest rank, whose monitor speaks for all of them."""

    directory: Path
    key: RunKey | None


class SiblingRuns:
    """Looks for the other directories while ranks are missing.

    Parameters
    ----------
    directory:
        The monitor's own run directory.
    own:
        Tells which rings belong to the run.
    """

    def __init__(self, directory: Path, own: OwnRun | None = None) -> None:
        self._directory = directory
        self._own = own
        self._looked_at_s = 0.0
        self._known: dict[Path, RingFolder] = {}
        self._found: list[RingFolder] = []
        self.home: Home | None = None
        """None while none has been found."""

    def fragments(self, rings: Sequence[OpenRing]) -> list[Fragment]:
        """What the ranks in other directories record; empty if the job has only one, or may have.

        Parameters
        ----------
        rings:
            Those in the monitor's own directory.
        """
        if self._directory.parent.name != RUNS or not rings or not _is_unmet(rings):
            self._found, self.home = [], None
            return []
        if time.monotonic() - self._looked_at_s >= LOOK_S:
            self._looked_at_s = time.monotonic()
            self._look(rings)
        rings_there = [ring for run in self._found for ring in run.refresh()]
        for ring in rings_there:
            ring.update(None)
        locks_now = functools.cache(FileLocks.now)
        return [ring.fragment(RingBatch(), locks_now) for ring in rings_there]

    def where(self, *, elsewhere: bool) -> str:
        """The command that tells more; ``elsewhere``: ranks record on other nodes, or nowhere."""
        here = [self._directory, *(run.directory for run in self._found)]
        rest = (
            " and the run directories of the other nodes" if elsewhere and not self._found else ""
        )
        return f"more: hangscope analyze {' '.join(map(str, here))}{rest}"

    def close(self) -> None:
        """Close everything."""
        for run in self._known.values():
            run.close()

    def _look(self, rings: Sequence[OpenRing]) -> None:
        job = _job_of(rings[0].reader.header())
        world_size = rings[0].reader.header().world_size
        ranks, since_ns = {ring.rank for ring in rings}, min(ring.created_ns for ring in rings)
        self._found, self.home = [], None
        homes = {min(ranks): Home(self._directory, rings[0].key)}
        found = []
        for path in self._others(since_ns):
            run = self._known.setdefault(path, RingFolder(path, None, own=self._own))
            theirs = run.refresh()
            same = all(
                _job_of(ring.reader.header()) == job
                and abs(ring.created_ns - since_ns) < WINDOW_S * 1e9
                and time.time_ns() - ring.created_ns > SETTLED_S * 1e9
                and ring.process.look().alive
                for ring in theirs
            )
            their_ranks = {ring.rank for ring in theirs}
            if not theirs or not same or not _is_unmet(theirs) or ranks & their_ranks:
                continue
            ranks |= their_ranks
            found.append(run)
            homes[min(their_ranks)] = Home(path, theirs[0].key)
        if len(ranks) == world_size and found:
            self._found, self.home = found, homes[min(ranks)]

    def _others(self, since_ns: int) -> list[Path]:
        """Directories beside the own one in which something was made about then, or later."""
        found = []
        try:
            with os.scandir(self._directory.parent) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    recent = entry.stat().st_mtime_ns > since_ns - WINDOW_S * 1e9
                    if recent and entry.name != self._directory.name:
                        found.append(Path(entry.path))
        except OSError:
            return []
        return sorted(found)


def _job_of(header: RingHeader) -> tuple[object, ...]:
    """What all ranks of a job on this machine have in common, whatever their rendezvous."""
    here = is_local(decode_text(header.boot_id), header.pid_namespace)
    return here, header.world_size, header.attempt, decode_text(header.cwd)


def _is_unmet(rings: Sequence[OpenRing]) -> bool:
    """Whether ranks are missing, and none of these has left the first meeting."""
    headers = [ring.reader.header() for ring in rings]
    unmet = not any(header.initialized or header.finalized for header in headers)
    return unmet and len(rings) < headers[0].world_size
