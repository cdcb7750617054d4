"""The ranks whose processes run here: which there are, whether they move, and how they end."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hangscope.monitor.journal import Journal
from hangscope.monitor.processes import ProcessEnd, ProcessWatch
from hangscope.monitor.rank_state import is_held_up
from hangscope.monitor.stop_signals import LOOK_S, Telling
from hangscope.ring.reader import decode_text
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.rings import OpenRing, RunKey
from hangscope.trace.model import KernelWait, RankFacts
from hangscope.trace.processes.process import is_elsewhere

TICK_S = 0.25
KILL_GRACE_S = 5.0
_ASKING = (signal.SIGTERM, signal.SIGHUP)
"""What asks a process to stop and ends it if it does not listen; Python listens to SIGINT."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What launchers, schedulers and people send; the last two are warnings (`--signal` of Slurm)."""


class Counters(NamedTuple):
    """One look at the counters of this node's ranks."""

    progress: dict[int, bytes]
    """For each rank what changes when it issues or finishes an operation, or changes phase."""
    waiting_since_ns: int
    """When the collective that waits longest was issued; 0: none waits."""

    @property
    def waiting_s(self) -> float:
        """How long that one has waited."""
        since_ns = self.waiting_since_ns
        return max(0.0, (time.time_ns() - since_ns) / 1e9) if since_ns else 0.0


class LocalRanks:
    """Follows the processes of one attempt's ranks on this node.

    Parameters
    ----------
    run:
        The rings of the attempt.
    directory:
        Where the journal of their ends goes.
    key:
        The attempt; None until the first rank tells.
    local_world_size:
        How many ranks this node has; 0 until the first rank tells.
    processes:
        Watches their processes.
    """

    def __init__(
        self,
        run: LiveRun,
        directory: Path,
        key: RunKey | None,
        local_world_size: int,
        processes: ProcessWatch,
    ) -> None:
        self.key = key
        self.local_world_size = local_world_size
        self.rings: list[OpenRing] = []
        self.seen: dict[int, int] = {}
        """The process of each rank that has shown up."""
        self.failed_at_ns = 0
        """When the first of them ended with anything but success."""
        self.journal: Journal | None = None
        self._run = run
        self._directory = directory
        self._processes = processes
        self._machine_of: dict[int, str] = {}
        self._looks: dict[int, RankFacts] = {}
        self._told: dict[int, tuple[str | None, bool | None, KernelWait | None]] = {}
        self._ends: dict[int, ProcessEnd] = {}
        self._telling = Telling(processes)
        self._asked = 0
        """How many have ended because they were asked to stop."""
        self._is_hung = False
        self._is_ended = False

    @property
    def alive(self) -> int:
        """Number of processes that have not ended."""
        return self._processes.alive

    def discover(self) -> None:
        """Look for new rings."""
        self.rings = self._run.refresh()
        for ring in self.rings:
            header = ring.reader.header()
            pid = header.pid
            if self.seen.get(ring.rank) == pid:
                continue
            if is_elsewhere(decode_text(header.boot_id), header.pid_namespace):
                continue  # another node's or container's: here that pid is some other process
            self.seen[ring.rank] = pid
            self.local_world_size = self.local_world_size or header.local_world_size
            self.key = self.key or ring.key
            if self.journal is None:
                self.journal = Journal(self._directory, self.key)
            self._machine_of[pid] = ring.machine
            if not self._processes.add(ring.rank, pid):
                # It ended before we could look; nobody saw how.
                self._note_end(ProcessEnd(ring.rank, pid, time.time_ns()))

    def counters(self) -> Counters:
        """What the rings' counters tell now: one look at each header and group table."""
        progress, oldest_ns = {}, 0
        for ring in self.rings:
            header = ring.reader.header()
            groups = ring.reader.groups(header.groups_used)
            progress[ring.rank] = b"".join(
                (
                    header.last_record_id.to_bytes(8, "little"),
                    header.phase_count.to_bytes(4, "little"),
                    header.phases,
                    groups["completed"].tobytes(),
                )
            )
            waiting = groups[
                (groups["completed"] >= 0) & (groups["enqueued"] > groups["completed"])
            ]
            if len(waiting):
                since_ns = int(waiting["enqueued_ns"].min())
                oldest_ns = min(oldest_ns, since_ns) if oldest_ns else since_ns
        return Counters(progress, oldest_ns)

    @property
    def were_stopped(self) -> bool:
        """Whether every process that was here ended because it was told to stop."""
        ends = [self._ends.get(pid) for pid in self.seen.values()]
        return bool(ends) and all(end is not None and end.signal in _STOPS for end in ends)

    @property
    def have_ended_well(self) -> bool:
        """Whether every process that was here ended with status 0."""
        ends = [self._ends.get(pid) for pid in self.seen.values()]
        return bool(ends) and all(end is not None and end.code == 0 for end in ends)

    def is_ending(self, facts: RankFacts) -> bool:
        """Whether a process here is going, and how it ends cannot be seen yet.

        Its first thread may be gone while others of it still run: it has no status until then.
        """
        pid = self.seen.get(facts.rank)
        return facts.alive is False and pid is not None and self._processes.watches(pid)

    def are_incomplete(self) -> bool:
        """Whether ranks of this node have yet to show up."""
        return len(self.seen) < self.local_world_size

    def note_ends(self, timeout_s: float) -> bool:
        """Wait for processes to end, at most so long; whether any did."""
        ends = self._wait(timeout_s)
        for end in ends:
            self._note_end(end)
        return bool(ends)

    def _wait(self, timeout_s: float) -> list[ProcessEnd]:
        """Wait for processes to end; while others may be told to stop, with a look now and then."""
        until_s = time.monotonic() + timeout_s
        while self._telling.is_watched and (left_s := until_s - time.monotonic()) > 0:
            if ends := self._processes.wait(min(LOOK_S, left_s)):
                return ends
            self._telling.look()
        return self._processes.wait(max(0.0, until_s - time.monotonic()))

    def note_look(self, facts: Mapping[int, RankFacts], *, hung: bool) -> None:
        """Keep what a look has told of the processes here, until they end.

        Parameters
        ----------
        facts:
            Of the look, by rank.
        hung:
            Whether something is wrong with the job: then it is written down at once, too. The
            monitor may be ended together with the ranks.
        """
        self._looks = {
            pid: facts[rank]
            for rank, pid in self.seen.items()
            if rank in facts and facts[rank].pid == pid and facts[rank].alive
        }
        self._is_hung = hung
        if self.journal is None:
            return
        for pid, look in self._looks.items():
            told = (look.process_state, look.gil_blocked, look.wait)
            known = self._told.get(pid)
            if known is not None and look.wait is not None and look.wait.is_same(known[2]):
                told = (*told[:2], known[2])
            # That it has moved on is told as well: what was told last of a process counts.
            if known != told and (hung or known is not None):
                self._told[pid] = told
                self.journal.seen(look)

    def kill(self) -> None:
        """End the processes that are left: politely, then for certain.

        Only what was found here and is watched: what other nodes report has process ids, too, which
        belong to somebody else on this one.
        """
        self._is_ended = True
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
            self._processes.send(number)
            deadline_s = time.monotonic() + (0 if number == signal.SIGTERM else KILL_GRACE_S)
            while time.monotonic() < deadline_s and self.alive:
                self.note_ends(TICK_S)
            if not self.alive:
                return

    def _note_end(self, end: ProcessEnd) -> None:
        self._ends[end.pid] = end
        oom = end.signal == signal.SIGKILL and self._processes.were_killed_for_memory()
        # A launcher stops the others with SIGTERM once one has failed.
        by_launcher = bool(self.failed_at_ns) and end.signal == signal.SIGTERM
        # Whoever ends after `kill` was told to, and is no first failure.
        by_launcher |= self._is_ended and end.signal in (signal.SIGTERM, signal.SIGKILL)
        if end.code != 0 and not self.failed_at_ns:
            self.failed_at_ns = end.at_ns
        # A process may have said after it was first seen which rank it is.
        rank = self._rank_of(end.pid, end.rank)
        if rank is None:
            return  # it only started ranks
        end = replace(end, rank=rank)
        untold, told = self._untold(end), self._told_with(end)
        if self.journal is not None:
            look = self._looks.pop(end.pid, None)
            if look is not None and (self._is_hung or is_held_up(look)):
                self.journal.seen(look)
            self.journal.exit(end, oom=oom, by_launcher=by_launcher, untold=untold, told=told)

    def _rank_of(self, pid: int, rank: int) -> int | None:
        """The rank of a process, by what it says itself; None where it only started ranks."""
        return self._run.rank_of_process().get((self._machine_of.get(pid, ""), pid), rank)

    def _untold(self, end: ProcessEnd) -> list[int] | None:
        """Ranks here that nobody had told to stop as the first, and the second, ended of that.

        None where that is not known.
        """
        if end.signal not in _ASKING or self._is_ended:
            self._telling.left_by_itself(end.pid)
            return None
        self._asked += 1
        if self._asked == 1:
            return self._ranks_of(self._telling.first_ended(end.signal))
        untold = self._telling.second_ended() if self._asked == 2 else None
        return None if untold is None else self._ranks_of(untold)

    def _told_with(self, end: ProcessEnd) -> list[int]:
        """Ranks here that had been told to stop, too, when the first had ended of that."""
        if self._asked != 1 or end.signal not in _ASKING or self._is_ended:
            return []
        return self._ranks_of(self._processes.told(end.signal))

    def _ranks_of(self, processes: Sequence[tuple[int, int]]) -> list[int]:
        """What (rank, process) of these are by what they say themselves."""
        found = (self._rank_of(pid, rank) for rank, pid in processes)
        return sorted(rank for rank in found if rank is not None)
