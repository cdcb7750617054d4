"""Groups of the same kind, and who in them runs the same program as a given rank.

Groups of one kind run the same program, place by place: the first members of all pipelines are
first stages. Where ranks are placed by hand (spare nodes, a leader chosen for each host), the
places may differ from group to group. Then a rank does what *another* place of a sibling does, and
the member at its own place there is no measure of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.habits import tensors_of
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.trace.model import NONE

_MAX_SIBLINGS = 16
_MAX_PLACES = 64
"""More places of a sibling are not searched for one that runs a rank's program."""
_ENOUGH = 2
"""One equal half may be chance."""

Half = tuple[object, ...]
"""One half of a pair: operation, partner's place, tensors, line."""
Halves = dict[int, tuple[Half, ...]]
"""Per p2p number the halves that a rank issued under it in one group."""


def siblings(context: Context, group: int) -> list[int]:
    """Groups of the same kind and size without common ranks, a few of them."""
    groups = context.trace.groups
    own = groups[group]
    if own.desc == "default_pg" or len(own.ranks) < 2:
        return []
    members = set(own.ranks)
    alike = context.groups_alike[context.kinds[group], len(own.ranks)]
    return list(islice((i for i in alike if members.isdisjoint(groups[i].ranks)), _MAX_SIBLINGS))


def counterparts(context: Context, rank: int, group: int) -> dict[int, int]:
    """Per sibling of ``group`` the rank at the same place, unless it runs another place's program.

    Empty for a rank that is no member of the group.
    """
    ranks = context.trace.groups[group].ranks
    if rank not in ranks:
        return {}
    place, own = ranks.index(rank), _program_of(context, rank, group)
    return {
        other: context.trace.groups[other].ranks[place]
        for other in siblings(context, group)
        if not _runs_another_program(context, own, other, place)
    }


def halves_of(context: Context, rank: int, group: int) -> Halves:
    """What a rank sent to and received from whom in a group; without receives from any source."""
    records = context.records_in(rank, group)
    records = records[records["peer"] >= 0]
    ranks = context.trace.groups[group].ranks
    place = {r: i for i, r in enumerate(ranks)}
    # The same stack has a different number in another rank's ring.
    numbers = np.unique(records["stack"]).tolist()
    lines = {n: user_frames(context.trace.stacks[n]) if n != NONE else () for n in numbers}
    result: Halves = {}
    for record in records:
        signature = context.trace.signatures[int(record["signature"])]
        seq = int(record["p2p_seq"])
        partner = place.get(int(record["peer"]), -1)
        half = (signature.op, partner, tensors_of(signature), lines[int(record["stack"])])
        result[seq] = (*result.get(seq, ()), half)
    return result


class _Program(NamedTuple):
    """What a rank did in one of its groups. ``directions``: whether it sends, receives, or both."""

    directions: set[str]
    halves: Halves


def _program_of(context: Context, rank: int, group: int) -> _Program:
    signatures = np.unique(context.records_in(rank, group)["signature"]).tolist()
    directions = {context.families[s] for s in signatures if s != NONE} & {"send", "recv"}
    return _Program(directions, halves_of(context, rank, group))


def _runs_another_program(context: Context, own: _Program, other: int, place: int) -> bool:
    """Whether a rank does what another place of a sibling group does, and not what its own place
    there does.

    A mistake is made once: until then a rank agrees with its counterpart elsewhere, and with nobody
    else for longer.
    """
    members = context.trace.groups[other].ranks
    sibling = _program_of(context, members[place], other)
    if not own.directions or not sibling.directions:
        return False
    if own.directions.isdisjoint(sibling.directions):
        return True  # one only sends, the other only receives
    common = sorted(own.halves.keys() & sibling.halves.keys())
    alike = sum(1 for _ in takewhile(lambda n: own.halves[n] == sibling.halves[n], common))
    if common and alike == len(common):
        return False
    others = (halves_of(context, rank, other) for rank in members[:_MAX_PLACES])
    return any(_follows(own.halves, halves, alike) for halves in others)


def _follows(own: Halves, sibling: Halves, otherwise: int) -> bool:
    """Whether a rank did for most of the record what this one did, to partners at places that
    correspond one to one, and for longer than what the one at its own place did (for ``otherwise``
    numbers).

    If the rank made a mistake, that is where they part.
    """
    common = sorted(own.keys() & sibling.keys())
    alike = _alike_at_first(own, sibling, common)
    return alike >= _ENOUGH and alike > otherwise and 2 * alike > len(common)


def _alike_at_first(own: Halves, sibling: Halves, numbers: Sequence[int]) -> int:
    """Under how many of ``numbers``, from the first on, two ranks issued the same halves, to
    partners at places that correspond one to one."""
    there: dict[object, object] = {}
    back: dict[object, object] = {}
    for count, number in enumerate(numbers):
        if [_unplaced(half) for half in own[number]] != [_unplaced(h) for h in sibling[number]]:
            return count
        for half, its in zip(own[number], sibling[number], strict=True):
            place, other = half[1], its[1]
            if there.setdefault(place, other) != other or back.setdefault(other, place) != place:
                return count
    return len(numbers)


def _unplaced(half: Half) -> Half:
    return half[0], *half[2:]
