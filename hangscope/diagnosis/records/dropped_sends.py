"""Receives that wait for a message whose sender did not wait.

Gloo takes a send back that has not gone out when nobody refers to its Work any more. The recorder
then stops watching it (`hangscope.recording.lost_works`): an ``isend`` that is not observed.
"""

from __future__ import annotations

from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, Flag, Trace

_WAITED = int(Flag.BLOCKING | Flag.WAITED)
_DROPPED = int(Flag.ASYNC | Flag.UNOBSERVED)


def waits_for_dropped_send(trace: Trace, half: Half) -> bool:
    """Whether an unfinished half is such a receive."""
    if half.is_send or half.partner_row == NONE:
        return False
    flags = trace.records["flags"]
    received, sent = int(flags[half.row]), int(flags[half.partner_row])
    return (
        received & _WAITED != 0
        and not received & int(Flag.COALESCED_MEMBER)
        and sent & (_DROPPED | _WAITED) == _DROPPED
        and is_on_host(trace.signatures[int(trace.records["signature"][half.row])])
    )
