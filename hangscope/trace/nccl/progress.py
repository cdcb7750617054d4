"""How far the device got in each recorded operation, according to NCCL.

Two things tell. The device counts what it begins and ends on each channel, and proxies tell what
they have moved for an operation. Proxies stop at the first error of a process, so that something
did not happen is known only if they were alive later.

The counts prove less than they seem to. After a graph's replay they are those of earlier operations
(`_is_stale`). A send or receive counts as ended once the first of a channel's threads are through,
while others still wait; it is over when the next operation of its communicator begins. Both were
seen with NCCL 2.28. What proxies have moved is right in all cases, but only a network has proxies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.ring.device_layout import OperationFlag
from hangscope.ring.device_reader import DeviceRing
from hangscope.trace.model import NONE, Flag, Records, State, flagged

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_CLOCK_SLACK_NS = 200_000
"""How far the two clocks may drift apart within what a device ring holds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One value per operation of a device ring; times are the host's, 0 if it has not happened."""

    begun_ns: Ints
    ended_ns: Ints
    open: Bools
    """Whether it is known not to have ended."""
    uncertain: Bools
    """Whether it may have begun although ``begun_ns`` is 0."""


def progress_of(ring: DeviceRing) -> Progress:
    """How far each operation got."""
    operations = ring.operations
    stale, alone = _is_stale(operations), _is_to_itself(ring)
    counted = ~stale & ~alone
    begun_ns = np.where(counted, operations["begun_ns"], 0).astype(np.int64)
    moving, moved_ns = _moved_by_proxies(ring)
    lived_ns = int(ring.communicators["proxy_ns"].max(initial=0))
    told = counted & (operations["enqueued_ns"] < lived_ns)
    pair = flagged(operations["flags"], OperationFlag.P2P)
    ended_ns = np.where(pair, _next_begun(operations, begun_ns), _counted_end(operations))
    ended_ns = np.where(counted, ended_ns, 0)
    ended_ns = np.where((ended_ns == 0) & (stale | pair), moved_ns, ended_ns)
    ended_ns[moving] = 0
    # What a device counts as running does; only its word that a pair has ended is no proof.
    unended = (ended_ns == 0) & (begun_ns > 0) & (~pair | (operations["ended_ns"] == 0))
    unended |= (ended_ns == 0) & told & (begun_ns == 0)
    return Progress(begun_ns, ended_ns.astype(np.int64), moving | unended, stale | alone)


def _counted_end(operations: Records) -> Ints:
    """When the device had ended an operation on all its channels, by its own count."""
    # Where NCCL does not say how many channels an operation uses, it has ended when all have that
    # have begun.
    unsaid = (operations["channels"] == 0) & (operations["channels_begun"] > 0)
    unsaid &= operations["channels_ended"] >= operations["channels_begun"]
    ended: Ints = np.where(unsaid, operations["begun_ns"], operations["ended_ns"])
    return ended


def _next_begun(operations: Records, begun_ns: Ints) -> Ints:
    """When a later operation of the same communicator began, which runs them one after the other;
    0 if none has."""
    found = np.zeros(len(operations), np.int64)
    for communicator in np.unique(operations["communicator"]):
        own = np.flatnonzero(operations["communicator"] == communicator)
        later = np.maximum.accumulate(begun_ns[own][::-1])[::-1]
        # Those enqueued at the same moment run together.
        place = np.searchsorted(
            operations["enqueued_ns"][own],
            operations["enqueued_ns"][own] + _CLOCK_SLACK_NS,
            "right",
        )
        inside = place < len(own)
        found[own[inside]] = later[place[inside]]
    return found


def _moved_by_proxies(ring: DeviceRing) -> tuple[Bools, Ints]:
    """Whether proxies have something left to move for an operation; else when they were through
    with it, 0 if no proxy works for it."""
    ids, links = ring.operations["id"], ring.links
    moving, moved_ns = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
    if len(ids):
        place = np.minimum(np.searchsorted(ids, links["operation"]), len(ids) - 1)
        here = ids[place] == links["operation"]
        links, place = links[here], place[here]
        np.logical_or.at(moving, place, links["steps_ended"] < links["steps"])
        np.maximum.at(moved_ns, place, links["changed_ns"])
    return moving, np.where(moving, 0, moved_ns)


def _is_stale(operations: Records) -> Bools:
    """Operations of which NCCL tells what an earlier one did.

    Replays advance the device's counters but not the host's. After them NCCL takes an operation on
    the same communicator and channel for one that has long run, and tells that one's times: before
    the operation was enqueued. Seen with NCCL 2.28.
    """
    host, device = operations["begun_ns"], operations["device_begun_ns"].astype(np.int64)
    replayed = flagged(operations["flags"], OperationFlag.REPLAYED)
    timed = (host > 0) & (device > 0) & ~replayed
    # Proxies tell within microseconds at best: that is how far the clocks are apart.
    apart_ns = min(int((host - device)[timed].min(initial=0)), 0)
    early = device + apart_ns < operations["enqueued_ns"] - _CLOCK_SLACK_NS
    stale: Bools = replayed | (timed & early)
    return stale


def _is_to_itself(ring: DeviceRing) -> Bools:
    """Sends and receives between a rank and itself: a copy, of which no proxy tells."""
    operations = ring.operations
    own = ring.communicators["rank"][operations["communicator"] - 1]
    pair = flagged(operations["flags"], OperationFlag.P2P)
    alone: Bools = pair & (operations["root_or_peer"] == own)
    return alone


def with_progress(records: Records, rows: Ints, ring: DeviceRing) -> None:
    """Enter into a rank's records, in place, what NCCL told of them.

    Parameters
    ----------
    records:
        Of one rank.
    rows:
        Per operation of the device ring the index of its record, or -1.
    """
    progress = progress_of(ring)
    matched = np.flatnonzero((rows >= 0) & ~_is_to_itself(ring))
    if not len(matched):
        return
    places, part_of = np.unique(rows[matched], return_inverse=True)
    far = np.iinfo(np.int64).max
    begun = np.full(len(places), far)
    begins, ends = progress.begun_ns[matched], progress.ended_ns[matched]
    np.minimum.at(begun, part_of, np.where(begins > 0, begins, far))
    begun[begun == far] = 0
    last = np.zeros(len(places), np.int64)
    np.maximum.at(last, part_of, ends)
    ended, open_, uncertain = np.ones(len(places), bool), *np.zeros((2, len(places)), bool)
    np.logical_and.at(ended, part_of, ends > 0)
    np.logical_or.at(open_, part_of, progress.open[matched])
    np.logical_or.at(uncertain, part_of, progress.uncertain[matched])
    found = Progress(begun, np.where(ended, last, 0), open_, uncertain)
    enter_progress(records, places, found)
    _enter_members(records, places)


def enter_progress(records: Records, places: Ints, found: Progress) -> None:
    """Enter how far operations got into their records, in place; ``found`` has a value for each."""
    rows = records[places]
    begun, ended = found.begun_ns > 0, found.ended_ns > 0
    rows["started_ns"] = np.where(begun, found.begun_ns, rows["started_ns"])
    rows["completed_ns"] = np.where(ended, found.ended_ns, rows["completed_ns"])
    # Nobody may be accused of not having begun what may have begun.
    may_run = begun | found.uncertain
    state = np.where(ended, State.COMPLETED, np.where(may_run, State.STARTED, rows["state"]))
    rows["state"] = np.maximum(state, rows["state"])
    known = ended | found.open
    rows["flags"] &= ~np.where(known, int(Flag.UNOBSERVED), 0).astype(np.uint16)
    records[places] = rows


def _enter_members(records: Records, places: Ints) -> None:
    """Give the members of a batch the batch's own state."""
    batches = places[flagged(records["flags"][places], Flag.COALESCED_BATCH)]
    members = np.flatnonzero(flagged(records["flags"], Flag.COALESCED_MEMBER))
    for batch in batches.tolist():
        own = members[(members < batch) & (records["group"][members] == records["group"][batch])]
        own = own[records["p2p_seq"][own] == records["p2p_seq"][batch]] if len(own) else own
        if records["flags"][batch] & int(Flag.UNOBSERVED):
            continue
        mark_observed(records, own)
        for name in ("state", "started_ns", "completed_ns"):
            records[name][own] = records[name][batch]


def mark_observed(records: Records, where: Ints | Bools) -> None:
    """Note, in place, that it is known how far the operations of these rows are."""
    records["flags"][where] &= np.uint16(0xFFFF & ~int(Flag.UNOBSERVED))


def majority(groups: Ints) -> int:
    """The group that most matched records are in; -1 without any."""
    if not len(groups):
        return NONE
    values, counts = np.unique(groups, return_counts=True)
    return int(values[counts.argmax()])
