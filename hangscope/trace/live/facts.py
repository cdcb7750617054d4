"""What a running ring says of its process, read again only where it has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.ring.header import RingHeader
from hangscope.ring.layout import HEADER
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace.facts import RUNNABLE, STALE_HEARTBEATS
from hangscope.trace.model import KernelWait, RankFacts, Records, Stack, ThreadStack
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.process import ProcessLook, is_here, look_here
from hangscope.trace.rings.facts import facts_of, kernel_wait
from hangscope.trace.stack_dump import parse_sample

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_COMPARABLE_S = 0.2
"""Two looks closer together than this tell nothing of CPU use."""
_HARDLY = 0.1
"""CPU seconds a second of a thread that sleeps nearly all of the time."""
_MOVING = (
    "heartbeat_ns", "heartbeat_count", "last_record_id", "values_used", "sample_generation",
    "sample_ns",
)  # fmt: skip
"""Header fields that move in a healthy job; any other that changes is worth a closer look."""
_NAMES = [field.name for field in fields(RankFacts)]
_FIELDS = {name: (place[0], int(place[1])) for name, place in (HEADER.fields or {}).items()}
_USED_WORDS = -(-max(at + kind.itemsize for kind, at in _FIELDS.values()) // 8)
_values = attrgetter(*_NAMES)
_AT = {name: place for place, name in enumerate(_NAMES)}


def _quiet_words() -> npt.NDArray[np.uint64]:
    """The header as words of eight bytes, all bits set but those of `_MOVING`."""
    mask = np.full(HEADER.itemsize, 0xFF, np.uint8)
    for name in _MOVING:
        kind, at = _FIELDS[name]
        mask[at : at + kind.itemsize] = 0
    return mask.view(np.uint64)


_QUIET = _quiet_words()[:_USED_WORDS]


def changed_headers(now: Records, before: Records) -> npt.NDArray[np.bool_]:
    """Which headers differ in more than what moves in a healthy job.

    Parameters
    ----------
    now, before:
        Shape (rings,), dtype `hangscope.ring.layout.HEADER`.
    """
    shape = (len(now), HEADER.itemsize // 8)
    a = now.view(np.uint64).reshape(shape)[:, :_USED_WORDS]
    b = before.view(np.uint64).reshape(shape)[:, :_USED_WORDS]
    changed: npt.NDArray[np.bool_] = (((a ^ b) & _QUIET) != 0).any(axis=1)
    return changed


class Beat(NamedTuple):
    """What a look at a healthy process needs of its ring's header, named as there."""

    heartbeat_ns: int
    exit_ns: int
    sample_generation: int

    @classmethod
    def of(cls, header: RingHeader) -> Beat:
        """That of one header."""
        return cls(header.heartbeat_ns, header.exit_ns, header.sample_generation)

    @classmethod
    def of_all(cls, headers: Records) -> list[Beat]:
        """That of many: shape (rings,), dtype `hangscope.ring.layout.HEADER`."""
        columns = (headers[name].tolist() for name in cls._fields)
        return list(map(cls._make, zip(*columns, strict=True)))


class Compared(NamedTuple):
    """What only two looks at a process can tell; None: there was but one."""

    busy: float | None = None
    """CPU seconds a second."""
    moved: bool | None = None
    """Whether the stack moved."""
    wakeups_hz: float | None = None
    """How often a second the main thread was given a processor."""


_NOT_COMPARED = Compared()


@dataclass(slots=True)
class ProcessView:
    """One ring's process between two looks."""

    reader: RingReader
    pid: int
    start_ticks: int
    here: bool
    """Whether its pid means anything to us."""
    facts: RankFacts | None = None
    call: ThreadStack | None = None
    """The newest call of the main thread that is on record."""
    generation: int = -1
    cpu_ticks: int = 0
    cpu_at_s: float = 0.0
    slices: int | None = None
    stood: tuple[Stack, ...] = ()
    wait: KernelWait | None = None
    """What it did not go on for, at the last look."""
    compared: Compared = _NOT_COMPARED
    """What the looks told that were compared last."""

    @classmethod
    def of(cls, reader: RingReader, header: RingHeader) -> ProcessView:
        """The view of a ring that was just opened."""
        return cls(
            reader,
            header.pid,
            header.start_ticks,
            is_here(decode_text(header.boot_id), header.pid_namespace),
        )

    def first(self, facts: RankFacts, generation: int) -> RankFacts:
        """Facts that were read in full, with what only a comparison with the last look tells."""
        calls = [t for t in facts.threads if t.source == "record"]
        self.call = calls[0] if calls else None
        self.generation = generation
        return self._kept(facts, self.look())

    def again(
        self,
        beat: Beat,
        changed: bool,
        moved: bool,
        dropped: int,
        oldest: int,
        locks_now: Callable[[Path], FileLocks],
    ) -> RankFacts:
        """The facts now.

        Parameters
        ----------
        beat:
            Of the ring's header as it is now.
        changed:
            Whether more of the header has changed than moves in a healthy job.
        moved:
            Whether records have changed.
        dropped, oldest:
            Records lost, and the id of the oldest one.
        locks_now:
            Gives the locks of files at this look, which are those of all ranks.
        """
        known, look = self.facts, self.look()
        if known is not None and not changed and look.alive is known.alive:
            if look.alive is False and not moved:
                return known  # it had ended before
            now_ns, beat_ns = time.time_ns(), beat.heartbeat_ns
            silent_ns = now_ns - beat_ns if look.alive else 0
            if silent_ns <= STALE_HEARTBEATS * (known.heartbeat_interval_s or 1.0) * 1e9:
                at_ns = now_ns if look.alive else max(beat_ns, beat.exit_ns)
                self.facts = self._moved_on(known, beat, look, at_ns, dropped, oldest, locks_now)
                return self.facts
        header = self.reader.header()
        self.generation = header.sample_generation
        rank = known.rank if known is not None else None
        facts = facts_of(self.reader, header, dropped, oldest, rank=rank)
        return self._kept(replace(facts, threads=self._with_call(facts.threads)), look)

    def look(self) -> ProcessLook:
        """The process as it is now; all unknown where it is not of this machine."""
        return look_here(self.pid, self.start_ticks) if self.here else ProcessLook()

    def _moved_on(
        self,
        known: RankFacts,
        beat: Beat,
        look: ProcessLook,
        at_ns: int,
        dropped: int,
        oldest: int,
        locks_now: Callable[[Path], FileLocks],
    ) -> RankFacts:
        """``known`` of a process whose heart beats, or that is elsewhere, a moment later."""
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
            self._compared(look, _standing(known, threads)) if look.alive else _NOT_COMPARED
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
        """With the main thread's newest call, where that is newer than its newest stack."""
        call = self.call
        if call is None or any(t.is_main and t.sampled_ns >= call.sampled_ns for t in threads):
            return threads
        return (*threads, call)

    def _kept(self, facts: RankFacts, look: ProcessLook) -> RankFacts:
        if facts.alive and facts.pid:
            busy, moved, wakeups_hz = self._compared(look, _standing(facts, facts.threads))
            wait = self._since(facts.wait, busy)
            facts = replace(
                facts, cpu_busy=busy, stack_moved=moved, wakeups_hz=wakeups_hz, wait=wait
            )
        self.facts = facts
        return facts

    def _since(self, wait: KernelWait | None, busy: float | None) -> KernelWait | None:
        """The wait that was just seen, since the first look that has seen it so.

        A thread that is awake for a moment and hardly uses a processor has not gone on.
        """
        known = self.wait
        if known is not None and wait is not None:
            awake = wait.kind == RUNNABLE != known.kind and busy is not None and busy < _HARDLY
            wait = known if awake else wait
            wait = replace(wait, since_ns=known.since_ns) if wait.is_same(known) else wait
        self.wait = wait
        return wait

    def _compared(self, look: ProcessLook, stood: tuple[Stack, ...]) -> Compared:
        """This look beside the last one."""
        now_s = time.monotonic()
        passed_s = now_s - self.cpu_at_s
        if self.cpu_at_s and passed_s <= _COMPARABLE_S:
            return self.compared
        if self.cpu_at_s:
            used_s = (look.cpu_ticks - self.cpu_ticks) / _TICKS_PER_SECOND
            known = look.slices is not None and self.slices is not None
            woke = (look.slices or 0) - (self.slices or 0) if known else None
            self.compared = Compared(
                max(0.0, used_s / passed_s),
                stood != self.stood,
                None if woke is None else max(0.0, woke / passed_s),
            )
        self.cpu_ticks, self.cpu_at_s, self.stood = look.cpu_ticks, now_s, stood
        self.slices = look.slices
        return self.compared


def _standing(facts: RankFacts, threads: tuple[ThreadStack, ...]) -> tuple[Stack, ...]:
    """The stacks that tell whether a rank goes on.

    They are the main thread's and, once its program is over, those of threads that are no daemons.
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
