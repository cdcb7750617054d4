"""The running numbers of a process group, as a base class that C++ can share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangscope.recording.compiled.load import compiled


class PlainCounters:
    """Where the hot path is Python; the compiled one has a class with the same attributes."""

    __slots__ = (
        "cells",
        "coalesced_kinds",
        "coalescing_thread",
        "collective_seq",
        "completed",
        "failed_seq",
        "highest_done",
        "history",
        "history_before",
        "index",
        "observable",
        "op_id",
        "p2p_seq",
        "published",
        "seq_before",
    )

    index: int
    """In the ring's group table, from 1 on; 0 if it has no entry."""
    cells: int
    """Eight-byte cell at which that entry begins."""
    collective_seq: int
    seq_before: int
    """`collective_seq` before the newest collective."""
    p2p_seq: int
    op_id: int
    published: int
    """`op_id` of the newest operation in the ring's group table."""
    history: int
    history_before: int
    """The history before the newest collective."""
    coalescing_thread: int
    """The thread between ``_start_coalescing`` and ``_end_coalescing``; 0 if none."""
    coalesced_kinds: int
    """Which kinds of operations its batch has had so far."""
    completed: int
    """Sequence number up to which all collectives are finished."""
    highest_done: int
    """Highest sequence number known to be finished; `completed` may lag behind it."""
    failed_seq: int
    """Sequence number of the first collective that ended without a result; 0 if none."""
    observable: bool
    """Whether all backends of the group are polled. Otherwise an operation may be unfinished
    without our knowledge, and there is no "completed up to here"."""


if TYPE_CHECKING:
    Counters = PlainCounters
else:
    Counters = getattr(compiled(), "Counters", PlainCounters)
