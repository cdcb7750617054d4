"""A remark on sends and receives that may have been taken back, because nobody waited for them."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.dropped_halves import waits_for_dropped_half

_MOST_SHOWN = 3


def dropped_halves(context: Context) -> list[str]:
    """Which of those are waited for, and what their rank has to do; a few of them."""
    trace = context.trace
    found: list[str] = []
    for half in context.pending_halves:
        if len(found) == _MOST_SHOWN:
            break
        if not waits_for_dropped_half(trace, half):
            continue
        issued_at = innermost(trace.stacks[int(trace.records["stack"][half.partner_row])])
        what = "irecv from" if half.is_send else "isend to"
        found.append(
            f"rank {half.peer} never waited for its {what} rank {half.rank} at {where(issued_at)}: "
            "Gloo takes back what is unfinished when its Work is dropped; keep the Work and wait "
            "for it"
        )
    return found
