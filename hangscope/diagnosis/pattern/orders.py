"""In which order ranks come to collectives of two kinds of groups, and who of a circle differs.

Two ranks that wait for each other in two groups have come to them in opposite orders. All others
run the same program: where each of them that is in groups of both kinds has come to these two
operations in one order, who has come in the other is the one to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.evidence import hidden_ranks
from hangscope.diagnosis.records.kinds import is_one_sided
from hangscope.trace.model import NONE

_MOST_ASKED = 64
"""So many others tell the usual order."""
_ENOUGH = 2
_MOST_MEETINGS = 6

Meeting = tuple[int, int]
"""A collective by a number for the kind of its group and its own number there."""


def against_order(
    context: Context, ranks: Collection[int], places: Iterable[Place]
) -> tuple[int, ...]:
    """Those of ``ranks`` who came to two of the ``places`` in another order than everybody else.

    Empty where the others do not agree, are too few, or where all of ``ranks`` differ from them.
    """
    # Kinds may hold lists of all ranks: they are hashed once, not for every rank.
    numbers: dict[object, int] = {}
    chosen = {
        (numbers.setdefault(context.kinds[p.group], len(numbers)), p.seq)
        for p in sorted(places, key=lambda p: (p.group, p.seq))
        if p.group >= 0 and not p.p2p
    }
    meetings = sorted(chosen)[:_MOST_MEETINGS]
    hidden = hidden_ranks(context.trace) | context.without_order
    others = [r for r in context.trace.ranks if r not in ranks and r not in hidden]
    group_of = _groups_of(context, numbers)
    odd: set[int] = set()
    for a, b in combinations(meetings, 2):
        if a[0] == b[0]:
            continue
        inside = [r for r in others if (r, a[0]) in group_of and (r, b[0]) in group_of]
        asked = inside[:_MOST_ASKED]
        said = {r: _a_first(context, group_of, r, a, b) for r in asked}
        known = {r: first for r, first in said.items() if first is not None}
        if len({*known.values()}) != 1:
            continue
        if len(_who_did(context, group_of, known, a, b) - {*ranks}) < _ENOUGH:
            continue
        (usual,) = {*known.values()}
        theirs = {r: _a_first(context, group_of, r, a, b) for r in ranks if r not in hidden}
        odd |= {r for r, first in theirs.items() if first is (not usual)}
    return tuple(sorted(odd)) if len(odd) < len(ranks) else ()


def _groups_of(context: Context, numbers: Mapping[object, int]) -> dict[tuple[int, int], int]:
    """Per rank and number of a kind the group it is in, or -1 where it is in several."""
    found: dict[tuple[int, int], int] = {}
    for index, (group, kind) in enumerate(zip(context.trace.groups, context.kinds, strict=True)):
        number = numbers.get(kind)
        if number is not None:
            for rank in group.ranks:
                found[rank, number] = NONE if (rank, number) in found else index
    return found


def _who_did(
    context: Context,
    group_of: Mapping[tuple[int, int], int],
    known: Iterable[int],
    a: Meeting,
    b: Meeting,
) -> set[int]:
    """These, and the members of groups that finished both with them: those came in one order too,
    whether they left a record or not."""
    found = set(known)
    for rank in known:
        groups = [group_of[rank, kind] for kind, _ in (a, b)]
        rows = [context.row_of(g, rank, seq) for g, (_, seq) in zip(groups, (a, b), strict=True)]
        if all(row != NONE and _finished_by_all(context, row) for row in rows):
            first, second = (context.trace.groups[g].ranks for g in groups)
            found |= set(first) & set(second) if len(first) <= _MOST_ASKED else set()
    return found


def _finished_by_all(context: Context, row: int) -> bool:
    """Whether a rank finished a collective to which every member has to come."""
    signature = context.trace.signatures[int(context.trace.records["signature"][row])]
    return not context.front.unfinished[row] and not is_one_sided(signature)


def _a_first(
    context: Context, group_of: Mapping[tuple[int, int], int], rank: int, a: Meeting, b: Meeting
) -> bool | None:
    """Whether the rank came to ``a`` before it came to ``b``; None where that is not known."""
    rows = [context.row_of(group_of.get((rank, kind), NONE), rank, seq) for kind, seq in (a, b)]
    if rows == [NONE, NONE] or any(group_of.get((rank, k), NONE) == NONE for k, _ in (a, b)):
        return None
    return rows[1] == NONE or NONE < rows[0] < rows[1]
