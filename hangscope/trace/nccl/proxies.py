"""What NCCL's proxy threads wait for in the oldest operation that a rank has not finished.

A proxy moves data between its own device and a peer's over a network, so its newest step tells on
which side it stands. Within a node there are none.
"""

from __future__ import annotations

from collections.abc import Mapping

from hangscope.ring.device_layout import LinkState
from hangscope.ring.device_reader import DeviceRing
from hangscope.trace import operations
from hangscope.trace.facts import ProxyWait

_OWN = frozenset(
    {LinkState.NONE, LinkState.SEND_GPU, LinkState.RECEIVE_GPU, LinkState.RECEIVE_FLUSH}
)


def proxy_waits(
    ring: DeviceRing, members: Mapping[int, Mapping[int, int]]
) -> tuple[ProxyWait, ...]:
    """What the proxies of one process wait for, each thing once.

    Parameters
    ----------
    ring:
        What NCCL told in this process.
    members:
        Per hash of a communicator the global rank of each of its members, as far as known.
    """
    waiting = ring.links[ring.links["steps_ended"] < ring.links["steps"]]
    told = waiting[
        (waiting["communicator"] >= 1) & (waiting["communicator"] <= len(ring.communicators))
    ]
    if not len(told):
        return ()
    oldest = told["operation"].min()
    names = ring.operations["func"][ring.operations["id"] == oldest]
    name = names[0].decode("ascii", "replace") if len(names) else ""
    found: dict[ProxyWait, None] = {}
    for link in told[told["operation"] == oldest]:
        ranks = members.get(int(ring.communicators["hash"][link["communicator"] - 1]), {})
        peer = ranks.get(int(link["peer"]))
        if peer is not None:
            own = int(link["state"]) in _OWN
            wait = ProxyWait(operations.canonical(name), peer, bool(link["is_send"]), own)
            found[wait] = None
    return tuple(found)
