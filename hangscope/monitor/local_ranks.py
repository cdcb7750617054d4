"""The ranks whose processes run on this node: which exist, whether they progress, how they end."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hangscope.monitor.journal import Journal
from hangscope.monitor.processes import ProcessEnd, ProcessWatch
from hangscope.monitor.rank_state import is_blocked_from_outside
from hangscope.monitor.starting_ranks import StartingRanks
from hangscope.monitor.stop_signals import LOOK_S, StopSignals
from hangscope.ring.layout import GROUP, HEADER, header_offset
from hangscope.ring.reader import decode_text
from hangscope.ring.run_secret import RunSecret
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import OpenRing, RunKey
from hangscope.trace.model import KernelWait, RankFacts
from hangscope.trace.nccl.rings import noted_in
from hangscope.trace.processes.process import is_remote
from hangscope.trace.processes.signals import DescendsFrom, Evidence, launcher_of, targets_of
from hangscope.trace.rings.facts import writer_of


def _field(name: str) -> slice:
    """Where a field is in a ring's header."""
    at, length = header_offset(name), HEADER[name].itemsize
    return slice(at, at + length)


TICK_S = 0.25
KILL_GRACE_S = 5.0
NOTE_AGAIN_NS = 20 * 10**9
_ASKING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process unless it handles them; SIGINT is missing because Python does."""
_PID, _GROUPS_USED = _field("pid"), _field("groups_used")
_PROGRESS = (_field("last_record_id"), _field("phase_count"), _field("phases"))
"""What changes when a rank issues an operation or changes phase. A look at every tick decodes no
whole headers: at a hundred ranks that would be most of what the monitor costs."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Stop signals of launchers, schedulers and people; the last two are Slurm's ``--signal``."""


class Counters(NamedTuple):
    """The counters of this node's ranks at one moment."""

    progress: dict[int, bytes]
    """For each rank, a value that changes when it issues or finishes an operation or changes
    phase."""
    tables: dict[int, bytes]
    """The group table of each rank's ring."""
    waiting_since_ns: int
    """When the longest waiting collective was issued; 0 if none waits."""

    @property
    def waiting_s(self) -> float:
        """How long the longest waiting collective has waited."""
        return seconds_since(self.waiting_since_ns)


def waiting_since_ns(groups: np.ndarray[tuple[int], np.dtype[np.void]]) -> int:
    """When the longest waiting collective of these group tables was issued; 0 if none waits."""
    waiting = (groups["commit"] == 1) & (groups["completed"] >= 0)
    waiting &= groups["enqueued"] > groups["completed"]
    return int(groups["enqueued_ns"][waiting].min()) if waiting.any() else 0


def seconds_since(since_ns: int) -> float:
    """How long ago that was; 0 for 0, which stands for never."""
    return max(0.0, (time.time_ns() - since_ns) / 1e9) if since_ns else 0.0


class LocalRanks:
    """Follows the processes of one attempt's ranks on this node.

    Parameters
    ----------
    run:
        The rings of the attempt.
    directory:
        Where to write the journal.
    key:
        The attempt; None to take that of the first rank found.
    local_world_size:
        Number of ranks on this node; 0 to take that of the first rank found.
    processes:
        Watches the ranks' processes.
    journal_secret:
        Seals the journal.
    launcher:
        What has started the ranks, if known; else it is found.
    """

    def __init__(
        self,
        run: LiveRun,
        directory: Path,
        key: RunKey | None,
        local_world_size: int,
        processes: ProcessWatch,
        journal_secret: RunSecret,
        launcher: DescendsFrom | None = None,
    ) -> None:
        self.key = key
        self.local_world_size = local_world_size
        self.rings: list[OpenRing] = []
        self.seen: dict[int, int] = {}
        """Process id of each rank that has shown up."""
        self.failed_at_ns = 0
        """When the first of them failed (ended with anything but status 0)."""
        self.journal: Journal | None = None
        self._run = run
        self._directory = directory
        self._processes = processes
        self._journal_secret = journal_secret
        self._launcher = launcher
        self._machine_of: dict[int, str] = {}
        self._looks: dict[int, RankFacts] = {}
        self._told: dict[int, tuple[str | None, bool | None, KernelWait | None, int]] = {}
        self._ends: dict[int, ProcessEnd] = {}
        self._stop_signals = StopSignals(processes)
        self._starting = StartingRanks()
        self._watched_starting: dict[int, int] = {}
        self._asked = 0
        """How many have been ended by a signal of `_ASKING`."""
        self._is_hung = False
        self._is_ended = False

    @property
    def alive(self) -> int:
        """Number of processes that have not ended."""
        return self._processes.alive

    @property
    def known(self) -> set[int]:
        """Ranks of this node that have a ring or at least a process."""
        return {*self.seen, *self._watched_starting}

    def discover(self) -> None:
        """Look for new rings."""
        self.rings = self._run.refresh()
        for ring in self.rings:
            if self.seen.get(ring.rank) == int.from_bytes(ring.reader.head[_PID], "little"):
                continue
            header = ring.reader.header()
            pid = header.pid
            if self.seen.get(ring.rank) == pid:
                continue
            if is_remote(decode_text(header.boot_id), header.pid_namespace):
                continue  # of another node or container: here that pid is an unrelated process
            self.seen[ring.rank] = pid
            self._forget_starting(ring.rank, pid)
            self.local_world_size = self.local_world_size or header.local_world_size
            self.key = self.key or ring.key
            if self.journal is None:
                self.journal = Journal(self._directory, self.key, self._journal_secret)
            self._machine_of[pid] = ring.machine
            if not self._processes.add(ring.rank, pid, header.start_ticks):
                # It ended before it could be watched, so nobody saw how.
                self._note_end(ProcessEnd(ring.rank, pid, time.time_ns()))

    def counters(self) -> Counters:
        """Read the group table of each ring; its header is that of the newest `discover`."""
        progress, tables = {}, {}
        for ring in self.rings:
            head = ring.reader.head
            table = ring.reader.group_bytes(int.from_bytes(head[_GROUPS_USED], "little"))
            told = noted_in(ring.reader.name).to_bytes(8, "little")  # a replay leaves no record
            progress[ring.rank] = b"".join((*(head[part] for part in _PROGRESS), table, told))
            tables[ring.rank] = table
        groups = np.frombuffer(b"".join(tables.values()), GROUP)
        return Counters(progress, tables, waiting_since_ns(groups))

    @property
    def were_stopped(self) -> bool:
        """Whether every process seen here was ended by a stop signal."""
        ends = [self._ends.get(pid) for pid in self.seen.values()]
        return bool(ends) and all(end is not None and end.signal in _STOPS for end in ends)

    @property
    def have_ended_well(self) -> bool:
        """Whether every process seen here ended with status 0."""
        ends = [self._ends.get(pid) for pid in self.seen.values()]
        return bool(ends) and all(end is not None and end.code == 0 for end in ends)

    def is_ending(self, facts: RankFacts) -> bool:
        """Whether a rank's process is exiting here but has no exit status yet.

        Its main thread may be gone while other threads still run; the status comes with the last.
        """
        pid = self.seen.get(facts.rank)
        return facts.alive is False and pid is not None and self._processes.watches(pid)

    def are_incomplete(self) -> bool:
        """Whether ranks of this node have yet to show up."""
        return len(self.seen) < self.local_world_size

    def are_starting(self) -> bool:
        """Whether ranks of this node that have yet to show up, or may have, are busy starting."""
        if self.local_world_size and not self.are_incomplete():
            return False
        unmet = self._unmet_world_size()
        self._starting.look(self.seen, unmet)
        if not unmet:  # whoever has no ring has been there, unless its launcher tells otherwise
            for rank in self._watched_starting.keys() - self._starting.pids.keys():
                self._take_back(rank, self._watched_starting[rank])
        for rank, pid in self._starting.pids.items():
            if rank not in self._watched_starting and self._processes.add(rank, pid):
                self._watched_starting[rank] = pid
        return self._starting.are_busy

    def _unmet_world_size(self) -> int:
        """How many ranks are to meet in the first ``init_process_group``.

        0 if any has left it: then all have been there, recorded or not.
        """
        sizes = set()
        for ring in self.rings:
            header = ring.reader.header()
            if header.initialized:
                return 0
            if header.declared:
                sizes.add(header.world_size)
        return sizes.pop() if len(sizes) == 1 else 0

    def _forget_starting(self, rank: int, pid: int) -> None:
        """A rank has begun to record in a process; other processes were not that rank."""
        for known, starting in list(self._watched_starting.items()):
            if known == rank or starting == pid:
                del self._watched_starting[known]
                if (known, starting) != (rank, pid):
                    self._processes.remove(starting)  # it has only started the rank, or is another
                self._take_back(known, starting)
        self._take_back(rank, pid)

    def note_starting(self) -> None:
        """Write to the journal which ranks have a process but have not begun to record."""
        for rank, pid in self._starting.pids.items():
            if rank in self.seen:
                continue
            facts = self._starting.facts(rank)
            if facts is not None:
                self._note_seen(facts)
            else:
                self._take_back(rank, pid)

    def _take_back(self, rank: int, pid: int) -> None:
        """A process is past the point at which it was seen as starting."""
        if self.journal is not None and self._told.pop(pid, None) is not None:
            self.journal.unseen(rank, pid)

    def note_ends(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for processes to end, and record how; True if any did."""
        ends = self._wait(timeout_s)
        for end in ends:
            self._note_end(end)
        return bool(ends)

    def _wait(self, timeout_s: float) -> list[ProcessEnd]:
        """Wait for processes to end; meanwhile track stop signals to the others where needed."""
        until_s = time.monotonic() + timeout_s
        while self._stop_signals.is_watched and (left_s := until_s - time.monotonic()) > 0:
            if ends := self._processes.wait(min(LOOK_S, left_s)):
                return ends
            self._stop_signals.look()
        return self._processes.wait(max(0.0, until_s - time.monotonic()))

    def note_look(self, facts: Mapping[int, RankFacts], *, hung: bool) -> None:
        """Keep what a look found out about the processes here until they end.

        Parameters
        ----------
        facts:
            Facts of the look, by rank.
        hung:
            Whether something is wrong with the job. If so, also write to the journal at once, as
            the monitor may be killed together with the ranks.
        """
        self._looks = {
            pid: facts[rank]
            for rank, pid in self.seen.items()
            if rank in facts and facts[rank].pid == pid and facts[rank].alive
        }
        self._is_hung = hung
        for pid, look in self._looks.items():
            # Readers take a process's newest entry, so one is written when it moves on, too.
            if hung or pid in self._told:
                self._note_seen(look)

    def _note_seen(self, look: RankFacts) -> None:
        """Write to the journal what holds up a process, unless the last entry says the same.

        For one without a ring again from time to time: nothing else shows that it still lives.
        """
        pid, wait = look.pid or 0, look.wait
        known, recorded = self._told.get(pid), pid in self.seen.values()
        if known is not None and wait is not None and wait.is_same(known[2]):
            wait = known[2]
        period = 0 if recorded else look.observed_ns // NOTE_AGAIN_NS
        told = (look.process_state, look.gil_blocked, wait, period)
        if self.journal is not None and known != told:
            self._told[pid] = told
            self.journal.seen(look, recorded=recorded)

    def kill(self) -> list[int]:
        """End the remaining processes: SIGTERM first, then SIGKILL; returns whom it left alone.

        That are the process ids of those that nothing shows to belong to the job. In reverse order
        of arrival: if a rank was started by another one, it must get the signal before its parent
        ends, as `torch.multiprocessing` interrupts it otherwise, and it would seem to exit by
        itself.
        """
        self._is_ended = True
        pids = [pid for _, pid in reversed(self._processes.processes)]
        with targets_of((pid, *self._evidence(pid)) for pid in pids) as targets:
            for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
                for target in targets.values():
                    target.send(number)
                deadline_s = time.monotonic() + (0 if number == signal.SIGTERM else KILL_GRACE_S)
                while time.monotonic() < deadline_s and self.alive:
                    self.note_ends(TICK_S)
        return [pid for pid in pids if pid not in targets and self._processes.watches(pid)]

    def _evidence(self, pid: int) -> tuple[int, list[Evidence]]:
        """A process's start time, and what may show that it is a rank: its ring, its launcher."""
        rings = [ring for ring in self.rings if ring.process.pid == pid]
        started_ticks = rings[0].process.start_ticks if rings else 0
        writers = [writer_of(ring.reader) for ring in rings]
        return started_ticks, [*writers, self._launcher or self._found_launcher()]

    def _found_launcher(self) -> DescendsFrom:
        """What has started all ranks that are known to write their rings."""
        pids = [(ring.process.pid, writer_of(ring.reader)) for ring in self.rings]
        return launcher_of([pid for pid, writer in pids if writer.holds(pid)])

    def _note_end(self, end: ProcessEnd) -> None:
        self._ends[end.pid] = end
        oom = end.signal == signal.SIGKILL and self._processes.were_killed_for_memory()
        # After one rank has failed, its launcher stops the others with SIGTERM.
        by_launcher = bool(self.failed_at_ns) and end.signal == signal.SIGTERM
        # A process that ends after `kill` was ended by it: this is not a failure of its own.
        by_launcher |= self._is_ended and end.signal in (signal.SIGTERM, signal.SIGKILL)
        if end.code != 0 and not self.failed_at_ns:
            self.failed_at_ns = end.at_ns
        # A process may have declared its rank only after it was first seen.
        rank = self._rank_of(end.pid, end.rank)
        if rank is None:
            return  # it only started ranks
        end = replace(end, rank=rank)
        untold, told = self._unsignalled_ranks(end), self._signalled_ranks(end)
        recorded = end.pid in self.seen.values() or not self._starting.had_not_joined(end.rank)
        if self.journal is not None:
            look = self._looks.pop(end.pid, None)
            if look is not None and (self._is_hung or is_blocked_from_outside(look)):
                self.journal.seen(look, recorded=True)
            self.journal.exit(
                end,
                oom=oom,
                by_launcher=by_launcher,
                untold=untold,
                told=told,
                recorded=recorded,
                by_order=not recorded and self._starting.are_placed_by_order,
            )

    def _rank_of(self, pid: int, rank: int) -> int | None:
        """The rank that a process itself declares; None if it only started ranks."""
        return self._run.rank_of_process().get((self._machine_of.get(pid, ""), pid), rank)

    def _unsignalled_ranks(self, end: ProcessEnd) -> list[int] | None:
        """Local ranks not yet sent the stop signal when the first or the second rank ended by it.

        None if that is not known.
        """
        if end.signal not in _ASKING or self._is_ended:
            self._stop_signals.discard(end.pid)
            return None
        self._asked += 1
        if self._asked == 1:
            return self._ranks_of(self._stop_signals.first_ended(end.signal))
        untold = self._stop_signals.second_ended() if self._asked == 2 else None
        return None if untold is None else self._ranks_of(untold)

    def _signalled_ranks(self, end: ProcessEnd) -> list[int]:
        """Local ranks that had also been sent the stop signal when the first rank ended by it."""
        if self._asked != 1 or end.signal not in _ASKING or self._is_ended:
            return []
        return self._ranks_of(self._processes.signalled(end.signal))

    def _ranks_of(self, processes: Sequence[tuple[int, int]]) -> list[int]:
        """The ranks that these processes, given as (rank, pid), themselves declare."""
        found = (self._rank_of(pid, rank) for rank, pid in processes)
        return sorted(rank for rank in found if rank is not None)
