"""A rank's first operations and the communicators they used, compared with those of other ranks.

A communicator belongs to a group or, for sends and receives outside of batches, to a pair. It is
created when it is first used, which happens in a job's first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.records.coverage import cut_off
from hangscope.trace import formats
from hangscope.trace.model import NONE, Flag, flagged

Communicator = tuple[int, int]
"""A group and, if two of its members have their own communicator, the peer, else -1."""

_MOST_COMPARED = 512
_STEPS = 2
"""A step of one rank may have so many times as many operations as that of another (an outer and an
inner stage of a pipeline)."""


class FirstStep:
    """What the ranks of a job did until they had used all their communicators.

    Only ranks whose records begin with their first operation are considered, and at most 512 of
    them as examples, those that are given first.
    """

    def __init__(self, context: Context, examples: Iterable[int]) -> None:
        self._context = context
        dumped = {s.rank for s in context.trace.sources if s.format in formats.DUMPS}
        self.whole = context.on_record & dumped - context.hidden - cut_off(context.trace)
        """Ranks whose records begin with their first operation."""
        order = dict.fromkeys((*examples, *sorted(self.whole)))
        compared = [rank for rank in order if rank in self.whole][:_MOST_COMPARED]
        latest = max((_rows_until_all_met(context, rank) for rank in compared), default=0)
        self._most = _STEPS * max(latest, 1)
        """How many operations a rank may have issued that has not met all its partners."""
        self._steps: dict[tuple[int, int, str], int] = {}
        """A tree of the programs: a node and an operation lead to the next node, 0 is the root."""
        self._new_next: dict[int, bool] = {}
        """Whether some rank used a communicator for the first time right after this node."""
        for rank in compared:
            self._add(rank)

    def may_use_new_communicator(self, rank: int) -> bool:
        """Whether the rank's next operation may be the first one of a communicator.

        The programs of ranks are much alike: if all ranks that had done the same before went on
        with a communicator that they had used, so does this one.
        """
        if rank not in self.whole or _row_count(self._context, rank) > self._most:
            return False
        node: int | None = 0
        for operation in self._program(rank):
            node = self._steps.get((node or 0, *operation))
            if node is None:
                return True
        return self._new_next.get(node or 0, True)

    def came_with_new_communicator(self, rank: int, row: int) -> bool | None:
        """Whether the rank used a communicator for the first time after the last collective of the
        same group as that row, and before that row; None if its records do not show it."""
        if row < 0 or rank not in self.whole:
            return None
        low, _ = self._context.bounds[rank]
        used = _communicators(self._context, rank, row - low)
        mine = (int(self._context.trace.records["group"][row]), NONE)
        before = max((i for i, one in enumerate(used) if one == mine), default=-1) + 1
        return not set(used[before:]).issubset(used[:before])

    def used_by(self, rank: int) -> frozenset[Communicator]:
        """The communicators that the rank has used."""
        return frozenset(_communicators(self._context, rank, self._most))

    def _add(self, rank: int) -> None:
        node, seen = 0, -1
        for number, family in self._program(rank):
            is_new = number > seen
            self._new_next[node] = self._new_next.get(node, False) or is_new
            seen = max(seen, number)
            node = self._steps.setdefault((node, number, family), len(self._steps) + 1)

    def _program(self, rank: int) -> list[tuple[int, str]]:
        """The rank's first operations, each with the number of its communicator in order of first
        use."""
        used = _communicators(self._context, rank, self._most + 1)
        low = self._context.bounds[rank][0] if used else 0
        signatures = self._context.trace.records["signature"][low : low + len(used)].tolist()
        families = self._context.families
        numbers: dict[Communicator, int] = {}
        return [
            (numbers.setdefault(one, len(numbers)), families[signature] if signature >= 0 else "")
            for one, signature in zip(used, signatures, strict=True)
        ]


def _row_count(context: Context, rank: int) -> int:
    low, high = context.bounds.get(rank, (0, 0))
    return high - low


def _rows_until_all_met(context: Context, rank: int) -> int:
    """How many operations the rank issued until it had used the newest of its communicators."""
    used = _communicators(context, rank, _row_count(context, rank))
    if not used:
        return 0
    _, first = np.unique(np.array(used), axis=0, return_index=True)
    return int(first.max()) + 1


def _communicators(context: Context, rank: int, rows: int) -> Sequence[Communicator]:
    """What each of the rank's first operations used."""
    low, high = context.bounds.get(rank, (0, 0))
    high = min(high, low + rows)
    part = context.trace.records[low:high]
    alone = context.front.p2p[low:high] & ~flagged(part["flags"], Flag.COALESCED_BATCH)
    peers = np.where(alone, part["peer"], NONE)
    return list(zip(part["group"].tolist(), peers.tolist(), strict=True))
