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
        "history",
        "history_before",
        "index",
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


if TYPE_CHECKING:
    Counters = PlainCounters
else:
    Counters = getattr(compiled(), "Counters", PlainCounters)
