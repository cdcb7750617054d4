"""A remark on sends that may have been taken back, because nobody waited for them."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.dropped_sends import waits_for_dropped_send

_MOST_SHOWN = 3


def dropped_sends(context: Context) -> list[str]:
    """Whose messages are waited for, and what the sender has to do; a few of them."""
    trace = context.trace
    found: list[str] = []
    for half in context.pending_halves:
        if len(found) == _MOST_SHOWN:
            break
        if not waits_for_dropped_send(trace, half):
            continue
        sent_at = innermost(trace.stacks[int(trace.records["stack"][half.partner_row])])
        found.append(
            f"rank {half.peer} never waited for its isend to rank {half.rank} at {where(sent_at)}: "
            "Gloo takes a message back that has not gone out when its Work is dropped; keep the "
            "Work and wait for it"
        )
    return found
