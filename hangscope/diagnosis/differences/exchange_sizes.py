"""Exchanges with interdependent sizes: all-to-alls and matched pairs that cannot finish.

The sizes of an all-to-all legally differ between ranks, so only the whole can be checked:
everything sent must be received, in total and, where split lists are recorded, pair by pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.p2p_places import place_of
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.agreement import family, input_numel, output_numel
from hangscope.diagnosis.records.frontier import Ints
from hangscope.diagnosis.records.kinds import records_where
from hangscope.diagnosis.records.pairing import tags_count
from hangscope.trace.model import NONE, Signature, State

_MAX_BROKEN = 4096
_NOT_TOLD = -1


@dataclass(frozen=True, slots=True)
class SizeConflict:
    """``ranks``: those at fault, empty if unknown; ``aspect``: numel, dtype or tag."""

    ranks: tuple[int, ...]
    aspect: str
    decided: bool
    text: str


def size_conflict(context: Context, place: Place) -> SizeConflict | None:
    """Why a place that everybody has reached cannot finish, if its sizes contradict each other."""
    if place.row == NONE:
        return None
    if place.p2p:
        return _pair(context, place)
    signature = context.signature(place.row)
    if signature is not None and family(signature.op) == "all_to_all":
        return _all_to_all(context, place)
    return None


def broken_exchanges(context: Context) -> list[Place]:
    """All-to-alls and pairs that some ranks finished and others did not; nobody waits in them.

    A peer with contradicting sizes fails in it, while those it agreed with go on.
    """
    return [*_unfinished_all_to_alls(context), *_unfinished_pairs(context)]


def _unfinished_pairs(context: Context) -> list[Place]:
    """Halves whose partner finished its own half of a different size.

    A half in a batch ends with the batch, whatever its own entry says.
    """
    front, states = context.front, context.trace.records["state"]
    halves = [half for half in context.pending_halves[:_MAX_BROKEN] if half.partner_row != NONE]
    return [
        place_of(context.trace, half)
        for half in halves
        if states[half.partner_row] == int(State.COMPLETED)
        or (front.batch_row[half.partner_row] != NONE and not front.unfinished[half.partner_row])
    ]


def _unfinished_all_to_alls(context: Context) -> list[Place]:
    trace, records = context.trace, context.trace.records
    rows = np.flatnonzero(
        records_where(trace, lambda s: family(s.op) == "all_to_all" and s.input_splits is not None)
        & (records["state"] != int(State.COMPLETED))
        & context.front.collective
    )
    waiting = {(p.group, p.seq) for p in context.waits.places if p.waiters}
    unfinished: dict[tuple[int, int], list[int]] = {}
    for row in rows[:_MAX_BROKEN].tolist():
        key = (int(records["group"][row]), int(records["collective_seq"][row]))
        if key not in waiting and key[0] >= 0:
            unfinished.setdefault(key, []).append(row)
    return [
        Place(
            group,
            seq,
            tuple(records["rank"][here].tolist()),
            row=here[0],
            members=trace.groups[group].ranks,
            began_ns=int(records["created_ns"][here[0]]),
        )
        for (group, seq), here in unfinished.items()
    ]


def _pair(context: Context, place: Place) -> SizeConflict | None:
    """What the two halves of a pair disagree about: the dtype, the size or the tag."""
    half = place.half
    if half is None or half.partner_row == NONE or half.peer == half.rank:
        return None
    rows = {half.rank: half.row, half.peer: half.partner_row}
    for aspect, of in _ASPECTS.items():
        (_, mine), (_, theirs) = values = [(rank, of(context, row)) for rank, row in rows.items()]
        if mine == theirs or None in (mine, theirs):
            continue
        if aspect == "tag" and not tags_count(context.trace, half.row, half.partner_row):
            continue
        (source, sent), (target, wanted) = values if half.is_send else reversed(values)
        what = "size" if aspect == "numel" else aspect
        text = (
            f"Rank {source} sends to rank {target} with {what} {sent}, and rank {target} receives "
            f"with {what} {wanted}"
        )
        odd = [rank for rank, row in rows.items() if _is_new(context, rank, row, of)]
        ranks = tuple(odd if len(odd) == 1 else sorted(rows))
        return SizeConflict(ranks, aspect, len(odd) == 1, text)
    return None


def _payload(context: Context, row: int) -> int | None:
    signature = context.signature(row)
    if signature is None:
        return None
    count = input_numel(signature)
    return output_numel(signature) if count is None else count


def _dtype(context: Context, row: int) -> str | None:
    signature = context.signature(row)
    dtypes = signature and (signature.input_dtypes or signature.output_dtypes)
    return dtypes[0] if dtypes else None


def _tag(context: Context, row: int) -> int | None:
    return int(context.trace.records["root"][row])


_ASPECTS = {"dtype": _dtype, "numel": _payload, "tag": _tag}
_Of = Callable[[Context, int], int | str | None]


def _is_new(context: Context, rank: int, row: int, of: _Of) -> bool:
    """Whether the rank sends its peer, or receives from it, something it never did before.

    That only counts if their exchange had settled: more than half of the past without anything new.
    Data-dependent sizes, and tags that count, are new all the time.
    """
    records = context.trace.records
    group, peer, op = (int(records[name][row]) for name in ("group", "peer", "signature"))
    rows = context.rows_in(rank, group=group, peer=peer)
    rows = rows[(rows < row) & (records["signature"][rows] >= 0)]
    alike = zip(rows.tolist(), records["signature"][rows].tolist(), strict=True)
    past = [of(context, r) for r, it in alike if context.families[it] == context.families[op]]
    first = {value: i for i, value in reversed([*enumerate(past)])}
    return bool(past) and of(context, row) not in first and max(first.values()) * 2 + 1 < len(past)


def _all_to_all(context: Context, place: Place) -> SizeConflict | None:
    records = context.trace.records
    rows = context.rows_at(place.group, place.seq)
    group = context.trace.groups[place.group]
    members = group.ranks
    row_of = {int(records["rank"][r]): int(r) for r in rows.tolist()}
    # Of a group that no source lists, a missing member would be missing in the total.
    if not members or not set(row_of) <= set(members) or not group.listed:
        return None
    signatures = {
        r: context.trace.signatures[int(records["signature"][row])] for r, row in row_of.items()
    }
    wrong = _split_conflicts(members, signatures)
    if wrong is not None or len(row_of) < len(members):
        return wrong
    sent = [input_numel(s) for s in signatures.values()]
    received = [output_numel(s) for s in signatures.values()]
    if None in sent or None in received:
        return None
    total_in, total_out = sum(filter(None, sent)), sum(filter(None, received))
    if total_in == total_out:
        return None
    text = f"{total_in} elements are sent and {total_out} expected"
    either = tuple(sorted(members)) if len(members) == 2 else ()
    return SizeConflict(either, "numel", False, text)


def _parts(
    splits: tuple[int, ...] | None, sizes: tuple[tuple[int, ...], ...] | None, count: int
) -> tuple[int, ...] | None:
    """How many rows go to, or come from, each of ``count`` members; equal parts without a list."""
    if splits:
        return splits if len(splits) == count else None
    if splits is None or sizes is None or len(sizes) != 1 or not sizes[0] or sizes[0][0] % count:
        return None
    return (sizes[0][0] // count,) * count


def _alone_unequal(out: Ints, into: Ints) -> int | None:
    """The only member with a size that no pair agrees on, if all others agree on one size.

    ``out[i, j]``: what member i sends to j; ``into[i, j]``: what j expects from i.
    """
    agreed = np.unique(out[(out == into) & (out != _NOT_TOLD)])
    if len(agreed) != 1:
        return None
    wrong_out = (out != agreed[0]) & (out != _NOT_TOLD)
    wrong_into = (into != agreed[0]) & (into != _NOT_TOLD)
    odd = np.flatnonzero(wrong_out.any(axis=1) | wrong_into.any(axis=0))
    return int(odd[0]) if len(odd) == 1 else None


def _split_conflicts(
    members: tuple[int, ...], signatures: dict[int, Signature]
) -> SizeConflict | None:
    """Compare what i sends to j with what j expects from i, where both split lists are known."""
    size = len(members)
    out = np.full((size, size), _NOT_TOLD, np.int64)
    into = np.full((size, size), _NOT_TOLD, np.int64)
    for place, rank in enumerate(members):
        told = signatures.get(rank)
        if told is None:
            continue
        sent = _parts(told.input_splits, told.input_sizes, size)
        expected = _parts(told.output_splits, told.output_sizes, size)
        if sent is None or expected is None:
            return None
        out[place], into[:, place] = sent, expected
    bad = np.argwhere((out != into) & (out != _NOT_TOLD) & (into != _NOT_TOLD))
    if not len(bad):
        return None
    i, j = (int(x) for x in bad[0])
    text = (
        f"rank {members[i]} sends {int(out[i, j])} to rank {members[j]}, "
        f"which expects {int(into[i, j])}"
    )
    votes = Counter(int(x) for pair in bad for x in set(pair.tolist()))
    top = max(votes.values())
    worst = [index for index, count in votes.items() if count == top]
    if len(bad) > 1 and len(worst) == 1:
        return SizeConflict((members[worst[0]],), "numel", True, text)
    odd = _alone_unequal(out, into)
    if odd is not None:
        return SizeConflict((members[odd],), "numel", True, text)
    both = sorted({members[int(x)] for pair in bad for x in pair})
    return SizeConflict(tuple(both), "numel", False, text)
