"""Follows the rings of a running job: a `Trace` per look, re-reading only what changed."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hangscope.ring.checks import RingError
from hangscope.ring.process_identity import boot_id, machine_id, pid_namespace
from hangscope.trace import formats
from hangscope.trace.external_reports.journal import looks_like_journal, read_bytes, read_journal
from hangscope.trace.files.regular_files import open_nonblocking
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank, duplicate_rank_claims
from hangscope.trace.job_selection.processes import with_process_rank
from hangscope.trace.live.open_ring import OpenRing, RunKey
from hangscope.trace.live.own_run import OwnRun
from hangscope.trace.live.rings import JournalFiles, RingFolder
from hangscope.trace.merging.host_names import with_unique_host_names
from hangscope.trace.merging.merge import facts_by_rank, merge, sort_fragments
from hangscope.trace.model import Fragment, RankFacts, Source, Trace
from hangscope.trace.nccl.merge import with_device_events
from hangscope.trace.nccl.rings import device_ring_of, fingerprint_of
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.signals import target_of
from hangscope.trace.rings.batch import RingBatch
from hangscope.trace.rings.facts import stale_after_ns, writer_of

_ATTEMPTS = 3
"""How often a look is begun, if rings become shorter during it."""
_RECORDED_NS = 60 * 10**9
"""A process last seen alive longer ago than this does not count as alive now."""


class _Inputs(NamedTuple):
    """What a look's trace was made of, beside the records of its rings."""

    rings: list[tuple[OpenRing, int]]
    """Each ring and its rank."""
    journals: JournalFiles
    warnings: list[str]


class LiveRun:
    """The rings of one attempt below a run directory.

    Parameters
    ----------
    directory, key, skip, own:
        As for `RingFolder`.
    rows:
        How many records of all ranks together to keep, the newest of each; by default all that the
        rings hold.

    Notes
    -----
    Maps are read-only: looking costs the job nothing. `ask_for_stacks` is the one exception, and
    only reaches processes that the kernel shows to write the ring and to handle the signal.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        key: RunKey | None = None,
        *,
        skip: frozenset[RunKey] = frozenset(),
        rows: int | None = None,
        own: OwnRun | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._own = own
        self._folder = RingFolder(self.directory, key, skip, own)
        self._rings: list[OpenRing] = []
        self._rows = rows
        self._newest_records: int | None = None
        self._inputs: _Inputs | None = None
        self._last: Trace | None = None
        """Of the last look, if nothing but these inputs was in it."""
        self._journals: list[Fragment] = []
        self._told = b""
        self.looks = 0
        self.moved = True
        """Whether any rank has issued or finished anything between the last two looks."""

    def look(self, others: Sequence[Fragment] = ()) -> Trace:
        """The job as it is now; ``trace.looks`` counts the looks that could be compared.

        ``others`` are fragments of ranks whose rings are not in the directory.

        Raises
        ------
        RingError
            If rings become shorter during the look, again and again.
        """
        self.looks += 1
        trace = self._read_rings(others, _ATTEMPTS)
        now_ns = time.time_ns()
        # A process that was alive long ago, according to a journal, is a recorded observation.
        live = any(
            facts.beats_at(now_ns)
            if facts.alive is None
            else facts.alive and facts.observed_ns > now_ns - _RECORDED_NS
            for facts in trace.ranks.values()
        )
        if self.duplicate_ranks:
            trace = replace(
                trace, claims=(*trace.claims, *duplicate_rank_claims(self.duplicate_ranks))
            )
        trace = self._with_devices(trace)
        return replace(trace, live=live, looks=self.looks, observed_ns=now_ns)

    def may_live(self) -> bool:
        """Whether a look might find a living rank: without reading what the ranks recorded."""
        rings, now_ns = self.refresh(), time.time_ns()
        written = (at_ns for _, _, at_ns in self._folder.listing.journals)
        if any(at_ns > now_ns - _RECORDED_NS for at_ns in written):
            return True
        for ring in rings:
            alive, header = ring.process.look().alive, ring.reader.header()
            beats = abs(now_ns - header.heartbeat_ns) <= stale_after_ns(header)
            if alive or (alive is None and beats):
                return True
        return False

    def _with_devices(self, trace: Trace) -> Trace:
        devices = {r.rank: device_ring_of(r.reader.name, r.process.pid) for r in self._rings}
        before, self._told = self._told, fingerprint_of(devices)
        self.moved |= before not in (b"", self._told)
        return with_device_events(trace, devices)

    @property
    def is_partial(self) -> bool:
        """Whether rings hold records that the last look left out."""
        return self._newest_records is not None and any(
            ring.reader.slot_count > self._newest_records
            and ring.process.facts is not None
            and ring.process.facts.oldest_record_id > 1
            for ring in self._rings
        )

    def look_at_all(self) -> Trace:
        """Like `look`, but reads anew everything that the rings hold."""
        rows, newest = self._rows, self._newest_records
        self._rows = None
        try:
            return self.look()
        finally:
            self._rows, self._newest_records = rows, newest

    def refresh(self) -> list[OpenRing]:
        """Find the rings of the followed attempt, opening new files; lowest rank first."""
        self._rings = self._folder.refresh()
        return self._rings

    @property
    def findings(self) -> list[str]:
        """Files to which ranks write wrong results of reductions, as of the last look."""
        return self._folder.listing.findings

    def rank_of_process(self) -> dict[tuple[str, int], int | None]:
        """As `RingFolder.rank_of_process`."""
        return self._folder.rank_of_process()

    def up_to_followed(self) -> set[RunKey]:
        """As `RingFolder.up_to_followed`."""
        return self._folder.up_to_followed()

    @property
    def declared_duplicates(self) -> list[DuplicateRank]:
        """Duplicate ranks that both processes have declared themselves."""
        return [
            pair
            for pair in self._folder.duplicate_ranks
            if {pair.one, pair.two} <= self._folder.declared
        ]

    @property
    def duplicate_ranks(self) -> list[DuplicateRank]:
        """Ranks that two living processes have."""
        return self._folder.duplicate_ranks

    def ask_for_stacks(self, wanted: Callable[[RankFacts], bool]) -> int:
        """Make processes that cannot run Python write their stacks; returns how many were asked.

        Each is asked once per stall: again only after its heartbeat has moved.
        """
        asked = 0
        for ring in self._rings:
            facts = ring.process.facts
            if facts is None or not wanted(facts):
                continue
            header = ring.reader.header()
            number, beats = header.fault_signal, header.heartbeat_count
            if not number or ring.asked_at_count == beats:
                continue
            look = ring.process.look()
            if not look.alive or look.state == "stopped":
                continue
            ring.asked_at_count = beats
            target = target_of(ring.process.pid, ring.process.start_ticks, [writer_of(ring.reader)])
            if target is not None:
                with contextlib.closing(target):
                    asked += target.ask_for_stacks(header.watcher_thread, number)
        return asked

    def close(self) -> None:
        """Unmap everything."""
        self._folder.close()
        self._rings = []

    # -- pieces ----------------------------------------------------------------------------

    def _read_rings(self, others: Sequence[Fragment], attempts: int) -> Trace:
        try:
            return self._read(self.refresh(), others)
        except RingError:
            self._last = None
            if attempts == 1:
                raise
        return self._read_rings(others, attempts - 1)  # without those that are not sound any more

    def _read(self, rings: list[OpenRing], others: Sequence[Fragment]) -> Trace:
        """The last look's trace with the facts of now or, if anything else is new, another one."""
        self._newest_records = max(1, self._rows // len(rings)) if self._rows and rings else None
        moved = [ring.update(self._newest_records) for ring in rings]
        inputs = _Inputs(
            [(ring, ring.rank) for ring in rings],
            self._folder.listing.journals,
            self._folder.warnings(rings),
        )
        last, known = self._last, inputs == self._inputs
        self._inputs, self.moved = inputs, any(moved) or not known
        locks_now = functools.cache(FileLocks.now)
        if last is not None and known and not others and not any(moved):
            facts = [_only(ring.facts(locks_now), formats.RING) for ring in rings]
            ranks = facts_by_rank(sort_fragments([*facts, *self._journals]))
            return replace(last, ranks=with_unique_host_names(ranks))
        if not known or not rings:
            self._journals = list(self._journal(rings)) if rings else []
        here = {ring.rank for ring in rings}
        batch = RingBatch(sum(len(ring.slots.slots) for ring in rings if ring.slots is not None))
        fragments = [ring.fragment(batch, locks_now) for ring in rings]
        fragments += [fragment for fragment in others if fragment.facts.rank not in here]
        trace = merge([*fragments, *self._journals], warnings=inputs.warnings, block=batch.block)
        self._last = None if others else trace
        return trace

    def _journal(self, rings: Sequence[OpenRing]) -> Iterable[Fragment]:
        key = self._folder.followed
        processes = {(ring.rank, ring.process.pid) for ring in rings}
        ranks = self.rank_of_process()
        for name, _, _ in self._folder.listing.journals:
            for said in self._said_in(name, rings):
                fragment = with_process_rank(said, ranks)
                if fragment is None:
                    continue
                facts = fragment.facts
                if (facts.rank, facts.pid) in self._folder.replaced:
                    continue  # an earlier job with the same run id
                here = RunKey(facts.run_id or "", facts.attempt or 0) == key
                if here or (facts.rank, facts.pid) in processes:
                    yield fragment

    def _said_in(self, name: str, rings: Sequence[OpenRing]) -> list[Fragment]:
        """What a journal says, as far as it counts.

        Nothing seals what monitors of other nodes say, unless all nodes have a secret: it counts
        for ranks elsewhere.
        """
        path = self.directory / name
        try:
            if self._own is None:
                data, is_sealed = read_bytes(open_nonblocking(path)), True
            else:
                data, is_sealed = self._own.journal(self.directory, name)
            fragments = read_journal(path, data) if looks_like_journal(data[:64]) else []
        except (OSError, ValueError):
            return []
        if is_sealed:
            return fragments
        here = {ring.rank for ring in rings if ring.is_certain}
        if self._folder.are_all_here():
            return []
        own = machine_id(boot_id(), pid_namespace())
        return [f for f in fragments if f.facts.rank not in here and f.facts.machine != own]


def is_gil_blocked(facts: RankFacts) -> bool:
    """Whether only a signal can make this rank write its stack."""
    return bool(facts.gil_blocked)


def _only(facts: RankFacts, kind: str) -> Fragment:
    return Fragment(Source("", kind), facts)
