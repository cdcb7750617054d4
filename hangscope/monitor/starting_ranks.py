"""Ranks of this node whose processes run but have not begun to record.

They may still be importing torch, or hang before they get there. No ring tells of them. But the
environment that a launcher starts a process with says which rank of which job it is; without a
launcher, they stand among the siblings of the ranks that do record.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hangscope.monitor.process_table import TICKS_PER_SECOND, ProcessRow, process_table
from hangscope.monitor.sibling_ranks import sibling_ranks
from hangscope.ring.job_place import JobPlace, place_from_environment
from hangscope.ring.process_identity import environment_of
from hangscope.trace.model import RankFacts
from hangscope.trace.processes.kernel_waits import main_thread_wait
from hangscope.trace.processes.process import look_here
from hangscope.trace.processes.procfs import PROC, lines_of

LOOK_S = 1.0
"""How often the process table is read: it may be long, and nothing here is urgent."""
LATER_LOOK_S = 10.0
"""The same once ranks have been missing for `LATER_S`: perhaps they are not meant to record."""
LATER_S = 120.0
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
        """Whether both belong to the same attempt of the same job, on the same node of it."""
        one, two = self.place, other.place
        same_node = (one.world_size, one.node_rank) == (two.world_size, two.node_rank)
        return same_node and self.job == other.job


class StartingRanks:
    """Finds processes that are ranks of the job but have no ring.

    Parameters
    ----------
    proc:
        Where the process table is mounted.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._began_s = time.monotonic()
        self._looked_at_s = 0.0
        self._processes: dict[int, list[int]] = {}
        self._unjoined: set[int] = set()
        self._ticks: dict[int, int] = {}
        self._job: _Launched | None = None
        self._is_unmet = False
        self.pids: dict[int, int] = {}
        """Process id of each starting rank, as of the last look."""
        self.are_busy = False
        """Whether any of them has used the processor since the look before."""

    def look(self, recorded: Mapping[int, int], unmet_world_size: int = 0) -> None:
        """Look for them, at most once in `LOOK_S`.

        Parameters
        ----------
        recorded:
            The process ids of the ranks that have rings.
        unmet_world_size:
            How many ranks these wait for in ``init_process_group``, if none of them has left it.
        """
        now_s = time.monotonic()
        passed_s = now_s - self._looked_at_s
        if passed_s < (LOOK_S if now_s - self._began_s < LATER_S else LATER_LOOK_S):
            return
        self._looked_at_s = now_s
        self._is_unmet = bool(unmet_world_size)
        known = map(self._launched, recorded.values())
        self._job = self._job or next(filter(None, known), None)
        world_size = self._job.place.world_size if self._job else unmet_world_size
        if len(recorded) >= world_size:
            # No launcher tells of others and none can be among the siblings, or nobody is missing.
            self.pids, self._unjoined, self.are_busy = {}, set(), False
            return
        table = process_table(self._proc)
        if self._job:
            found = self._found(table, self._job)
            self._processes = {rank: pids for rank, pids in found.items() if rank not in recorded}
            pythons = {r: list(filter(self._is_python, ps)) for r, ps in self._processes.items()}
            self.pids = {rank: pids[0] for rank, pids in pythons.items() if pids}
            self._unjoined = {rank for rank in self.pids if not self._may_have_met(rank)}
        else:
            # Whether they have loaded torch means nothing: they record from the meeting on.
            before = {r: p for r, p in self.pids.items() if r not in recorded and p in table}
            self.pids = sibling_ranks(table, recorded, world_size, self._proc) or before
            self._processes = {rank: [pid] for rank, pid in self.pids.items()}
            self._unjoined = set(self.pids)
        rows = {pid: table[pid] for pid in self.pids.values()}
        ticks = {pid: row.own_ticks + row.reaped_ticks for pid, row in rows.items()}
        used = sum(count - self._ticks.get(pid, 0) for pid, count in ticks.items())
        self.are_busy = used / TICKS_PER_SECOND / passed_s > BUSY
        self._ticks = ticks

    @property
    def are_placed_by_order(self) -> bool:
        """Whether no launcher says which process is which rank."""
        return self._job is None

    def had_not_joined(self, rank: int) -> bool:
        """Whether a rank cannot have issued anything a moment ago; False if not known.

        No process of it had loaded torch, or no rank had got past the first meeting.
        """
        return rank in self._unjoined and time.monotonic() - self._looked_at_s < 2 * LOOK_S

    def facts(self, rank: int) -> RankFacts | None:
        """What can be seen of one of them from outside.

        None if it has just ended, or if it was launched as a rank and has loaded torch while others
        are past their first meeting: then it may take part in the job without being recorded,
        because recording is switched off there or has failed.
        """
        pid = self.pids[rank]
        process = look_here(pid, 0)
        if not process.alive or (not self.are_placed_by_order and self._may_have_met(rank)):
            return None
        return RankFacts(
            rank=rank,
            pid=pid,
            is_placed_by_order=self.are_placed_by_order,
            alive=True,
            initialized=False,
            process_state=process.state,
            held_by=process.held_by,
            wait=main_thread_wait(pid, runs=process.state == "running", proc=self._proc),
            observed_ns=time.time_ns(),
        )

    def _found(self, table: Mapping[int, ProcessRow], job: _Launched) -> dict[int, list[int]]:
        """The processes of each rank of the job, in the order in which they started."""
        found: dict[int, list[int]] = defaultdict(list)
        for pid in sorted(table, key=lambda pid: (table[pid].start_ticks, pid)):
            launched = self._launched(pid)
            if launched and launched.is_of_job(job):
                found[launched.place.rank].append(pid)
        return found

    def _may_have_met(self, rank: int) -> bool:
        """Whether a process could take part without a record; nobody does before all have met."""
        return not self._is_unmet and self._has_torch(rank)

    def _has_torch(self, rank: int) -> bool:
        maps = (lines_of(self._proc / str(pid) / "maps") for pid in self._processes[rank])
        return any("/libtorch" in line for lines in maps for line in lines)

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
        environ = environment_of(self._proc / str(pid))
        place = place_from_environment(environ)
        return _Launched(place, tuple(map(environ.get, _JOB_VARIABLES))) if place else None
