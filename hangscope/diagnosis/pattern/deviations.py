"""What a healthy member would have done, judged by sibling groups and the rank's own past.

If two ranks wait for each other, the graph alone cannot say who is wrong. Groups of the same kind
(the other tensor groups, the same pipeline stage elsewhere) run the same program, and a training
loop repeats itself: the rank that deviates is the likelier culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.counterparts import unlike_whom
from hangscope.diagnosis.pattern.habits import waits_at_new_line
from hangscope.diagnosis.pattern.history import history_of
from hangscope.diagnosis.pattern.operation_totals import pairs_issued
from hangscope.diagnosis.pattern.sibling_groups import counterparts, siblings
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import NONE, Signature

_MAX_SIBLINGS = 16
_ENOUGH_STEPS = 8
_WINDOW = 64
"""How many of the newest operations are searched for something never seen before."""
_HALF = 3
"""Fields of an operation that count in a step: all but its stack."""
_USUAL_TIMES = 2
_UNEVEN = "all_to_all"
"""Its sizes follow the data: those of another group prove nothing."""
_PAST = 4
"""So many earlier operations show that another group runs the same program."""

_NEAR = 24
"""Window in which they are looked for."""

Step = tuple[object, ...]


def deviants(
    context: Context,
    ranks: Iterable[int],
    groups: Iterable[int],
    fellow_suspects: Collection[int] = (),
    *,
    pairs: bool = True,
) -> tuple[int, ...]:
    """Those of ``ranks`` that deviated, unless all of them did.

    ``fellow_suspects``: counterparts that are just as suspect and therefore no reference.
    ``pairs``: they wait in sends or receives, among others. Without those, a rank that waits
    together with unsuspected ranks is where it should be.
    """
    suspects = sorted(set(ranks))
    wider = _with_counterparts(context, suspects, groups)
    apart = {r: unlike_whom(context, r, wider, fellow_suspects) for r in suspects}
    # Two ranks that differ only from each other are equally far from the pattern.
    found = [r for r, whom in apart.items() if any(not apart.get(other) for other in whom)]
    if 0 < len(found) < len(suspects):
        return tuple(found)
    # Something new is weak evidence: it counts only if a single rank did it, and if the others'
    # past is long enough to show that they did not.
    new = {r: _did_something_new(context, r, suspects) for r in suspects}
    found = [
        r
        for r, is_new in new.items()
        if is_new
        and (pairs or not _in_company(context, r, suspects))
        and not came_like_siblings(context, r)
    ]
    known = all(is_new is not None for is_new in new.values())
    return tuple(found) if known and len(found) == 1 < len(suspects) else ()


def _did_something_new(context: Context, rank: int, suspects: Sequence[int]) -> bool | None:
    """Whether a rank took a step it had never taken, or reached a send or receive that is new to
    it."""
    unlike = unlike_before(context, rank, suspects)
    return unlike if unlike is not False else waits_at_new_line(context, rank)


def _with_counterparts(
    context: Context, suspects: Sequence[int], groups: Iterable[int]
) -> tuple[int, ...]:
    """The groups, and their siblings in which a suspect is the counterpart of another suspect."""
    found = dict.fromkeys(groups)
    for group in [*found]:
        ranks = context.trace.groups[group].ranks
        places = [ranks.index(r) for r in suspects if r in ranks]
        for other in siblings(context, group) if places else ():
            if any(context.trace.groups[other].ranks[i] in suspects for i in places):
                found[other] = None
    return tuple(found)


def _in_company(context: Context, rank: int, suspects: list[int]) -> bool:
    """Whether an unsuspected rank waits at the same place and also arrived in a new way.

    Then being there is normal. If the others arrived as usual, this rank has skipped something. A
    member that left no dump may be there as well.
    """
    places = context.waits.of(rank)
    if any(r not in context.on_record for place in places for r in place.unknown):
        return True
    others = sorted({r for place in places for r in place.waiters} - set(suspects))
    return any(unlike_before(context, r, suspects) is not False for r in others[:_MAX_SIBLINGS])


def came_like_siblings(context: Context, rank: int) -> bool:
    """Whether a counterpart in a sibling group reached what the rank waits in by the same way.

    Then being there is normal, even if the way is new to the rank.
    """
    for place in context.waits.of(rank):
        if place.p2p or place.group < 0:
            continue
        own_way = _way_to(context, rank, place.group, place.seq)
        others = counterparts(context, rank, place.group) if own_way is not None else {}
        if any(_way_to(context, r, other, place.seq) == own_way for other, r in others.items()):
            return True
    return False


def _way_to(context: Context, rank: int, group: int, seq: int) -> Step | None:
    """What a rank issued just before a collective: kind of group, operation, number."""
    row = context.row_of(group, rank, seq)
    if row <= context.bounds.get(rank, (0, 0))[0]:
        return None
    before = context.trace.records[row - 1]
    number = before["collective_seq"] if before["peer"] < 0 else before["p2p_seq"]
    return context.kinds[before["group"]], context.families[before["signature"]], int(number)


def ran_ahead(
    context: Context, rank: int, group: int, number: int, without: Collection[int] = ()
) -> bool:
    """Whether none of the rank's counterparts in sibling groups has reached this p2p number.

    ``without``: ranks that are just as suspect and are not asked.
    """
    return NONE < furthest_counterpart(context, rank, group, without) < number


def furthest_counterpart(
    context: Context, rank: int, group: int, without: Collection[int] = ()
) -> int:
    """The highest p2p number that a counterpart in a sibling group has reached, or -1."""
    furthest = NONE
    for other, counterpart in counterparts(context, rank, group).items():
        if counterpart in without:
            continue
        numbers = context.records_in(counterpart, other)["p2p_seq"]
        listed = int(numbers.max(initial=NONE))
        furthest = max(furthest, listed, pairs_issued(context, counterpart, other))
    return furthest


def unlike_before(context: Context, rank: int, suspects: Sequence[int]) -> bool | None:
    """Whether one of the newest steps from operation to operation never occurred before.

    Only steps after the last collective finished by all ``suspects`` count: until then they went
    together. None if that cannot be told: the records must show what usually follows the preceding
    operation and, if older records are gone, the new operation as well.
    """
    past = history_of(context, rank, suspects)
    steps: list[Step] = [(*a[:_HALF], *b[:_HALF]) for a, b in pairwise(past.issued)]
    if len(steps) < _ENOUGH_STEPS:
        return None
    start = max(len(steps) - _WINDOW, len(steps) // 2, *past.meetings[-1:])
    seen = set(steps[:start])
    known = {step[_HALF:] for step in steps[:start]}
    usual = Counter(step[:_HALF] for step in steps[:start])
    unsure = False
    for at, step in enumerate(steps[start:], start + 1):
        if step not in seen:
            if at in past.begun:  # a thread's first operation follows nothing
                unsure = True
            elif usual[step[:_HALF]] >= _USUAL_TIMES and (past.whole or step[_HALF:] in known):
                return True
            else:
                unsure = True
        seen.add(step)
        known.add(step[_HALF:])
        usual[step[:_HALF]] += 1
    return None if unsure else False


def decide_mismatch(context: Context, mismatch: Mismatch) -> tuple[int, ...]:
    """The ranks of an evenly divided mismatch that sibling groups and the past speak against."""
    votes: Counter[int] = Counter()
    by_name: Counter[int] = Counter()
    records = context.trace.records
    ops = context.families
    signatures = context.trace.signatures
    alike = _alike(signatures, mismatch.aspect == "reduce_op")
    past = [NONE if ops[i] == _UNEVEN else same for i, same in enumerate(alike)]
    sides = [
        (ops[int(records["signature"][p.row])], alike[int(records["signature"][p.row])])
        for p in mismatch.parts
    ]
    for other in siblings(context, mismatch.group):
        if not _same_past(context, mismatch, other, past):
            continue
        rows = context.collectives_of(other)
        here = rows[records["collective_seq"][rows] == mismatch.seq]
        kinds = set(records["signature"][here].tolist())
        for index, (op, signature) in enumerate(sides):
            votes[index] += signature in {alike[k] for k in kinds}
            by_name[index] += op in {ops[k] for k in kinds}
    if mismatch.aspect == "op" and not any(votes.values()):
        votes = by_name  # sizes differ between groups: another stage, other experts
    if votes:
        best = max(votes.values())
        winners = [i for i in range(len(sides)) if votes[i] == best]
        if best and len(winners) == 1:
            return tuple(
                sorted(r for i, p in enumerate(mismatch.parts) if i != winners[0] for r in p.ranks)
            )
    return ()


def _alike(signatures: Sequence[Signature], with_reduce_op: bool) -> list[int]:
    """For each signature the first one that is equal but for the reduce op.

    The reduce op is recorded later than the rest: the newest records of a killed rank lack it.
    """
    if with_reduce_op:
        return list(range(len(signatures)))
    first: dict[Signature, int] = {}
    return [first.setdefault(replace(s, reduce_op=None), i) for i, s in enumerate(signatures)]


def _same_past(context: Context, mismatch: Mismatch, other: int, alike: Sequence[int]) -> bool:
    """Whether a sibling group issued the same just before; another stage runs another program.

    For a group's first operations, everything before them counts. ``alike`` numbers equal
    signatures; -1 means that only the operation is compared.
    """
    own = _before(context, mismatch.group, mismatch.seq)
    sibling = _before(context, other, mismatch.seq)
    common = own.keys() & sibling.keys()
    enough = len(common) >= min(_PAST, mismatch.seq - 1)
    comparable = not common or any(alike[own[k]] != NONE for k in common)
    return enough and comparable and all(alike[own[k]] == alike[sibling[k]] for k in common)


def same_program(context: Context, group: int, other: int, seq: int) -> bool:
    """Whether two groups issued the same up to a number, as far as recorded, and issued anything at
    all."""
    if group == other:
        return True
    first, second = (_before(context, g, seq + 1) for g in (group, other))
    common = first.keys() & second.keys()
    return bool(common) and all(_could_be_one(context, first[k], second[k]) for k in common)


def _could_be_one(context: Context, signature: int, other: int) -> bool:
    """Whether two groups of one program may have issued these under one number."""
    op, other_op = context.families[signature], context.families[other]
    first, second = context.trace.signatures[signature], context.trace.signatures[other]
    same = first.input_dtypes == second.input_dtypes and first.input_sizes == second.input_sizes
    return op == other_op and (same or op == _UNEVEN)


def _before(context: Context, group: int, seq: int) -> dict[int, int]:
    """Signature per sequence number shortly before ``seq``."""
    records = context.trace.records
    rows = context.collectives_of(group)
    numbers = records["collective_seq"][rows]
    near = (numbers < seq) & (numbers >= seq - _NEAR)
    signatures = records["signature"][rows[near]].tolist()
    return dict(zip(numbers[near].tolist(), signatures, strict=True))
