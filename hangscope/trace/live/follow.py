"""Follows the rings of a running job: a `Trace` per look, re-reading only what changed."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hangscope.ring.checks import RingError
from hangscope.ring.layout import HEADER
from hangscope.ring.process_identity import boot_id, machine_id, pid_namespace
from hangscope.trace import formats
from hangscope.trace.external_reports.journal import looks_like_journal, read_bytes, read_journal
from hangscope.trace.files.regular_files import open_nonblocking
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank, duplicate_rank_claims
from hangscope.trace.job_selection.ring_ranks import with_process_rank, with_rank
from hangscope.trace.live.facts import Heartbeat, changed_headers
from hangscope.trace.live.own_run import OwnRun
from hangscope.trace.live.rings import JournalFiles, OpenRing, RingFolder, RunKey
from hangscope.trace.live.table import LiveTable, StaleError
from hangscope.trace.merging.facts import merge_facts
from hangscope.trace.merging.groups import GroupMatcher
from hangscope.trace.merging.host_names import with_unique_host_names
from hangscope.trace.merging.merge import merge, sort_fragments
from hangscope.trace.model import NONE, Fragment, RankFacts, Records, Source, Trace
from hangscope.trace.nccl.merge import with_device_events
from hangscope.trace.nccl.rings import device_ring_of, fingerprint_of
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.signals import target_of
from hangscope.trace.rings.facts import main_thread_call, writer_of
from hangscope.trace.rings.read import fragment_of

_IDENTITY_FIELDS = (
    "rank", "world_size", "run_id", "attempt", "disabled", "values_refused", "groups_refused",
)  # fmt: skip
"""Header fields whose change affects more than the facts of one process."""
_ATTEMPTS = 3
"""How often a look is begun, if rings become shorter during it."""
_RECORDED_NS = 60 * 10**9
"""A process last seen alive longer ago than this does not count as alive now."""


@dataclass(slots=True)
class _Merged:
    """Everything read and merged once, and kept up to date since."""

    rings: list[OpenRing]
    ranks: list[int]
    journals: JournalFiles
    warnings: list[str]
    trace: Trace
    table: LiveTable
    headers: Records
    from_journals: list[Fragment]
    sources: list[Source]
    """The rings' sources in order; in the trace, those of journals follow."""


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
        self._merged: _Merged | None = None
        self._counters = b""
        self._told = b""
        self._locks_now: Callable[[Path], FileLocks] = FileLocks.now
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
        self._locks_now = functools.cache(FileLocks.now)
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
        rows, merged, newest = self._rows, self._merged, self._newest_records
        self._rows, self._merged = None, None
        try:
            return self.look()
        finally:
            self._rows, self._merged, self._newest_records = rows, merged, newest

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
            rings = self.refresh()
            return (None if others else self._update(rings)) or self._merge(rings, others)
        except RingError:
            self._merged = None
            if attempts == 1:
                raise
        return self._read_rings(others, attempts - 1)  # without those that are not sound any more

    def _update(self, rings: list[OpenRing]) -> Trace | None:
        """The last look's trace with what was added since; None if more than that has changed."""
        merged = self._merged
        if (
            merged is None
            or not rings
            or merged.rings != rings
            or merged.ranks != [ring.rank for ring in rings]
            or merged.journals != self._folder.listing.journals
            or merged.warnings != self._folder.warnings(rings)
        ):
            return None
        headers = _headers(rings)
        changed = changed_headers(headers, merged.headers)
        if changed.any() and any((headers[n] != merged.headers[n]).any() for n in _IDENTITY_FIELDS):
            return None
        merged.headers = headers
        table = merged.table
        try:
            moved = table.update(headers)
        except StaleError:
            return None
        self._note_counters(table if moved.any() else None)
        for number in np.flatnonzero(moved).tolist():
            call = table.calls.get(number)
            if call is not None:
                stack = table.stacks[call.stack]
                rings[number].process.call = main_thread_call(stack, call.created_ns)
        counts = (table.high - table.low).tolist()
        oldest = np.zeros(len(rings), np.int64)
        some = table.high > table.low
        oldest[some] = table.records["record_id"][table.low[some]]
        dropped = (table.torn + headers["dropped"].astype(np.int64)).tolist()
        facts: dict[int, RankFacts] = {}
        beats = Heartbeat.of_all(headers)
        seen = zip(beats, changed.tolist(), moved.tolist(), dropped, oldest.tolist(), strict=True)
        for ring, what in zip(rings, seen, strict=True):
            facts[ring.rank] = ring.process.observe_again(*what, self._locks_now)
        if merged.from_journals:
            facts = _with_journals(facts, merged.from_journals)
        if self.moved:
            merged.sources = [
                source
                if source.records == count and source.dropped == lost
                else replace(source, records=count, dropped=lost)
                for source, count, lost in zip(merged.sources, counts, dropped, strict=True)
            ]
            rest = merged.trace.sources[len(rings) :]
            merged.trace = replace(table.into(merged.trace), sources=(*merged.sources, *rest))
        return replace(merged.trace, ranks=with_unique_host_names(facts))

    def _merge(self, rings: list[OpenRing], others: Sequence[Fragment]) -> Trace:
        """Read everything that has changed, and merge all of it."""
        headers = _headers(rings)
        if self._rows is None or not rings:
            self._newest_records = None
        else:
            self._newest_records = max(1, self._rows // len(rings))
        own = [self._read(ring) for ring in rings]
        here = {ring.rank for ring in rings}
        rest = [fragment for fragment in others if fragment.facts.rank not in here]
        journals = list(self._journal(rings)) if rings else []
        warnings = self._folder.warnings(rings)
        fragments = [*own, *rest, *journals]
        trace = merge(fragments, warnings=warnings)
        self._merged, self.moved = None, True
        if own and not others:
            matcher = GroupMatcher(sort_fragments(fragments))
            by_path = {s.path: s for s in trace.sources}
            ours = [by_path[f.source.path] for f in own]
            own_parts = set(map(id, ours))
            trace = replace(
                trace, sources=(*ours, *(s for s in trace.sources if id(s) not in own_parts))
            )
            table = LiveTable(
                [ring.reader for ring in rings],
                [ring.rank for ring in rings],
                [matcher.map_of(fragment)[:-1] for fragment in own],
                trace,
                self._newest_records,
            )
            try:
                table.update(_headers(rings))  # changes made while the rings were read
            except StaleError:
                return trace
            self._note_counters(table)
            trace = table.into(trace)
            self._merged = _Merged(
                rings,
                [ring.rank for ring in rings],
                self._folder.listing.journals,
                warnings,
                trace,
                table,
                headers,
                journals,
                ours,
            )
            for ring in rings:
                ring.fragment = None  # the table holds its records
        return trace

    def _note_counters(self, table: LiveTable | None) -> None:
        """Set `moved`; a table of None means that nothing has moved."""
        before = self._counters
        if table is not None:
            self._counters = table.counters()
        self.moved = table is not None and (self._counters != before or self._merged is not None)

    def _read(self, ring: OpenRing) -> Fragment:
        header = ring.reader.header()
        # Changes with every record and every completion; heartbeats alone change only facts.
        fingerprint = ring.reader.groups().tobytes() + header.last_record_id.to_bytes(8, "little")
        generation = header.sample_generation
        known = ring.fragment is not None and ring.fragment.facts.rank == ring.rank
        if ring.fragment is not None and known and fingerprint == ring.fingerprint:
            old = ring.fragment.facts
            facts = ring.process.observe_again(
                Heartbeat.of(header),
                True,
                False,
                old.dropped,
                old.oldest_record_id,
                self._locks_now,
            )
        else:
            fragment = fragment_of(ring.reader, newest=self._newest_records)
            ring.fragment = with_rank(fragment, ring.rank)
            facts = ring.process.observe_first(ring.fragment.facts, generation)
        ring.fingerprint = fingerprint
        ring.fragment = replace(ring.fragment, facts=facts)
        return ring.fragment

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


def _headers(rings: Sequence[OpenRing]) -> Records:
    """A copy of all headers as of this look: shape (rings,), dtype `HEADER`."""
    return np.frombuffer(b"".join(ring.reader.head for ring in rings), HEADER)


def _with_journals(
    facts: Mapping[int, RankFacts], said: Iterable[Fragment]
) -> dict[int, RankFacts]:
    """The facts of rings merged with what monitors recorded about the same ranks."""
    all_said = {rank: [(formats.RING, own)] for rank, own in facts.items()}
    for fragment in said:
        if fragment.facts.rank != NONE:
            all_said.setdefault(fragment.facts.rank, []).append(
                (fragment.source.format, fragment.facts)
            )
    return {rank: merge_facts(all_said[rank]) for rank in sorted(all_said)}
