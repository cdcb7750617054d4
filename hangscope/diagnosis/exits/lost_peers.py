"""Which ranks lost a peer over the network, and which may have gone before all of them.

NCCL notices when the process at the other end of a connection is gone. The watchdog then ends the
rank that has noticed it; that rank's other peers lose it in turn, and so on. In the end every rank
is gone, and every rank but the first has said that it lost another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.observability import cut_short, is_followed, snapshots
from hangscope.diagnosis.processes.process_state import End
from hangscope.trace.model import Claim, Trace
from hangscope.trace.units import SECOND_NS

_LATER_NS = 2 * SECOND_NS
"""Logs have whole seconds, and launchers look now and then."""


@dataclass(frozen=True, slots=True)
class LostPeers:
    """Who lost a peer, and who may have been the first to go."""

    lost_ns: dict[int, int]
    """The ranks that lost a peer, and when they noticed (ns, 0 if unknown)."""
    outlived: frozenset[int]
    """Ranks that lived on when others had lost theirs."""
    first: tuple[int, ...]
    """The rest: ranks that lost nobody, as far as known. Of several with dated ends, the first."""

    @property
    def began_ns(self) -> int:
        """When the first rank noticed; 0 if unknown."""
        return min((at_ns for at_ns in self.lost_ns.values() if at_ns), default=0)


def lost_peers(context: Context) -> LostPeers | None:
    """Who lost a peer, and who may have gone before; None if nobody did, or only later than
    somebody had waited until a timeout."""
    lost = lost_peer_ns(context.trace)
    if not lost:
        return None
    outlived = _outlived(context) - lost.keys()
    silent = sorted(context.known_ranks - lost.keys() - outlived)
    ended = {r: context.processes[r].end_ns for r in silent if r in context.processes}
    if len(ended) == len(silent) > 1 and all(ended.values()):
        first_ns = min(ended.values())
        silent = [r for r in silent if ended[r] - first_ns < _LATER_NS]
    return LostPeers(lost, frozenset(outlived), tuple(silent))


def lost_peer_ns(trace: Trace) -> dict[int, int]:
    """The ranks that lost a peer before anybody had waited until a timeout, and when (ns, 0 if
    unknown); none if ranks recorded themselves, which shows more.

    A job that had stood still until a timeout breaks as its watchdogs end one rank after another.
    Where nothing shows that the job had ever moved, its ranks may never have been connected.
    """
    if is_followed(trace):
        return {}
    if not (len(trace.records) or len(trace.members)):
        return {}
    lost = _first_ns(claim for claim in trace.claims if claim.details.lost_peer)
    timeouts = [claim for claim in trace.claims if claim.kind == "timeout"]
    if not lost or not timeouts:
        return lost
    # What a rank raises has no time, but its watchdog notices the same.
    gave_up = _first_ns(claim for claim in trace.claims if claim.details.gave_up)
    waited = {claim.reporter for claim in timeouts}
    lost = {r: at or (gave_up.get(r, 0) if r not in waited else 0) for r, at in lost.items()}
    first_ns = min((at_ns for at_ns in lost.values() if at_ns), default=0)
    return lost if all(not c.at_ns or first_ns < c.at_ns for c in timeouts) and first_ns else {}


def _first_ns(claims: Iterable[Claim]) -> dict[int, int]:
    """Who made these statements, and when first (ns, 0 if unknown)."""
    found: dict[int, int] = {}
    for claim in claims:
        if claim.reporter is not None:
            known = found.get(claim.reporter, 0)
            first = min(known, claim.at_ns) if known and claim.at_ns else known or claim.at_ns
            found[claim.reporter] = first
    return found


def _outlived(context: Context) -> set[int]:
    """The ranks that wrote a dump, heard that others wrote one, gave up waiting, or were stopped by
    their launcher."""
    trace = context.trace
    said = {claim.reporter for claim in trace.claims if claim.kind in ("dump_signal", "timeout")}
    stopped = {r for r, h in context.processes.items() if h.end is End.TORN_DOWN}
    return {rank for rank in said | snapshots(trace) | stopped if rank is not None}


def aborted_first(trace: Trace) -> int | None:
    """The only rank that aborted itself and had neither lost a peer nor waited until a timeout, if
    others had lost one. In a part of a log, nothing shows that it had not."""
    lost = lost_peer_ns(trace) if not cut_short(trace) else {}
    gave_up = {claim.reporter for claim in trace.claims if claim.kind == "timeout"}
    aborted = [r for r, f in trace.ranks.items() if f.exit is not None and f.exit.aborted]
    own = [rank for rank in aborted if rank not in lost and rank not in gave_up]
    return own[0] if lost and len(own) == 1 else None
