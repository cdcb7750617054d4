"""NCCL's errors of the network: whether a rank has lost another one."""

from __future__ import annotations

import re

from hangscope.trace.model import ClaimDetails

_LOST = re.compile(
    r"remote process exited|ncclRemoteError|Connection closed by remote peer|"
    r"failed : (?:Broken pipe|Connection reset)",
    re.IGNORECASE,
)


def lost_peer(text: str) -> ClaimDetails:
    """What a message says of the connection to another rank."""
    return ClaimDetails(lost_peer=True) if _LOST.search(text) else ClaimDetails()
