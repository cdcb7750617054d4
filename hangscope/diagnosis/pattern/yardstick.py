"""What a healthy member would have done: sibling groups and a rank's own past.

Where two ranks wait for each other the graph alone cannot say who is wrong. Groups of the same
kind (the other tensor groups, the same pipeline stage elsewhere) run the same program, and a
training loop repeats itself: who left the pattern is the likelier culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.habits import tensors_of, waits_anew
from hangscope.diagnosis.pattern.past import past_of
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import NONE, Signature

_MAX_SIBLINGS = 16
_ENOUGH_STEPS = 8
_WINDOW = 64
"""How many of the newest operations are searched for something never seen before."""
_HALF = 3
"""Fields of an operation that count in a step: all but its stack."""
_USUAL_TIMES = 2
_MOST_PARTINGS = 2
"""Somebody who left the way may come back to it, or leave it once more behind that."""
_UNEVEN = "all_to_all"
"""Its sizes follow the data: those of another group tell nothing."""
_PAST = 4
"""So many operations before show that another group runs the same program."""

_NEAR = 24
"""Those are looked for among so many."""

Step = tuple[object, ...]


def siblings(context: Context, group: int) -> list[int]:
    """Groups of the same kind and size but no rank in common, a few of them."""
    groups = context.trace.groups
    mine = groups[group]
    if mine.desc == "default_pg" or len(mine.ranks) < 2:
        return []
    members = set(mine.ranks)
    alike = context.groups_alike[context.kinds[group], len(mine.ranks)]
    return list(islice((i for i in alike if members.isdisjoint(groups[i].ranks)), _MAX_SIBLINGS))


def deviants(
    context: Context, ranks: Iterable[int], groups: Iterable[int], *, pairs: bool = True
) -> tuple[int, ...]:
    """Those of ``ranks`` that left the pattern, where not all of them did; else none.

    ``pairs``: sends or receives are among what they wait in. Without them, who waits together with
    ranks that nobody suspects is where it should be.
    """
    suspects = sorted(set(ranks))
    wider = _with_counterparts(context, suspects, groups)
    apart = {r: unlike_whom(context, r, wider) for r in suspects}
    # Two who differ from nobody but each other are equally far from the pattern.
    found = [r for r, whom in apart.items() if any(not apart.get(other) for other in whom)]
    if 0 < len(found) < len(suspects):
        return tuple(found)
    # Something new is weak evidence: it counts only where a single rank did it, and where the
    # past of the others is long enough to tell that they did not.
    new = {r: _did_something_new(context, r, suspects) for r in suspects}
    found = [
        r
        for r, is_new in new.items()
        if is_new
        and (pairs or not _in_company(context, r, suspects))
        and not came_as_siblings(context, r)
    ]
    known = all(is_new is not None for is_new in new.values())
    return tuple(found) if known and len(found) == 1 < len(suspects) else ()


def _did_something_new(context: Context, rank: int, suspects: Sequence[int]) -> bool | None:
    """Whether a rank took a step it had never taken, or came to a send or receive new to it."""
    unlike = unlike_before(context, rank, suspects)
    return unlike if unlike is not False else waits_anew(context, rank)


def _with_counterparts(
    context: Context, suspects: Sequence[int], groups: Iterable[int]
) -> tuple[int, ...]:
    """The groups, and those like them in which a suspect is the counterpart of another."""
    found = dict.fromkeys(groups)
    for group in [*found]:
        ranks = context.trace.groups[group].ranks
        places = [ranks.index(r) for r in suspects if r in ranks]
        for other in siblings(context, group) if places else ():
            if any(context.trace.groups[other].ranks[i] in suspects for i in places):
                found[other] = None
    return tuple(found)


def _in_company(context: Context, rank: int, suspects: list[int]) -> bool:
    """Whether somebody whom nobody suspects waits at the same place and came by a new way too.

    Then being there is normal. Where the others came as they always do, this rank has skipped
    something on its way. A member that left no dump may be there as well.
    """
    places = [context.waits.places[i] for i in context.waits.places_of.get(rank, ())]
    if any(r not in context.on_record for place in places for r in place.unknown):
        return True
    others = sorted({r for place in places for r in place.waiters} - set(suspects))
    return any(unlike_before(context, r, suspects) is not False for r in others[:_MAX_SIBLINGS])


def came_as_siblings(context: Context, rank: int) -> bool:
    """Whether a counterpart in a sibling group came to what the rank waits in by the same way.

    Then being there is normal, however new the way is to the rank.
    """
    groups = context.trace.groups
    for place in (context.waits.places[i] for i in context.waits.places_of.get(rank, ())):
        if place.p2p or place.group < 0 or rank not in groups[place.group].ranks:
            continue
        position = groups[place.group].ranks.index(rank)
        mine = _way_to(context, rank, place.group, place.seq)
        for other in siblings(context, place.group) if mine is not None else ():
            if _way_to(context, groups[other].ranks[position], other, place.seq) == mine:
                return True
    return False


def _way_to(context: Context, rank: int, group: int, seq: int) -> Step | None:
    """What a rank issued just before it came to a collective: kind of group, operation, number."""
    row = context.row_of(group, rank, seq)
    if row <= context.bounds.get(rank, (0, 0))[0]:
        return None
    before = context.trace.records[row - 1]
    number = before["collective_seq"] if before["peer"] < 0 else before["p2p_seq"]
    return context.kinds[before["group"]], context.families[before["signature"]], int(number)


def ran_ahead(context: Context, rank: int, group: int, number: int) -> bool:
    """Whether none of the rank's counterparts in sibling groups has come to this pair by number."""
    ranks = context.trace.groups[group].ranks
    if rank not in ranks:
        return False
    position = ranks.index(rank)
    reached = []
    for other in siblings(context, group):
        low, high = context.bounds.get(context.trace.groups[other].ranks[position], (0, 0))
        part = context.trace.records[low:high]
        numbers = part["p2p_seq"][part["group"] == other]
        if len(numbers):
            reached.append(int(numbers.max()))
    return bool(reached) and max(reached) < number


def unlike_siblings(context: Context, rank: int, groups: Iterable[int]) -> bool:
    """Whether the rank did something else in one of its groups than its counterparts elsewhere."""
    return bool(unlike_whom(context, rank, groups))


def unlike_whom(context: Context, rank: int, groups: Iterable[int]) -> tuple[int, ...]:
    """The counterparts elsewhere that did something else than the rank in one of its groups.

    Of each group, where more of them did so than did the same.
    """
    found: dict[int, None] = {}
    for group in groups:
        ranks = context.trace.groups[group].ranks
        if rank not in ranks:
            continue
        votes: dict[bool, list[int]] = {True: [], False: []}
        position = ranks.index(rank)
        mine = _pairs(context, rank, group)
        progress = _progress(context, rank, group)
        for other in siblings(context, group):
            counterpart = context.trace.groups[other].ranks[position]
            theirs = _pairs(context, counterpart, other)
            common = mine.keys() & theirs.keys()
            differs = any(mine[k] != theirs[k] for k in common)
            its = _progress(context, counterpart, other)
            fell_behind = _parted(progress, its)
            if fell_behind is None:
                fell_behind = _alone_at_one(context, rank, group, other)
            if fell_behind is False:
                fell_behind = _beyond(context, rank, group, progress, its)
            if common or fell_behind is not None:
                votes[differs or bool(fell_behind)].append(counterpart)
        if len(votes[True]) > len(votes[False]):
            found |= dict.fromkeys(votes[True])
    return tuple(found)


Progress = dict[tuple[int, int], tuple[int, int]]
"""Per collective of another group, in the order of issue: how far the rank had come in this one."""


def _parted(mine: Progress, theirs: Progress) -> bool | None:
    """Whether two counterparts were equally far once, and no longer at the last common place.

    None where they have too little in common, or never were: another stage, another program. So is
    one that draws away again and again: a mistake is made once.
    """
    common = [place for place in mine if place in theirs]  # in the order they were issued
    if len(common) < 2 or mine[common[0]] != theirs[common[0]]:
        return None
    ahead = [
        (mine[place][0] - theirs[place][0], mine[place][1] - theirs[place][1]) for place in common
    ]
    if sum(a != b for a, b in pairwise(ahead)) > _MOST_PARTINGS:
        return None
    return ahead[-1] != (0, 0)


def _alone_at_one(context: Context, rank: int, group: int, other: int) -> bool | None:
    """Whether the rank alone was not as far as its counterpart, at the one place both have come to.

    Where nothing older is on record, the others of its group are the measure: one of them at least
    must be as far as its own counterpart is. None where there is no such place.
    """
    mates, counterparts = (context.trace.groups[g].ranks for g in (group, other))
    apart: dict[int, bool] = {}
    for mate, counterpart in zip(mates, counterparts, strict=True):
        mine, its = _progress(context, mate, group), _progress(context, counterpart, other)
        common = [place for place in mine if place in its]
        if len(common) == 1:
            apart[mate] = mine[common[0]] != its[common[0]]
    return apart[rank] if rank in apart and False in apart.values() else None


def _beyond(context: Context, rank: int, group: int, mine: Progress, theirs: Progress) -> bool:
    """Whether the rank has issued more in ``group`` than its counterpart had when that one went on
    to the next collective of another group, where this rank is still expected."""
    last = {other: max(seq for g, seq in mine if g == other) for other, _ in mine}
    due = [theirs[g, seq + 1] for g, seq in last.items() if (g, seq + 1) in theirs]
    if not due:
        return False
    issued, _ = context.last_in_group(rank, group)
    return issued > max(collectives for collectives, _ in due)


def _progress(context: Context, rank: int, group: int) -> Progress:
    """How far in ``group`` (collectives, pairs) each collective of other groups was issued."""
    low, high = context.bounds.get(rank, (0, 0))
    records = context.trace.records[low:high]
    here = records["group"] == group
    collective = context.front.collective[low:high]
    pair = here & (records["peer"] >= 0)
    done = np.maximum.accumulate(np.where(here & collective, records["collective_seq"], 0))
    pairs = np.maximum.accumulate(np.where(pair, records["p2p_seq"], 0))
    rows = np.flatnonzero(collective & ~here)[-256:]
    return {
        (int(records["group"][r]), int(records["collective_seq"][r])): (int(done[r]), int(pairs[r]))
        for r in rows.tolist()
        if done[r] > 0 or pairs[r] > 0
    }


def _pairs(context: Context, rank: int, group: int) -> dict[int, tuple[Step, ...]]:
    """Per point-to-point number the halves issued under it: partner's place, tensors, line."""
    low, high = context.bounds.get(rank, (0, 0))
    records = context.trace.records[low:high]
    rows = np.flatnonzero((records["group"] == group) & (records["peer"] >= 0))
    ranks = context.trace.groups[group].ranks
    place = {r: i for i, r in enumerate(ranks)}
    result: dict[int, tuple[Step, ...]] = {}
    # The same stack has another number in the ring of another rank.
    numbers = np.unique(records["stack"][rows]).tolist()
    lines = {n: user_frames(context.trace.stacks[n]) if n != NONE else () for n in numbers}
    for row in rows.tolist():
        record = records[row]
        signature = context.trace.signatures[int(record["signature"])]
        seq = int(record["p2p_seq"])
        partner = place.get(int(record["peer"]), -1)
        half = (signature.op, partner, tensors_of(signature), lines[int(record["stack"])])
        result[seq] = (*result.get(seq, ()), half)
    return result


def unlike_before(context: Context, rank: int, suspects: Sequence[int]) -> bool | None:
    """Whether one of the newest steps from operation to operation never occurred before.

    Only those count that came after the last collective that all ``suspects`` have finished: until
    then they went together. None where there are too few to tell: what the operation before it is
    usually followed by must be on record and, where older records are gone, so must the operation
    that is new there.
    """
    past = past_of(context, rank, suspects)
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
            if at in past.begun:  # a thread's beginning follows nothing
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
    """The part of an evenly divided mismatch that sibling groups and the past speak against."""
    votes: Counter[int] = Counter()
    by_name: Counter[int] = Counter()
    records = context.trace.records
    ops = context.families
    signatures = context.trace.signatures
    alike = _alike(signatures, mismatch.aspect == "reduce_op")
    past = [NONE if ops[i] == _UNEVEN else same for i, same in enumerate(alike)]
    mine = [
        (ops[int(records["signature"][p.row])], alike[int(records["signature"][p.row])])
        for p in mismatch.parts
    ]
    for other in siblings(context, mismatch.group):
        if not _same_past(context, mismatch, other, past):
            continue
        rows = context.collectives_of(other)
        here = rows[records["collective_seq"][rows] == mismatch.seq]
        kinds = set(records["signature"][here].tolist())
        for index, (op, signature) in enumerate(mine):
            votes[index] += signature in {alike[k] for k in kinds}
            by_name[index] += op in {ops[k] for k in kinds}
    if mismatch.aspect == "op" and not any(votes.values()):
        votes = by_name  # sizes differ from group to group: another stage, other experts
    if votes:
        best = max(votes.values())
        winners = [i for i in range(len(mine)) if votes[i] == best]
        if best and len(winners) == 1:
            return tuple(
                sorted(r for i, p in enumerate(mismatch.parts) if i != winners[0] for r in p.ranks)
            )
    return ()


def _alike(signatures: Sequence[Signature], with_reduce_op: bool) -> list[int]:
    """For each signature the first that is the same but for the reduce op.

    That becomes known later than the rest: the newest records of a rank that was killed lack it.
    """
    if with_reduce_op:
        return list(range(len(signatures)))
    first: dict[Signature, int] = {}
    return [first.setdefault(replace(s, reduce_op=None), i) for i, s in enumerate(signatures)]


def _same_past(context: Context, mismatch: Mismatch, other: int, alike: Sequence[int]) -> bool:
    """Whether a sibling group issued the same just before: another stage runs another program.

    At a group's first operations all that came before them counts. ``alike`` numbers the
    signatures by what they are; -1 those of which nothing but the operation is compared.
    """
    mine = _before(context, mismatch.group, mismatch.seq)
    theirs = _before(context, other, mismatch.seq)
    common = mine.keys() & theirs.keys()
    enough = len(common) >= min(_PAST, mismatch.seq - 1)
    told = not common or any(alike[mine[k]] != NONE for k in common)
    return enough and told and all(alike[mine[k]] == alike[theirs[k]] for k in common)


def _before(context: Context, group: int, seq: int) -> dict[int, int]:
    """Signature per sequence number shortly before ``seq``."""
    records = context.trace.records
    rows = context.collectives_of(group)
    numbers = records["collective_seq"][rows]
    near = (numbers < seq) & (numbers >= seq - _NEAR)
    signatures = records["signature"][rows[near]].tolist()
    return dict(zip(numbers[near].tolist(), signatures, strict=True))
