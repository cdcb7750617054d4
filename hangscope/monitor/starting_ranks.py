"""Ranks of this node whose processes run but have not begun to record.

They may still be importing torch, or hang before they get there. No ring tells of them. But the
environment that a launcher starts a process with says which rank of which job it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hangscope.monitor.process_table import TICKS_PER_SECOND, ProcessRow, process_table
from hangscope.ring.job_place import JobPlace, place_from_environment
from hangscope.trace.model import RankFacts
from hangscope.trace.processes.kernel_waits import main_thread_wait
from hangscope.trace.processes.process import look_here
from hangscope.trace.processes.procfs import PROC

LOOK_S = 1.0
"""How often the process table is read: it may be long, and nothing here is urgent."""
BUSY = 0.005
"""CPU seconds per second that count as starting: on a crowded machine, imports get little."""
_JOB_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
"""Equal for all ranks of one attempt of a job."""


class _Launched(NamedTuple):
    """What a launcher has given to a process."""

    place: JobPlace
    job: tuple[str | None, ...]
    """The values of `_JOB_VARIABLES`."""

    def is_of_job(self, other: _Launched) -> bool:
        """Whether both belong to the same attempt of the same job."""
        return self.job == other.job and self.place.world_size == other.place.world_size


class StartingRanks:
    """Finds processes that are ranks of the job but have no ring.

    Parameters
    ----------
    proc:
        Where the process table is mounted.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._looked_at_s = 0.0
        self._ticks: dict[int, int] = {}
        self._job: _Launched | None = None
        self.pids: dict[int, int] = {}
        """Process id of each starting rank, as of the last look."""
        self.are_busy = False
        """Whether any of them has used the processor since the look before."""

    def look(self, recorded: Mapping[int, int]) -> None:
        """Look for them, at most once in `LOOK_S`.

        ``recorded`` are the process ids of the ranks that have rings.
        """
        now_s = time.monotonic()
        passed_s = now_s - self._looked_at_s
        if passed_s < LOOK_S:
            return
        self._looked_at_s = now_s
        table = process_table(self._proc)
        self.pids = self._starting(table, recorded)
        rows = {pid: table[pid] for pid in self.pids.values()}
        ticks = {pid: row.own_ticks + row.reaped_ticks for pid, row in rows.items()}
        used = sum(count - self._ticks.get(pid, 0) for pid, count in ticks.items())
        self.are_busy = used / TICKS_PER_SECOND / passed_s > BUSY
        self._ticks = ticks

    def facts(self, rank: int) -> RankFacts | None:
        """What can be seen of one of them from outside; None if it has just ended."""
        pid = self.pids[rank]
        process = look_here(pid, 0)
        if not process.alive:
            return None
        return RankFacts(
            rank=rank,
            pid=pid,
            alive=True,
            process_state=process.state,
            held_by=process.held_by,
            wait=main_thread_wait(pid, runs=process.state == "running", proc=self._proc),
            observed_ns=time.time_ns(),
        )

    def _starting(
        self, table: Mapping[int, ProcessRow], recorded: Mapping[int, int]
    ) -> dict[int, int]:
        """Process ids by rank: of several processes of one rank, the first to start."""
        for pid in recorded.values():
            self._job = self._job or self._launched(pid)
        if self._job is None:
            return {}
        found: dict[int, int] = {}
        for pid in sorted(table, key=lambda pid: (table[pid].start_ticks, pid)):
            if not self._is_python(pid):
                continue
            launched = self._launched(pid)
            if launched is not None and launched.is_of_job(self._job):
                found.setdefault(launched.place.rank, pid)
        return {rank: pid for rank, pid in found.items() if rank not in recorded}

    def _is_python(self, pid: int) -> bool:
        """Whether a process runs Python; its wrappers (a shell, a profiler) are not the rank."""
        try:
            return os.path.basename(os.readlink(self._proc / str(pid) / "exe")).startswith(
                ("python", "pypy")
            )
        except OSError:
            return False  # it has ended, or is another user's

    def _launched(self, pid: int) -> _Launched | None:
        """The place and the job of a process by the environment that it was started with."""
        try:
            raw = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        entries = (entry.partition("=") for entry in os.fsdecode(raw).split("\0"))
        environ = {name: value for name, _, value in entries}
        place = place_from_environment(environ)
        return _Launched(place, tuple(map(environ.get, _JOB_VARIABLES))) if place else None
