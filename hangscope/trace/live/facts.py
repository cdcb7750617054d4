"""Facts about a running ring's process, and what only two observations of it can show."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hangscope.ring import portable
from hangscope.ring.header import RingHeader
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace.facts import RUNNABLE
from hangscope.trace.model import KernelWait, RankFacts, Stack, ThreadStack
from hangscope.trace.processes.kernel_waits import helper_ticks
from hangscope.trace.processes.process import ProcessLook, is_local, look_here
from hangscope.trace.rings.facts import LocksNow, Texts, facts_of

_COMPARABLE_S = 0.2
"""Two observations closer together than this show nothing about CPU use."""
_IDLE_CPU = 0.1
"""CPU seconds per second of a thread that sleeps nearly all the time."""


class Comparison(NamedTuple):
    """What only two observations of a process can show; None if there was only one."""

    busy: float | None = None
    """CPU seconds per second."""
    moved: bool | None = None
    """Whether the stack moved."""
    wakeups_hz: float | None = None
    """How often per second the main thread was scheduled."""
    helpers_busy: float | None = None
    """CPU seconds per second of its child processes."""


_NOT_COMPARED = Comparison()


@dataclass(slots=True)
class ProcessView:
    """One ring's process between two observations."""

    pid: int
    start_ticks: int
    here: bool
    """Whether its pid is valid in our pid namespace."""
    facts: RankFacts | None = None
    """As of the last observation."""
    call: ThreadStack | None = None
    """The main thread's newest recorded call."""
    cpu_ticks: int = 0
    cpu_at_s: float = 0.0
    slices: int | None = None
    helper_ticks: int | None = None
    """None unless its main thread was asleep."""
    progress: tuple[Stack, ...] = ()
    wait: KernelWait | None = None
    """What it waited for at the last observation."""
    compared: Comparison = _NOT_COMPARED
    """The result of the last comparison of two observations."""

    @classmethod
    def of(cls, header: RingHeader) -> ProcessView:
        """The view of a ring that was just opened."""
        here = is_local(decode_text(header.boot_id), header.pid_namespace)
        return cls(header.pid, header.start_ticks, here)

    def look(self) -> ProcessLook:
        """The process as it is now; everything is unknown if it is not local."""
        return look_here(self.pid, self.start_ticks) if self.here else ProcessLook()

    def observe(
        self,
        reader: RingReader,
        header: RingHeader,
        dropped: int,
        oldest: int,
        *,
        rank: int,
        locks_now: LocksNow,
        texts: Texts | None = None,
        newest_call: Callable[[int], ThreadStack | None] | None = None,
    ) -> RankFacts:
        """The current facts, completed by a comparison with the last observation.

        Parameters are those of `hangscope.trace.rings.facts.facts_of`; without ``newest_call``,
        no record was added since the last observation.
        """
        if newest_call is not None:
            self.call = newest_call(0)
        look = self.look()
        facts = facts_of(
            reader, header, dropped, oldest,
            rank=rank, texts=texts, newest_call=self._call_after, look=look, locks_now=locks_now,
        )  # fmt: skip
        if facts.alive and facts.pid:
            helpers = helper_ticks(facts.pid) if facts.process_state == "sleeping" else None
            stacks = _progress_stacks(facts)
            busy, moved, wakeups_hz, helpers_busy = self._compare(look, stacks, helpers)
            wait = self._since(None if moved else facts.wait, busy)
            facts = replace(
                facts, cpu_busy=busy, stack_moved=moved, wakeups_hz=wakeups_hz, wait=wait,
                helpers_busy=helpers_busy,
            )  # fmt: skip
        self.facts = facts
        return facts

    def _call_after(self, after_ns: int) -> ThreadStack | None:
        call = self.call
        return call if call is not None and call.sampled_ns > after_ns else None

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

    def _compare(
        self, look: ProcessLook, progress: tuple[Stack, ...], helpers: int | None
    ) -> Comparison:
        """Compare this observation with the last one."""
        now_s = time.monotonic()
        passed_s = now_s - self.cpu_at_s
        if self.cpu_at_s and passed_s <= _COMPARABLE_S:
            return self.compared
        if self.cpu_at_s:
            used_s = (look.cpu_ticks - self.cpu_ticks) / portable.TICKS_PER_S
            before, after = self.helper_ticks, helpers
            helped_s = (
                max(0, after - before) / portable.TICKS_PER_S
                if after is not None and before is not None
                else None
            )
            known = look.slices is not None and self.slices is not None
            woke = (look.slices or 0) - (self.slices or 0) if known else None
            self.compared = Comparison(
                max(0.0, used_s / passed_s),
                progress != self.progress,
                None if woke is None else max(0.0, woke / passed_s),
                None if helped_s is None else helped_s / passed_s,
            )
        self.cpu_ticks, self.cpu_at_s, self.progress = look.cpu_ticks, now_s, progress
        self.slices, self.helper_ticks = look.slices, helpers
        return self.compared


def _progress_stacks(facts: RankFacts) -> tuple[Stack, ...]:
    """The stacks that show whether a rank makes progress.

    They are the main thread's and, once the program is over, those of all non-daemon threads.
    """
    if facts.leaving is None:
        return (facts.main_stack,)
    return tuple(thread.stack for thread in facts.threads if not thread.daemon)
