"""Sends and receives that are waited for, although the partner did not wait for its half.

Gloo takes an unfinished send or receive back when nobody refers to its Work any more. The recorder
then stops watching it (`hangscope.recording.lost_works`): an ``isend`` or ``irecv`` that is not
observed.
"""

from __future__ import annotations

from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.records.pairing import Half
from hangscope.trace.model import NONE, Flag, Trace

_WAITED = int(Flag.BLOCKING | Flag.WAITED)
_DROPPED = int(Flag.ASYNC | Flag.UNOBSERVED)


def waits_for_dropped_half(trace: Trace, half: Half) -> bool:
    """Whether an unfinished half is waited for, and its other half was dropped."""
    if half.partner_row == NONE:
        return False
    flags = trace.records["flags"]
    own, other = int(flags[half.row]), int(flags[half.partner_row])
    return (
        own & _WAITED != 0
        and not own & int(Flag.COALESCED_MEMBER)
        and other & (_DROPPED | _WAITED) == _DROPPED
        and is_on_host(trace.signatures[int(trace.records["signature"][half.row])])
    )
