"""Hosts that did not run ahead of a collective in which every member stands.

A living host goes on enqueueing on a device until it needs a result. If most hosts have issued
more after a collective that nobody finishes, and a few nothing, those few stopped there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.processes.process_state import in_communication
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.wording.phrases import capital, rank_s, title_of
from hangscope.trace.model import NONE

_WAITED = 5
"""A rank that took this many times as long as the others before it issued more needs the result."""


def blame_stayed(context: Context, place: Place, cause: Cause) -> Cause:
    """Accuse the few hosts that have issued nothing after a place where all members stand."""
    stayed = _stayed(context, place)
    if not stayed:
        return cause
    others = [rank for rank in place.waiters if rank not in stayed]
    words = Words(
        f"{capital(rank_s(stayed))} probably failed inside {title_of(context, place)}: nothing "
        f"was issued there since, while {rank_s(others)} ran ahead",
        "a living host would have run ahead as the others did: its process, or its device, stands "
        "in that operation, and nobody can finish it",
        f"look at {rank_s(stayed)}: whether the process still runs, where it stands (py-spy dump), "
        "and its kernel log (Xid errors)",
    )
    named = cause.accusing(stayed, Confidence.LIKELY)
    return replace(named, words=words, sides=(stayed, tuple(others)))


def _stayed(context: Context, place: Place) -> tuple[int, ...]:
    signature = context.signature(place.row)
    if place.p2p or place.phase or place.targets or signature is None or is_on_host(signature):
        return ()
    rows = {rank: context.row_of(place.group, rank, place.seq) for rank in place.waiters}
    if NONE in rows.values():
        return ()
    stayed = tuple(rank for rank, row in rows.items() if row + 1 == context.bounds[rank][1])
    if len(stayed) * 2 >= len(rows) or any(_waits(context, rank, rows) for rank in stayed):
        return ()
    return stayed


def _waits(context: Context, rank: int, rows: Mapping[int, int]) -> bool:
    """Whether a rank is seen to wait like the others, or has always waited at this line."""
    process = context.processes.get(rank)
    if process is not None and in_communication(process.stack):
        return True
    ahead = [_usual_pause_ns(context, row) for r, row in rows.items() if r != rank]
    return _usual_pause_ns(context, rows[rank]) > _WAITED * float(np.median(ahead))


def _usual_pause_ns(context: Context, row: int) -> float:
    """How long the rank usually takes from this call to its next one, in ns; 0 if never seen."""
    records = context.trace.records
    low = context.bounds[int(records["rank"][row])][0]
    own = records[low : row + 1]
    alike = np.ones(len(own) - 1, bool)
    for column in ("group", "signature", "stack"):
        alike &= own[column][:-1] == own[column][-1]
    pauses = np.diff(own["created_ns"])[alike]
    return float(np.median(pauses)) if len(pauses) else 0.0
