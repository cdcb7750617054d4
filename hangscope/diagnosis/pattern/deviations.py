"""Which side of an evenly divided mismatch sibling groups speak against.

Groups of the same kind (the other tensor groups, the same pipeline stage elsewhere) run the same
program: whoever issued something else under a number is the likelier culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.sibling_groups import siblings
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import NONE, Signature

_UNEVEN = "all_to_all"
"""Its sizes follow the data: those of another group prove nothing."""
_PAST = 4
"""So many earlier operations show that another group runs the same program."""

_NEAR = 24
"""Window in which they are looked for."""


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


def _before(context: Context, group: int, seq: int) -> dict[int, int]:
    """Signature per sequence number shortly before ``seq``."""
    records = context.trace.records
    rows = context.collectives_of(group)
    numbers = records["collective_seq"][rows]
    near = (numbers < seq) & (numbers >= seq - _NEAR)
    signatures = records["signature"][rows[near]].tolist()
    return dict(zip(numbers[near].tolist(), signatures, strict=True))
