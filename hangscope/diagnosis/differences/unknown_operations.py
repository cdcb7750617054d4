"""Operations with unknown matching rules, compared by habit.

A library's own operation, or one declared with ``hangscope.record``, may let its members pass
anything. If all passed the same in every earlier call, it presumably requires that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.agreement import input_numel, output_numel
from hangscope.diagnosis.records.kinds import records_where
from hangscope.diagnosis.records.mismatch import Mismatch, Part
from hangscope.trace.model import Signature

_HABIT = 3
"""This many earlier calls in which all members passed the same make a habit."""

Payload = tuple[int | None, str | None]
"""Element count and dtype."""


def unlike_before(context: Context, place: Place) -> Mismatch | None:
    """The sides of a call whose members differ after passing the same in every call before."""
    payloads = _Payloads(context, place)
    before = [call for seq, call in payloads.calls.items() if seq < place.seq and len(call) > 1]
    here = payloads.calls.get(place.seq, {})
    if len(before) < _HABIT or any(len(payloads.sides(call)) > 1 for call in before):
        return None
    sides = payloads.sides(here)
    given = [(count is None, dtype is None) for count, dtype in sides]
    if len(sides) < 2 or len(set(given)) > 1 or all(given[0]):
        return None
    aspect = "dtype" if len({dtype for _, dtype in sides}) > 1 else "numel"
    parts = (Part(tuple(sorted(ranks)), here[ranks[0]]) for ranks in sides.values())
    ordered = sorted(parts, key=lambda part: (-len(part.ranks), part.ranks))
    return Mismatch(place.group, place.seq, aspect, tuple(ordered))


def differs_here(context: Context, place: Place) -> bool:
    """Whether members pass different sizes or dtypes at a place."""
    signatures = map(context.signature, context.rows_at(place.group, place.seq).tolist())
    payloads = {_payload(signature) for signature in signatures if signature is not None}
    return len([count for count, _ in payloads if count]) > 1


class _Payloads:
    """What the members passed in each call of a place's operation in its group."""

    def __init__(self, context: Context, place: Place) -> None:
        trace, records = context.trace, context.trace.records
        op = trace.signatures[int(records["signature"][place.row])].op
        rows = np.flatnonzero(
            records_where(trace, lambda s: s.op == op)
            & context.front.collective
            & (records["group"] == place.group)
            & (records["collective_seq"] <= place.seq)
        )
        self._records = records
        self._of_signature = [_payload(signature) for signature in trace.signatures]
        self.calls: dict[int, dict[int, int]] = defaultdict(dict)
        """Per sequence number each member's row."""
        for row, seq in zip(rows.tolist(), records["collective_seq"][rows].tolist(), strict=True):
            self.calls[seq].setdefault(int(records["rank"][row]), row)

    def sides(self, call: Mapping[int, int]) -> dict[Payload, list[int]]:
        """The members of a call by what they passed."""
        found: dict[Payload, list[int]] = defaultdict(list)
        for rank, row in call.items():
            found[self._of_signature[int(self._records["signature"][row])]].append(rank)
        return found


def _payload(signature: Signature) -> Payload:
    count = input_numel(signature)
    dtypes = signature.input_dtypes or signature.output_dtypes
    return (output_numel(signature) if count is None else count), dtypes[0] if dtypes else None
