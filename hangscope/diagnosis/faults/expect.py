"""What should a rank have issued? Votes of ranks that run the same program, and of its own past.

The streams of all ranks, and what a rank did before, are texts of one program. Another rank votes
on an operation if everything before it is the same in both streams; a rank's past votes where the
operations before have come in this order before. A rank *departs* where the votes are against it.
A program that differs from rank to rank (stages, a leader) does so in every step: only what a rank
did once counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.knowledge.streams import Stream
from hangscope.diagnosis.records.frontier import Ints
from hangscope.trace.model import NONE

_CONTEXT = 16
"""So many operations before one tell whether it has come in this way before."""
_WINDOW = 24
"""So many operations before and behind the one a rank stands in are compared with its past."""
_ENOUGH = 4
"""Fewer equal operations before one tell little about what follows."""
_OFTEN = 2
"""After an operation that came so often, anything that never followed it is unusual."""
_COMMON = 0.7
"""Streams without a beginning are of one program if they share so much of what they consist of."""
_ONE_VOTE, _PAST_AGAINST, _PAST_IN_FAVOUR = 0.5, 0.5, -0.25


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a rank did something else than others, or than its past lets expect.

    ``what``: what it did. ``against``, ``agree``: ranks with the same stream before it that did
    something else there, or the same. ``past``: whether the rank's own past is against it; None:
    says nothing. ``is_same``: those did the same, but at another line. ``is_extra``: the next thing
    it did was what those had done there.
    """

    row: int
    what: int
    against: frozenset[int] = frozenset()
    agree: frozenset[int] = frozenset()
    past: bool | None = None
    is_same: bool = False
    is_extra: bool = False

    def weight(self, accused: Collection[int]) -> float:
        """How surely it is one, from 0 to 1, if ranks that are accused are no measure."""
        against, agree = (len(who.difference(accused)) for who in (self.against, self.agree))
        if against > agree:
            mine = {None: 0.0, True: _PAST_AGAINST, False: _PAST_IN_FAVOUR}[self.past]
            return min(1.0, _ONE_VOTE * (against - agree) + mine)
        excused = 0 < agree >= len(self.against)
        return _PAST_AGAINST if self.past and not excused else 0.0


@dataclass(frozen=True, slots=True)
class Conduct:
    """What a rank did, compared with what was expected of it.

    ``stands``: what it waits in, or issued last; ``followed``: ranks that did the same until there;
    ``ended``: ranks that did the same before it, and nothing since; ``past``: whether what it
    stands in is unlike its own past; ``begun``: whether that is new to it and, if it sends or
    receives, not the first time of all; ``as_ever``: since it last met the others, it did as after
    an earlier meeting.
    """

    departures: tuple[Departure, ...] = ()
    followed: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    past: bool | None = None
    stands: int = NONE
    begun: bool = False
    as_ever: bool = False

    def worst(self, accused: Collection[int] = ()) -> tuple[float, Departure | None]:
        """The surest departure and its weight, if ranks that are accused are no measure."""
        weights = [d.weight(accused) for d in self.departures]
        best = max(weights, default=0.0)
        return best, self.departures[weights.index(best)] if best else None

    def is_measured(self, accused: Collection[int] = ()) -> bool:
        """Whether anything is known of what was expected of it."""
        asked = self.followed.union(*(d.against for d in self.departures))
        return self.past is not None or not asked.issubset(accused)


class _Vote(NamedTuple):
    """Another rank did the same until ``end``, and can be compared until ``known``.

    Both are indices in the stream that is judged. ``is_new``: at ``end`` it did something that was
    new to it; ``is_half``: which is a send or receive; ``is_same``: from another line, the same.
    ``kinds``: the kinds of groups of which one rank alone has one; ``what``: what it did at
    ``end``; ``is_next``: what the judged rank did there came next.
    """

    end: int
    known: int
    what: int = NONE
    is_next: bool = False
    is_new: bool = False
    is_half: bool = False
    is_same: bool = False
    kinds: frozenset[int] = frozenset()


_Votes = dict[int, _Vote]


def conduct_of(
    context: Context,
    rank: int,
    suspects: Collection[int],
    asked: Iterable[int],
    *,
    careful: bool = False,
) -> Conduct:
    """What a rank did, compared with what was expected of it.

    Parameters
    ----------
    context:
        The trace and what was derived from it.
    rank:
        The rank that is judged.
    suspects:
        Ranks that were in step at each collective they all finished: from the last one on, the
        rank's own past is asked.
    asked:
        Ranks that may vote; those that run another program do not count.
    careful:
        Whether those do not count, either, that may have another part in the program.
    """
    own = context.streams.of(rank)
    stands = np.flatnonzero(context.front.unfinished[own.rows])
    at = int(stands[0]) if len(stands) else len(own) - 1
    if at < 0:
        return Conduct()
    if not own.lacks_none:
        return Conduct(stands=int(own.what[at]))
    votes = _votes(context, own, asked, careful=careful)
    found = _departures(own, votes)
    met = _meetings(context, own, at, suspects)
    past, by_steps = unlike_past(own.what, at), None
    if context.streams.with_lines:
        by_steps = _unlike_steps(own, met, at)
    if past is None or (past and by_steps is False):
        past = by_steps if past is None else None
    for index in range(max([0, at - _WINDOW, *(i + 1 for i in met[-1:])]), len(own))[: 2 * _WINDOW]:
        # Behind what it stands in, only another round of the same is its own doing for sure.
        near = index <= at or own.what[index] == own.what[at]
        if near and (past if index == at else unlike_past(own.what, index)):
            found.append(_departure(own, votes, index, past=True))
            break
    followed, _ = _counted(own, votes, at)
    ended = frozenset(r for r, vote in votes.items() if vote.end == vote.known == at)
    # A first send or receive of all does not tell which half of it is the mistake.
    begun = is_new(own.what, at) and bool(own.numbers[at] or not all(own.numbers[:at]))
    as_ever = by_steps is False
    return Conduct(tuple(found), followed, ended, past, int(own.what[at]), begun, as_ever)


def _meetings(context: Context, own: Stream, at: int, ranks: Collection[int]) -> list[int]:
    """Indices of the collectives of all these ranks before ``at``."""
    wanted = set(ranks)
    common = [i for i, g in enumerate(context.trace.groups) if wanted.issubset(g.ranks)]
    rows = own.rows[:at]
    met = np.isin(context.trace.records["group"][rows], common) & context.front.collective[rows]
    found: list[int] = np.flatnonzero(met).tolist()
    return found


def _unlike_steps(own: Stream, met: list[int], at: int) -> bool | None:
    """Whether the rank, since it last met the others, did not begin as after any earlier meeting.

    None without an earlier stretch that begins alike, or where it stands in something new.
    """
    starts = [-1, *met] if own.is_whole else met
    newest = own.what[starts[-1] + 1 : at + 1] if starts else own.what[:0]
    earlier = [own.what[a + 1 : b + 1] for a, b in pairwise(starts)]
    alike = [one for one in earlier if len(one) and one[0] == newest[:1]]
    if not alike or (len(newest) < 2 and len(alike) < _OFTEN):
        return None  # one operation says little
    if not any(newest[-1] in one for one in earlier):
        return None
    return not any(np.array_equal(one[: len(newest)], newest) for one in alike)


def _votes(context: Context, own: Stream, asked: Iterable[int], *, careful: bool) -> _Votes:
    found, kinds = {}, defaultdict(frozenset, context.streams.kinds_of_rank)
    for rank in asked:
        other = context.streams.of(rank)
        starts = _aligned(own, other) if rank != own.rank else None
        if starts is not None:
            a, b = starts
            known = min(len(own) - a, len(other) - b)
            differs = np.flatnonzero(own.what[a : a + known] != other.what[b : b + known])
            alike = int(differs[0]) if len(differs) else known
            vote = _Vote(a + alike, a + known)
            if careful and alike < known:
                vote = vote._replace(
                    what=int(other.what[b + alike]),
                    is_next=own.what[a + alike] in other.what[b + alike + 1 : b + alike + 2],
                    is_new=is_new(other.what, b + alike),
                    is_half=not other.numbers[b + alike],
                    is_same=bool(own.plain[a + alike] == other.plain[b + alike]),
                    kinds=kinds[own.rank] ^ kinds[rank],
                )
            found[rank] = vote
    return found


def _aligned(own: Stream, other: Stream) -> tuple[int, int] | None:
    """Indices in two streams of one place of the program; None if they have none in common."""
    if not len(other) or not other.lacks_none:
        return None
    if own.is_whole and other.is_whole:
        return 0, 0
    place = next((place for place in own.places if place in other.places), None)
    if place is None or not _run_alike(own, other):
        return None
    return own.places[place], other.places[place]


def _run_alike(own: Stream, other: Stream) -> bool:
    """Whether two streams consist of the same operations, but for a few."""
    mine, its = set(own.what.tolist()), set(other.what.tolist())
    return len(mine & its) >= _COMMON * len(mine | its)


def _counted(own: Stream, votes: _Votes, at: int) -> tuple[frozenset[int], frozenset[int]]:
    """Who agrees with what was issued at an index, and who did something else there.

    Whoever began something new speaks only against what is new as well, and whoever began to send
    or receive speaks against nothing: it may have another part in the program. So has a rank that
    is in no group of that kind.
    """
    agree = frozenset(r for r, vote in votes.items() if vote.end > at)
    other = [
        (r, vote)
        for r, vote in votes.items()
        if vote.end == at < vote.known and int(own.kinds[at]) not in vote.kinds
    ]
    begun = any(vote.is_new for _, vote in other) and is_new(own.what, at)
    return agree, frozenset(
        r for r, vote in other if not vote.is_new or (begun and not vote.is_half)
    )


def _departures(own: Stream, votes: _Votes) -> list[Departure]:
    """Where a rank departs from what other ranks did, first to last."""
    found = []
    for at in sorted({vote.end for vote in votes.values() if vote.end < vote.known}):
        agree, against = _counted(own, votes, at)
        is_new_half = not own.numbers[at] and is_new(own.what, at)
        if len(against) >= max(len(agree), 1) and not is_new_half and not _recurs(own.what, at):
            found.append(_departure(own, votes, at, unlike_past(own.what, at)))
    return found


def _departure(own: Stream, votes: _Votes, at: int, past: bool | None) -> Departure:
    agree, against = _counted(own, votes, at)
    same = bool(against) and all(votes[rank].is_same for rank in against)
    then = int(own.what[at + 1]) if at + 1 < len(own) else NONE
    extra = then != NONE and any(
        votes[rank].what == then and not votes[rank].is_next for rank in against
    )
    return Departure(int(own.rows[at]), int(own.what[at]), against, agree, past, same, extra)


def _recurs(what: Ints, at: int) -> bool:
    """Whether what is issued at an index came after the same operations elsewhere in the stream.

    Operations up to one that was issued only once, as at the start of a job, cannot come again.
    What came since then must have begun elsewhere, too, after something that is no part of it.
    """
    start = max(at - _CONTEXT, 0)
    once = [i for i in range(start, at) if int((what == what[i]).sum()) == 1]
    start = once[-1] + 1 if once else start
    pattern = what[start : at + 1]
    windows = np.lib.stride_tricks.sliding_window_view(what, len(pattern))
    found = np.flatnonzero((windows == pattern).all(axis=1))
    if once and len(pattern) < _ENOUGH:
        return False
    if once:
        found = found[(found == 0) | ~np.isin(what[found - 1], pattern[:-1])]
    return len(found) > 1


def unlike_past(what: Ints, at: int) -> bool | None:
    """Whether something else followed whenever the rank came this way before.

    The longest run of operations that came before decides if it is long enough; a shorter one only
    if none of what ever followed the operation before is the same. None if that decides nothing,
    or if the rank has never issued this before: something new has begun, perhaps for all.
    """
    if is_new(what, at):
        return None
    earlier = np.arange(1, at)
    length = 0
    while at - 1 - length >= 0:
        longer = earlier[earlier - 1 - length >= 0]
        longer = longer[what[longer - 1 - length] == what[at - 1 - length]]
        if not len(longer):
            break
        if not length and len(longer) >= _OFTEN and not (what[longer] == what[at]).any():
            return True
        earlier, length = longer, length + 1
    return None if length < _ENOUGH else not bool((what[earlier] == what[at]).any())


def is_new(what: Ints, at: int) -> bool:
    """Whether the rank has never issued before what it issues at an index."""
    return not bool((what[:at] == what[at]).any())
