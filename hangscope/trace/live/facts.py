"""Facts about a running ring's process, re-read only if they have changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.ring import portable
from hangscope.ring.header import RingHeader
from hangscope.ring.layout import HEADER
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace.facts import RUNNABLE, STALE_HEARTBEATS
from hangscope.trace.model import KernelWait, RankFacts, Records, Stack, ThreadStack
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.process import ProcessLook, is_local, look_here
from hangscope.trace.rings.facts import facts_of, kernel_wait
from hangscope.trace.stack_dump import parse_sample

_COMPARABLE_S = 0.2
"""Two observations closer together than this show nothing about CPU use."""
_IDLE_CPU = 0.1
"""CPU seconds per second of a thread that sleeps nearly all the time."""
_VOLATILE = (
    "heartbeat_ns", "heartbeat_count", "last_record_id", "values_used", "sample_generation",
    "sample_ns",
)  # fmt: skip
"""Header fields that change in a healthy job; a change of any other requires a full read."""
_NAMES = [field.name for field in fields(RankFacts)]
_FIELDS = {name: (place[0], int(place[1])) for name, place in (HEADER.fields or {}).items()}
_USED_WORDS = -(-max(at + kind.itemsize for kind, at in _FIELDS.values()) // 8)
_values = attrgetter(*_NAMES)
_AT = {name: place for place, name in enumerate(_NAMES)}


def _stable_bits() -> npt.NDArray[np.uint64]:
    """A mask over the header as 8-byte words: all bits set except those of `_VOLATILE`."""
    mask = np.full(HEADER.itemsize, 0xFF, np.uint8)
    for name in _VOLATILE:
        kind, at = _FIELDS[name]
        mask[at : at + kind.itemsize] = 0
    return mask.view(np.uint64)


_STABLE_BITS = _stable_bits()[:_USED_WORDS]


def changed_headers(now: Records, before: Records) -> npt.NDArray[np.bool_]:
    """Which headers differ in more than the fields that change in a healthy job.

    Parameters
    ----------
    now, before:
        Shape (rings,), dtype `hangscope.ring.layout.HEADER`.
    """
    shape = (len(now), HEADER.itemsize // 8)
    a = now.view(np.uint64).reshape(shape)[:, :_USED_WORDS]
    b = before.view(np.uint64).reshape(shape)[:, :_USED_WORDS]
    changed: npt.NDArray[np.bool_] = (((a ^ b) & _STABLE_BITS) != 0).any(axis=1)
    return changed


class Heartbeat(NamedTuple):
    """The header fields needed to observe a healthy process, with the same names."""

    heartbeat_ns: int
    exit_ns: int
    sample_generation: int

    @classmethod
    def of(cls, header: RingHeader) -> Heartbeat:
        """From one header."""
        return cls(header.heartbeat_ns, header.exit_ns, header.sample_generation)

    @classmethod
    def of_all(cls, headers: Records) -> list[Heartbeat]:
        """From many: shape (rings,), dtype `hangscope.ring.layout.HEADER`."""
        columns = (headers[name].tolist() for name in cls._fields)
        return list(map(cls._make, zip(*columns, strict=True)))


class Comparison(NamedTuple):
    """What only two observations of a process can show; None if there was only one."""

    busy: float | None = None
    """CPU seconds per second."""
    moved: bool | None = None
    """Whether the stack moved."""
    wakeups_hz: float | None = None
    """How often per second the main thread was scheduled."""


_NOT_COMPARED = Comparison()


@dataclass(slots=True)
class ProcessView:
    """One ring's process between two observations."""

    reader: RingReader
    pid: int
    start_ticks: int
    here: bool
    """Whether its pid is valid in our pid namespace."""
    facts: RankFacts | None = None
    call: ThreadStack | None = None
    """The main thread's newest recorded call."""
    generation: int = -1
    cpu_ticks: int = 0
    cpu_at_s: float = 0.0
    slices: int | None = None
    progress: tuple[Stack, ...] = ()
    wait: KernelWait | None = None
    """What it waited for at the last observation."""
    compared: Comparison = _NOT_COMPARED
    """The result of the last comparison of two observations."""

    @classmethod
    def of(cls, reader: RingReader, header: RingHeader) -> ProcessView:
        """The view of a ring that was just opened."""
        return cls(
            reader,
            header.pid,
            header.start_ticks,
            is_local(decode_text(header.boot_id), header.pid_namespace),
        )

    def observe_first(self, facts: RankFacts, generation: int) -> RankFacts:
        """Facts from a full read, completed by a comparison with the last observation."""
        calls = [t for t in facts.threads if t.source == "record"]
        self.call = calls[0] if calls else None
        self.generation = generation
        return self._kept(facts, self.look())

    def observe_again(
        self,
        beat: Heartbeat,
        changed: bool,
        moved: bool,
        dropped: int,
        oldest: int,
        locks_now: Callable[[Path], FileLocks],
    ) -> RankFacts:
        """The current facts.

        Parameters
        ----------
        beat:
            From the ring's current header.
        changed:
            Whether more of the header has changed than changes in a healthy job.
        moved:
            Whether records have changed.
        dropped, oldest:
            Number of lost records, and the id of the oldest one.
        locks_now:
            Returns the file locks at this look, shared by all ranks.
        """
        known, look = self.facts, self.look()
        if known is not None and not changed and look.alive is known.alive:
            if look.alive is False and not moved:
                return known  # it had already ended
            now_ns, beat_ns = time.time_ns(), beat.heartbeat_ns
            silent_ns = now_ns - beat_ns if look.alive else 0
            if silent_ns <= STALE_HEARTBEATS * (known.heartbeat_interval_s or 1.0) * 1e9:
                at_ns = now_ns if look.alive else max(beat_ns, beat.exit_ns)
                self.facts = self._with_changes(
                    known, beat, look, at_ns, dropped, oldest, locks_now
                )
                return self.facts
        header = self.reader.header()
        self.generation = header.sample_generation
        rank = known.rank if known is not None else None
        facts = facts_of(self.reader, header, dropped, oldest, rank=rank)
        return self._kept(replace(facts, threads=self._with_call(facts.threads)), look)

    def look(self) -> ProcessLook:
        """The process as it is now; everything is unknown if it is not local."""
        return look_here(self.pid, self.start_ticks) if self.here else ProcessLook()

    def _with_changes(
        self,
        known: RankFacts,
        beat: Heartbeat,
        look: ProcessLook,
        at_ns: int,
        dropped: int,
        oldest: int,
        locks_now: Callable[[Path], FileLocks],
    ) -> RankFacts:
        """``known`` brought up to date, for a process that is remote or has a current heartbeat."""
        generation = beat.sample_generation
        threads = tuple(t for t in known.threads if t.source != "record")
        if generation != self.generation:
            self.generation = generation
            sample = self.reader.sample()
            if sample is not None:
                others = (t for t in threads if t.source != "sample")
                threads = (*parse_sample(sample.text, sample.at_ns), *others)
        threads = self._with_call(threads)
        busy, moved, wakeups_hz = (
            self._compared(look, _progress_stacks(known, threads)) if look.alive else _NOT_COMPARED
        )
        beating = look.alive and look.state != "stopped" and not beat.exit_ns
        wait = kernel_wait(self.pid, look, locks_now) if beating and not moved else None
        values = list(_values(known))
        for name, value in (
            ("process_state", look.state),
            ("held_by", look.held_by),
            ("wait", self._since(wait, busy)),
            ("heartbeat_ns", beat.heartbeat_ns),
            ("gil_blocked", False if beating else None),
            ("cpu_busy", busy),
            ("stack_moved", moved),
            ("wakeups_hz", wakeups_hz),
            ("threads", threads),
            ("observed_ns", at_ns),
            ("dropped", dropped),
            ("oldest_record_id", oldest),
        ):
            values[_AT[name]] = value
        return RankFacts(*values)

    def _with_call(self, threads: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
        """Add the main thread's newest call if it is newer than its newest stack."""
        call = self.call
        if call is None or any(t.is_main and t.sampled_ns >= call.sampled_ns for t in threads):
            return threads
        return (*threads, call)

    def _kept(self, facts: RankFacts, look: ProcessLook) -> RankFacts:
        if facts.alive and facts.pid:
            busy, moved, wakeups_hz = self._compared(look, _progress_stacks(facts, facts.threads))
            wait = self._since(facts.wait, busy)
            facts = replace(
                facts, cpu_busy=busy, stack_moved=moved, wakeups_hz=wakeups_hz, wait=wait
            )
        self.facts = facts
        return facts

    def _since(self, wait: KernelWait | None, busy: float | None) -> KernelWait | None:
        """The wait just seen, dated from the first observation that saw it.

        A thread that is awake for a moment but uses hardly any CPU has not made progress.
        """
        known = self.wait
        if known is not None and wait is not None:
            awake = wait.kind == RUNNABLE != known.kind and busy is not None and busy < _IDLE_CPU
            wait = known if awake else wait
            wait = replace(wait, since_ns=known.since_ns) if wait.is_same(known) else wait
        self.wait = wait
        return wait

    def _compared(self, look: ProcessLook, progress: tuple[Stack, ...]) -> Comparison:
        """Compare this observation with the last one."""
        now_s = time.monotonic()
        passed_s = now_s - self.cpu_at_s
        if self.cpu_at_s and passed_s <= _COMPARABLE_S:
            return self.compared
        if self.cpu_at_s:
            used_s = (look.cpu_ticks - self.cpu_ticks) / portable.TICKS_PER_S
            known = look.slices is not None and self.slices is not None
            woke = (look.slices or 0) - (self.slices or 0) if known else None
            self.compared = Comparison(
                max(0.0, used_s / passed_s),
                progress != self.progress,
                None if woke is None else max(0.0, woke / passed_s),
            )
        self.cpu_ticks, self.cpu_at_s, self.progress = look.cpu_ticks, now_s, progress
        self.slices = look.slices
        return self.compared


def _progress_stacks(facts: RankFacts, threads: tuple[ThreadStack, ...]) -> tuple[Stack, ...]:
    """The stacks that show whether a rank makes progress.

    They are the main thread's and, once the program is over, those of all non-daemon threads.
    """
    if facts.leaving is None:
        return (newest_main(threads),)
    return tuple(thread.stack for thread in threads if not thread.daemon)


def newest_main(threads: tuple[ThreadStack, ...]) -> Stack:
    """As `RankFacts.main_stack`."""
    best: ThreadStack | None = None
    for thread in threads:
        newer = best is None or thread.sampled_ns > best.sampled_ns
        if thread.is_main and thread.stack and newer:
            best = thread
    return best.stack if best is not None else ()
