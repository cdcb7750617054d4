"""Sends and receives of one stretch of the program that do not add up.

Between two collectives that both ranks have issued, one rank has issued as many sends as the
other has issued receives. The first stretch where that is not so holds a mistake of one of the two,
however far both have gone since: what is left over meets later halves, and the ranks stop at
something that is in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.sibling_groups import counterparts
from hangscope.diagnosis.records.frontier import Ints
from hangscope.diagnosis.records.kinds import is_sending
from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE

_MOST_CHANNELS = 256
_USUAL_TIMES = 2
_End = tuple[int, str]
"""Group and operation of the collective at one end of a stretch."""


class Channel(NamedTuple):
    """What one rank sends to another in a group."""

    source: int
    target: int
    group: int


class UnevenExchange(NamedTuple):
    """The first stretch in which a channel's two ranks issued different numbers of halves.

    ``until``: group and number of the collective that ends it. ``sent``, ``received``: how many; -1
    if the stretch is not on record as a whole. ``usual``: what both had issued in every earlier
    stretch of that kind, and sibling groups in this one; -1 if that varied, or there were too few.
    """

    channel: Channel
    until: tuple[int, int]
    sent: int = NONE
    received: int = NONE
    usual: int = NONE

    @property
    def odd(self) -> tuple[int, ...]:
        """The rank that did not do as in every earlier stretch, if the other one did."""
        if self.usual == NONE:
            return ()
        if self.usual == self.sent:
            return (self.channel.target,)
        return (self.channel.source,) if self.usual == self.received else ()

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self.channel[:2])


class _Stretch(NamedTuple):
    ends: tuple[_End, _End]
    until: tuple[int, int]
    sent: int
    received: int


def uneven_exchanges(context: Context, ranks: Iterable[int]) -> list[UnevenExchange]:
    """Those between these ranks on whose channels something is unfinished still."""
    wanted = set(ranks)
    channels: dict[Channel, list[Half]] = defaultdict(list)
    for half in context.pending_halves:
        if half.rank in wanted and half.peer in wanted:
            ends = (half.rank, half.peer) if half.is_send else (half.peer, half.rank)
            channels[Channel(*ends, half.group)].append(half)
    issued = _Issued(context)
    found = (
        _uneven(issued, channel, halves)
        for channel, halves in islice(channels.items(), _MOST_CHANNELS)
    )
    return [exchange for exchange in found if exchange is not None]


def suspects_of(exchanges: Iterable[UnevenExchange]) -> tuple[tuple[int, ...], bool]:
    """The ranks that explain all of these, and whether nobody else can have been the one."""
    found = list(exchanges)
    odd = {rank for exchange in found for rank in exchange.odd}
    open_ = [e.ranks for e in found if not e.odd and odd.isdisjoint(e.ranks)]
    return tuple(sorted(odd.union(*open_))), not open_


def _uneven(issued: _Issued, channel: Channel, halves: Sequence[Half]) -> UnevenExchange | None:
    """The first uneven stretch of a channel, if earlier ones were even and it has not evened
    out."""
    stretches = _stretches(issued, channel)
    if not stretches:
        return _left_over(issued, channel, halves)
    first = next((i for i, s in enumerate(stretches) if s.sent != s.received), NONE)
    if first == NONE or sum(s.sent - s.received for s in stretches) == 0:
        return None
    earlier, uneven = stretches[:first], stretches[first]
    if not any(s.sent for s in earlier):
        return None  # halves may be issued ahead of a collective
    alike = [s.sent for s in earlier if s.ends == uneven.ends]
    alike += _of_siblings(issued, channel, uneven)
    settled = len(alike) >= _USUAL_TIMES and len({*alike}) == 1
    usual = alike[0] if settled else NONE
    return UnevenExchange(channel, uneven.until, uneven.sent, uneven.received, usual)


def _of_siblings(issued: _Issued, channel: Channel, uneven: _Stretch) -> list[int]:
    """What the same places of sibling groups exchanged in a stretch, where that was even."""
    source, target, group = channel
    sources = counterparts(issued.context, source, group)
    targets = counterparts(issued.context, target, group)
    channels = [Channel(sources[g], targets[g], g) for g in sources if g in targets]
    wanted = _between_kinds(issued.context, uneven)
    stretches = (s for other in channels for s in _stretches(issued, other))
    return [
        s.sent
        for s in stretches
        if s.sent == s.received and _between_kinds(issued.context, s) == wanted
    ]


def _between_kinds(context: Context, stretch: _Stretch) -> tuple[object, ...]:
    """The ends of a stretch, for comparison with ranks that have other groups of these kinds."""
    group, number = stretch.until
    ends = tuple((context.kinds[group], operation) for group, operation in stretch.ends)
    return (*ends, context.kinds[group], number)


def _left_over(issued: _Issued, channel: Channel, halves: Sequence[Half]) -> UnevenExchange | None:
    """The stretch with an unfinished send that is received after it, if at all.

    No receive of that stretch, or of an older one, is unfinished: they all got older sends, which
    need not be on record. Receives may be issued long before their sends.
    """
    for half in halves:
        if half.matched is None or not half.is_send:
            continue
        own, other = issued.collectives(half.rank), issued.collectives(half.peer)
        until = next((key for key, row in own.items() if row > half.row and key in other), None)
        if until is None:
            continue
        later = half.partner_row == NONE or half.partner_row > other[until]
        waiting = any(h.rank == half.peer and h.row < other[until] for h in halves)
        if later and not waiting:
            return UnevenExchange(channel, until)
    return None


def _stretches(issued: _Issued, channel: Channel) -> list[_Stretch]:
    """What both ranks issued from one collective of both to the next, oldest first."""
    source, target, group = channel
    of_source, of_target = issued.collectives(source), issued.collectives(target)
    common = [key for key in of_source if key in of_target]
    at = np.array([[of_source[key], of_target[key]] for key in common], np.int64).reshape(-1, 2)
    if not len(at) or (np.diff(at, axis=0) <= 0).any():
        return []  # with threads, there may be no common order
    sent = np.searchsorted(issued.halves(source, target, group, sending=True), at[:, 0])
    received = np.searchsorted(issued.halves(target, source, group, sending=False), at[:, 1])
    kinds = [(key[0], issued.operation(row)) for key, row in zip(common, at[:, 0], strict=True)]
    found = [
        _Stretch((a, b), until, more_sent, more_received)
        for (a, b), until, more_sent, more_received in zip(
            pairwise(kinds),
            common[1:],
            np.diff(sent).tolist(),
            np.diff(received).tolist(),
            strict=True,
        )
    ]
    if issued.from_the_start(source) and issued.from_the_start(target):
        # A program that meets once in a step begins as it goes on.
        first = _Stretch((kinds[0], kinds[0]), common[0], int(sent[0]), int(received[0]))
        return [first, *found]
    return found


class _Issued:
    """What ranks have issued; answers are remembered."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._collectives: dict[int, dict[tuple[int, int], int]] = {}
        self._sending = np.array([*map(is_sending, context.trace.signatures), False], bool)

    def collectives(self, rank: int) -> dict[tuple[int, int], int]:
        """The collectives that a rank has issued: (group, number) -> row, in order of issue."""
        if rank not in self._collectives:
            front, records = self.context.front, self.context.trace.records
            low, high = self.context.bounds.get(rank, (0, 0))
            rows = low + np.flatnonzero(front.collective[low:high])
            groups, numbers = records["group"][rows], records["collective_seq"][rows]
            keys = zip(groups.tolist(), numbers.tolist(), strict=True)
            self._collectives[rank] = dict(zip(keys, rows.tolist(), strict=True))
        return self._collectives[rank]

    def halves(self, rank: int, peer: int, group: int, *, sending: bool) -> Ints:
        """Rows of what a rank sends to a peer, or receives from it, in a group."""
        rows = self.context.rows_in(rank, peer=peer, group=group)
        signatures = self.context.trace.records["signature"][rows]
        found: Ints = rows[self._sending[signatures] == sending]
        return found

    def operation(self, row: int) -> str:
        """The name of the operation of a record."""
        return self.context.families[int(self.context.trace.records["signature"][row])]

    def from_the_start(self, rank: int) -> bool:
        """Whether the rank's first operation is on record."""
        return rank not in self.context.hidden
