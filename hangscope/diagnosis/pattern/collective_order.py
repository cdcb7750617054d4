"""In which order ranks issue collectives of two kinds of groups, and who deviates in a cycle.

Two ranks that wait for each other in two groups have reached them in opposite orders. All others
run the same program: if everyone who is in groups of both kinds issued these two operations in one
order, whoever used the opposite order is to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations, islice

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.pattern.counterparts import Progress, progress_in
from hangscope.diagnosis.pattern.deviations import same_program
from hangscope.diagnosis.pattern.sibling_groups import siblings
from hangscope.diagnosis.records.kinds import is_one_sided
from hangscope.trace.model import NONE

_MOST_ASKED = 64
"""Limit on the other ranks asked for the usual order."""
_ENOUGH = 2
_MOST_MEETINGS = 6

Meeting = tuple[int, int]
"""A collective as (number of its group's kind, sequence number)."""


def ranks_out_of_order(
    context: Context, ranks: Collection[int], places: Iterable[Place]
) -> tuple[int, ...]:
    """Those of ``ranks`` that reached two of the ``places`` in a different order than all others.

    Empty if the others disagree or are too few, or if all of ``ranks`` differ from them.
    """
    odd = _Orders(context, places).broken_by(ranks)
    return odd if len(odd) < len(ranks) else ()


def collective_first(context: Context, collective: Place, pair: Place) -> bool | None:
    """Whether counterparts in sibling groups reached the collective before the pair.

    One member waits in each and has not reached the other. A half carries the number of the last
    collective before it, so its record alone suffices. None unless at least two counterparts tell
    and all agree, one of whom exchanges the same as the rank that waits in the pair.
    """
    group, seq = collective.group, collective.seq
    ranks = context.trace.groups[group].ranks
    if not {pair.waiters[0], pair.absent[0]} <= set(ranks):
        return None  # the records contradict each other
    waiting, wanted = ranks.index(pair.waiters[0]), ranks.index(pair.absent[0])
    op = context.families[context.trace.records["signature"][pair.row]]
    halves = [(waiting, wanted, pair.seq, op)]
    row = context.row_of(group, pair.absent[0], seq)
    if row != NONE:  # its half was due next
        number = int(context.trace.records["p2p_seq"][row]) + 1
        halves.append((wanted, waiting, number, "send" if op == "recv" else "recv"))
    said: list[list[bool]] = []
    for own, partner, number, op in halves:
        said.append([])
        for other in siblings(context, group):
            members = context.trace.groups[other].ranks
            part = context.records_in(members[own], other)
            part = part[(part["p2p_seq"] == number) & (part["peer"] == members[partner])]
            its = [r for r in part if context.families[r["signature"]] == op]
            said[-1] += [bool(r["collective_seq"] >= seq) for r in its[:1]]
    known = [first for answers in said for first in answers]
    return known[0] if said[0] and len(known) >= _ENOUGH and len({*known}) == 1 else None


class _Orders:
    """Some places, by the kinds of their groups, and the order in which ranks reached them."""

    def __init__(self, context: Context, places: Iterable[Place]) -> None:
        # Kinds may hold lists of all ranks: hash them once, not per rank.
        numbers: dict[object, int] = {}
        chosen = {
            (numbers.setdefault(context.kinds[p.group], len(numbers)), p.seq)
            for p in sorted(places, key=lambda p: (p.group, p.seq))
            if p.group >= 0 and not p.p2p
        }
        self._context = context
        self._meetings = sorted(chosen)[:_MOST_MEETINGS]
        self._group_of = _groups_of(context, numbers)
        self._hidden = context.hidden
        self._progress: dict[tuple[int, int], Progress] = {}
        self._asked = [r for r in context.trace.ranks if r not in context.without_order]

    def broken_by(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Those of ``ranks`` that reached two places in a different order than all others (at least
        two) whose groups run the same program."""
        odd: set[int] = set()
        for a, b in combinations(self._meetings, 2):
            if a[0] != b[0]:
                odd |= self._broken(ranks, a, b)
        return tuple(sorted(odd))

    def _broken(self, ranks: Collection[int], a: Meeting, b: Meeting) -> set[int]:
        others = (r for r in self._asked if r not in ranks and self._groups(r, a, b) is not None)
        seen = {r: self._a_first(r, a, b) for r in islice(others, _MOST_ASKED)}
        known = {r: first for r, first in seen.items() if first is not None}
        if len(known) == 0:
            return set()
        suspects: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank in ranks:
            groups = self._groups(rank, a, b)
            if groups is not None and rank not in self._context.without_order:
                suspects[groups].append(rank)
        odd = set()
        for groups, accused in suspects.items():
            alike = {r: first for r, first in known.items() if self._alike(groups, r, a, b)}
            alike = {
                r: first for r, first in alike.items() if self._equally_far(accused[0], r, a, b)
            }
            enough = len(self._with_members_that_did(alike, a, b) - {*ranks}) >= _ENOUGH
            if enough and len({*alike.values()}) == 1:
                usual = next(iter(alike.values()))
                odd |= {r for r in accused if self._a_first(r, a, b) is (not usual)}
        return odd

    def _groups(self, rank: int, a: Meeting, b: Meeting) -> tuple[int, int] | None:
        """The rank's group of each of two kinds; None unless there is exactly one of each."""
        first, second = (self._group_of.get((rank, kind), NONE) for kind, _ in (a, b))
        return None if NONE in (first, second) else (first, second)

    def _alike(self, groups: tuple[int, int], rank: int, a: Meeting, b: Meeting) -> bool:
        """Whether the rank's groups run the same program as these: equal numbers mean the same
        operation."""
        its = self._groups(rank, a, b)
        assert its is not None
        pairs = zip(groups, its, (a[1], b[1]), strict=True)
        return all(same_program(self._context, g, other, seq) for g, other, seq in pairs)

    def _equally_far(self, rank: int, other: int, a: Meeting, b: Meeting) -> bool:
        """Whether two ranks were equally far in each group when they were last at the same place of
        the other; assumed if not recorded.

        Otherwise the numbers stand for other steps of one program: each replica may take as many
        micro-batches as its data requires.
        """
        own, its = self._groups(rank, a, b), self._groups(other, a, b)
        assert own is not None
        assert its is not None
        for here, there, seq in ((0, 1, b[1]), (1, 0, a[1])):
            far = [
                self._progress_in(who, groups[here]).get((groups[there], seq - 1))
                for who, groups in ((rank, own), (other, its))
            ]
            if None not in far and far[0] != far[1]:
                return False
        return True

    def _progress_in(self, rank: int, group: int) -> Progress:
        """The progress of a rank in a group (cached)."""
        if (rank, group) not in self._progress:
            self._progress[rank, group] = progress_in(self._context, rank, group)
        return self._progress[rank, group]

    def _with_members_that_did(self, known: Iterable[int], a: Meeting, b: Meeting) -> set[int]:
        """These ranks, and the members of groups that finished both with them: those used the same
        order, recorded or not."""
        context, found = self._context, set(known)
        for rank in known:
            groups = self._groups(rank, a, b)
            assert groups is not None
            rows = [
                context.row_of(g, rank, seq) for g, (_, seq) in zip(groups, (a, b), strict=True)
            ]
            if all(row != NONE and _finished_by_all(context, row) for row in rows):
                first, second = (context.trace.groups[g].ranks for g in groups)
                found |= set(first) & set(second) if len(first) <= _MOST_ASKED else set()
        return found

    def _a_first(self, rank: int, a: Meeting, b: Meeting) -> bool | None:
        """Whether the rank issued ``a`` before ``b``; None if unknown.

        If a rank's older records are gone, an unrecorded operation was either issued before all
        recorded ones or not yet: its counters decide. Finished entries that are not listed leave it
        open.
        """
        groups = self._groups(rank, a, b)
        if groups is None:
            return None
        rows = [self._context.row_of(g, rank, m[1]) for g, m in zip(groups, (a, b), strict=True)]
        if rows == [NONE, NONE]:
            return None
        if NONE not in rows:
            return rows[0] < rows[1]
        missing = rows.index(NONE)
        if rank in self._hidden:
            issued, _ = self._context.last_in_group(rank, groups[missing])
            if issued == 0:
                return None
            if issued >= (a, b)[missing][1]:
                listed = self._context.trace.ranks[rank].only_active
                return None if listed else missing == 0
        return missing == 1


def _groups_of(context: Context, numbers: Mapping[object, int]) -> dict[tuple[int, int], int]:
    """(rank, number of a kind) -> the group, or -1 if the rank is in several."""
    found: dict[tuple[int, int], int] = {}
    for index, (group, kind) in enumerate(zip(context.trace.groups, context.kinds, strict=True)):
        number = numbers.get(kind)
        if number is not None:
            for rank in group.ranks:
                found[rank, number] = NONE if (rank, number) in found else index
    return found


def _finished_by_all(context: Context, row: int) -> bool:
    """Whether a rank finished a collective that needs every member."""
    signature = context.trace.signatures[int(context.trace.records["signature"][row])]
    return not context.front.unfinished[row] and not is_one_sided(signature)
