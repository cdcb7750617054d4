"""One open ring: what was last read from it, and what its process is seen to do."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from hangscope.ring.header import decode_header
from hangscope.ring.reader import RingReader
from hangscope.trace.live.facts import ProcessView
from hangscope.trace.live.slots import LiveSlots
from hangscope.trace.model import Fragment, RankFacts
from hangscope.trace.rings.batch import RingBatch
from hangscope.trace.rings.facts import LocksNow
from hangscope.trace.rings.read import fragment_of

_TELLING = attrgetter(
    "world_size", "run_id", "attempt", "disabled", "values_refused", "groups_refused", "dropped"
)
"""Header fields whose change affects more than the facts of one process."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """One attempt of one run; files of different keys are never mixed."""

    run_id: str
    attempt: int


@dataclass(slots=True, eq=False)
class OpenRing:
    """An open ring and what was last read from it."""

    reader: RingReader
    key: RunKey
    rank: int
    """The rank of this process in its job: the ring's own, or the one given by `assign_ranks`."""
    created_ns: int
    machine: str
    """The machine of its process, under a unique name."""
    process: ProcessView
    parent_pid: int = 0
    is_rank: bool = True
    """Whether the process is a rank at all, as far as known."""
    is_certain: bool = True
    """Whether it is known to belong to the run that is followed."""
    asked_at_count: int = -1
    slots: LiveSlots | None = None
    said: tuple[object, ...] = ()
    """What `update` compares beside the records."""

    def update(self, keep: int | None) -> bool:
        """Read the ring's newest records again; returns whether more than a heartbeat is new.

        Parameters
        ----------
        keep:
            How many records; all that the ring holds by default.

        Raises
        ------
        RingError
            If the file has become shorter.
        """
        most = self.reader.slot_count
        keep = min(keep or most, most)
        if self.slots is None or self.slots.keep != keep:
            self.slots, self.said = LiveSlots(self.reader, keep), ()
        header = decode_header(self.reader.head)
        before, groups = self.said, self.reader.group_bytes(header.groups_used)
        self.said = (self.rank, groups, *_TELLING(header))
        return self.slots.update(header.last_record_id) | (self.said != before)

    def fragment(self, batch: RingBatch, locks_now: LocksNow) -> Fragment:
        """What the ring says as of the last `update`, with the facts of now."""
        assert self.slots is not None
        slots = batch.block.take(len(self.slots.slots))
        slots.view(np.uint8)[:] = self.slots.slots.view(np.uint8)  # not field by field
        observe = functools.partial(self.process.observe, locks_now=locks_now)
        return fragment_of(
            self.reader, slots, self.slots.missing, batch,
            rank=self.rank, growing=True, observe=observe,
        )  # fmt: skip

    def facts(self, locks_now: LocksNow) -> RankFacts:
        """The facts of now, if `update` has found nothing new."""
        assert self.slots is not None
        ids, header = self.slots.slots["record_id"], decode_header(self.reader.head)
        lost, oldest = self.slots.missing + header.dropped, int(ids[0]) if len(ids) else 0
        return self.process.observe(
            self.reader, header, lost, oldest, rank=self.rank, locks_now=locks_now
        )
