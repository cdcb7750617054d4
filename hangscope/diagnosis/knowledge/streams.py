"""What each rank has issued, as a stream of numbers that mean the same on every rank.

Ranks that run one program have equal streams until one of them departs from it or stands still.
Equal numbers stand for one operation of one kind of group at one line, on tensors of one kind, with
a partner as far away in the group. Sizes are left out, as they may follow the data; so is what some
records do not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.frontier import Bools, Ints
from hangscope.diagnosis.records.kinds import in_issue_order
from hangscope.trace.model import NONE, Flag, Records, Signature, Stack, flagged

if TYPE_CHECKING:
    from hangscope.diagnosis.context import Context

_NEWEST = 4096
"""Limit on the operations of a rank that are compared."""

Place = tuple[int, int]
"""The kind of a group, and the number of a collective in it."""


class _Operation(NamedTuple):
    """What one number of a stream stands for."""

    kind: int
    family: str
    away: int
    """How many places further in the group the partner is; for other operations -1."""
    tensors: object
    lines: Stack


@dataclass(frozen=True)
class Stream:
    """What a rank has issued, in order.

    Parameters
    ----------
    rows:
        Indices into `Trace.records`, one per operation.
    what:
        One number per operation, comparable between the ranks of a job.
    plain:
        The same without the line that issued it.
    numbers:
        One collective sequence number per operation; 0 for sends and receives.
    kinds:
        One number per operation, that of the kind of its group.
    is_whole:
        Whether it begins with the rank's first operation.
    lacks_none:
        Whether it has every operation from its first one on.
    """

    rank: int
    rows: Ints
    what: Ints
    plain: Ints
    numbers: Ints
    kinds: Ints
    is_whole: bool
    lacks_none: bool

    def __len__(self) -> int:
        return len(self.what)

    @cached_property
    def places(self) -> dict[Place, int]:
        """The index of each collective."""
        found: dict[Place, int] = {}
        keys = zip(self.kinds.tolist(), self.numbers.tolist(), strict=True)
        for index, place in enumerate(keys):
            if place[1]:
                found.setdefault(place, index)
        return found


class Streams:
    """The streams of a trace, each made when it is first asked for."""

    def __init__(self, context: Context) -> None:
        records, signatures = context.trace.records, context.trace.signatures
        self._context = context
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[_Operation, int] = {}
        self.with_lines = bool((records["stack"] != NONE).all())
        """Whether the line is on record that issued each operation."""
        self._with_dtypes = all(s.input_dtypes is not None for s in signatures)
        kinds: dict[object, int] = {}
        self._kind_of = np.array([kinds.setdefault(k, len(kinds)) for k in context.kinds], np.int64)

    def kind_of(self, group: int) -> int:
        """The number that groups of one kind have in common."""
        return int(self._kind_of[group])

    @cached_property
    def kinds_of_rank(self) -> dict[int, frozenset[int]]:
        """Per rank the numbers of the kinds of its groups."""
        found: dict[int, set[int]] = {}
        for group, kind in zip(self._context.trace.groups, self._kind_of.tolist(), strict=True):
            for rank in group.ranks:
                found.setdefault(rank, set()).add(kind)
        return {rank: frozenset(kinds) for rank, kinds in found.items()}

    def of(self, rank: int) -> Stream:
        """The stream of one rank; empty if it left no record."""
        if rank not in self._streams:
            self._streams[rank] = self._made(rank)
        return self._streams[rank]

    def _made(self, rank: int) -> Stream:
        context = self._context
        low, high = context.bounds.get(rank, (0, 0))
        first = max(low, high - _NEWEST)
        kept = np.flatnonzero(in_issue_order(context.trace.records[first:high]))
        rows = first + kept
        part = context.trace.records[rows]
        columns = [part[name].astype(np.int64) for name in ("group", "signature", "peer", "stack")]
        kinds, of_row = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        numbers = np.array([self._numbers_of(rank, *kind) for kind in kinds.tolist()], np.int64)
        numbers = numbers.reshape(-1, 2)
        collective = context.front.collective[rows]
        return Stream(
            rank,
            rows,
            numbers[of_row.reshape(-1), 0],
            numbers[of_row.reshape(-1), 1],
            np.where(collective, part["collective_seq"], 0),
            self._kind_of[part["group"]],
            rank not in context.hidden and first == low,
            rank not in context.unfinished_alone and not _inferred(part).any(),
        )

    def _numbers_of(
        self, rank: int, group: int, signature: int, peer: int, stack: int
    ) -> tuple[int, int]:
        """The number of an operation with the line that issued it, and without."""
        context, trace = self._context, self._context.trace
        ranks = trace.groups[group].ranks
        within = peer in ranks and rank in ranks
        key = _Operation(
            int(self._kind_of[group]),
            context.families[signature] if signature != NONE else "",
            (ranks.index(peer) - ranks.index(rank)) % len(ranks) if within else NONE,
            self._tensors(trace.signatures[signature]) if signature != NONE else None,
            user_frames(trace.stacks[stack]) if self.with_lines else (),
        )
        known = self._numbers
        plain = known.setdefault(key._replace(lines=()), len(known))
        return known.setdefault(key, len(known)), plain

    def _tensors(self, signature: Signature) -> object:
        dtypes = signature.input_dtypes if self._with_dtypes else None
        return dtypes, tuple(len(size) for size in signature.input_sizes or ())


def _inferred(part: Records) -> Bools:
    """Per record: whether it stands for all that a log or a counter tells."""
    return flagged(part["flags"], Flag.SYNTHETIC)
