"""When each member of each collective arrived, on one clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Flag, State, Trace, flagged

Ints = npt.NDArray[np.int64]

_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
"""Operations in which not every member waits for every other one."""
_HOST_BACKENDS = frozenset({"gloo", "mpi", "fake", ""})
_LATEST_NS = 2**62


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row per member of each comparable collective, sorted by collective, then by own time."""

    record: Ints
    """Row of `Trace.records`."""
    rank: Ints
    arrived_ns: Ints
    waited_ns: Ints
    """How long the member was held up by later ones; 0 if it went on without waiting."""
    own_ns: Ints
    """When the member would have arrived had it not been held up elsewhere since the group's
    previous collective: who waits for a late rank is late in the next group, but not at fault."""
    starts: Ints
    """First row of each collective."""
    group: Ints
    """Index of each collective's group."""
    last_ns: Ints
    """When the last member of each collective arrived."""
    since_ns: Ints
    """When the group had last waited for all its members before; 0 if it never had."""
    host_times_only: bool

    @property
    def sizes(self) -> Ints:
        """Members of each collective."""
        return np.diff(self.starts, append=len(self.rank))

    @property
    def last(self) -> Ints:
        """Each collective's last row: who came last by its own fault."""
        return self.starts + self.sizes - 1


def arrivals(trace: Trace, newest: int | None = None) -> Arrivals:
    """The arrivals of all collectives of which every member is recorded and that have finished.

    Parameters
    ----------
    trace:
        A job, running or ended.
    newest:
        Use only that many of each rank's newest records.
    """
    rows = _comparable(trace, newest)
    arrived, host_only = _arrival_times(trace, rows)
    records = trace.records[rows]
    order = np.lexsort((records["collective_seq"], records["group"]))
    rows, records, arrived = rows[order], records[order], arrived[order]
    group, seq = records["group"].astype(np.int64), records["collective_seq"]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    starts = np.flatnonzero(fresh)
    sizes = np.diff(starts, append=len(rows))
    members = np.array([len(g.ranks) or g.size or 0 for g in trace.groups] or [0])
    whole = (sizes == members[group[starts]]) & (sizes > 1)
    keep, group, sizes = np.repeat(whole, sizes), group[starts][whole], sizes[whole]
    rows, arrived = rows[keep], arrived[keep]
    if not len(rows):
        return Arrivals(rows, rows, rows, rows, rows, rows, rows, rows, rows, host_only)
    starts = np.cumsum(sizes) - sizes
    last_ns = np.maximum.reduceat(arrived, starts)
    rank = trace.records["rank"][rows].astype(np.int64)
    went_on = _went_on(trace, rows, arrived, np.repeat(last_ns, sizes))
    waited = np.where(went_on, 0, np.repeat(last_ns, sizes) - arrived)
    met = ~np.logical_or.reduceat(went_on, starts)
    met |= ~_any_of_group(group, met) & _ends_round(group, trace.records["signature"][rows[starts]])
    since_ns = _last_meeting(group, last_ns, met)
    own = arrived - _held_up(rank, arrived, waited, np.repeat(since_ns, sizes))
    order = np.lexsort((own, np.repeat(np.arange(len(sizes)), sizes)))
    return Arrivals(
        rows[order], rank[order], arrived[order], waited[order], own[order],
        starts, group, last_ns, since_ns, host_only,
    )  # fmt: skip


def _went_on(trace: Trace, rows: Ints, arrived: Ints, last_ns: Ints) -> npt.NDArray[np.bool_]:
    """Members that did not wait there: asynchronous, or busy again before the last one came."""
    records = trace.records
    after = np.minimum(rows + 1, len(records) - 1)
    follows = (records["rank"][after] == records["rank"][rows]) & (after > rows)
    moved = arrived - records["created_ns"][rows]  # by the correction of the host's clock
    found: npt.NDArray[np.bool_] = follows & (records["created_ns"][after] + moved < last_ns)
    return found | flagged(records["flags"][rows], Flag.ASYNC)


def _any_of_group(group: Ints, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether the value holds for any collective of each collective's group."""
    found: npt.NDArray[np.bool_] = np.bincount(group, values)[group] > 0
    return found


def _ends_round(group: Ints, signature: Ints) -> npt.NDArray[np.bool_]:
    """Collectives after which their group begins with the same signatures again.

    Where all operations are asynchronous, the waiting is not on record; gradients are waited for
    once a step, and a step repeats the signatures of the one before.
    """
    order = np.lexsort((np.arange(len(group)), signature, group))
    fresh = np.ones(len(group), bool)
    fresh[1:] = (np.diff(group[order]) != 0) | (np.diff(signature[order]) != 0)
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(group)), 0))
    times = np.empty(len(group), np.int64)
    times[order] = np.arange(len(group)) - first
    number = np.maximum.accumulate(group * (len(group) + 1) + times)  # groups are in order
    return np.append(np.diff(number) > 0, False)


def _last_meeting(group: Ints, last_ns: Ints, met: npt.NDArray[np.bool_]) -> Ints:
    """For each collective, when its group last waited for all its members before; 0: never."""
    number = np.arange(len(group))
    newest = np.append(-1, np.maximum.accumulate(np.where(met, number, -1))[:-1])
    known = (newest >= 0) & (group[newest] == group)
    return np.where(known, last_ns[newest], 0)


def _held_up(rank: Ints, arrived: Ints, waited: Ints, since_ns: Ints) -> Ints:
    """For each arrival, how long its rank had waited in other groups since `since_ns`."""
    base, span = int(arrived.min()), int(arrived.max() - arrived.min()) + 1
    moved = rank * (2 * span)  # one sorted column for all ranks
    order = np.argsort(arrived - base + moved, kind="stable")
    times = (arrived - base + moved)[order]
    total = np.append(0, np.cumsum(waited[order]))
    begin = np.searchsorted(times, np.maximum(since_ns - base, 0) + moved)
    end = np.searchsorted(times, arrived - base + moved)
    held: Ints = total[end] - total[np.minimum(begin, end)]
    return held


def _comparable(trace: Trace, newest: int | None) -> Ints:
    """Rows of collectives that all members leave together, with a time and a number."""
    records = trace.records
    if not len(records):
        return np.zeros(0, np.int64)
    together = np.array([s.op not in _ONE_SIDED for s in trace.signatures] or [False], bool)
    loose = Flag.P2P | Flag.COALESCED_MEMBER | Flag.SYNTHETIC | Flag.LEAVING | Flag.FAILED
    good = ~flagged(records["flags"], loose) & together[records["signature"]]
    good &= (records["collective_seq"] > 0) & (records["state"] == int(State.COMPLETED))
    good &= (records["created_ns"] > 0) & (records["created_ns"] < _LATEST_NS)
    if newest is not None:
        counts = np.bincount(records["rank"].clip(0))
        ends = np.cumsum(counts)
        good &= ends[records["rank"].clip(0)] - np.arange(len(records)) <= newest
    return np.flatnonzero(good)


def _arrival_times(trace: Trace, rows: Ints) -> tuple[Ints, bool]:
    """When each row's rank joined, and whether that is only when its host asked for it.

    A device joins when its kernel starts; its host has run ahead by then.
    """
    records = trace.records[rows]
    on_host = np.array([g.backend.split(":")[-1] in _HOST_BACKENDS for g in trace.groups] or [True])
    device = ~on_host[records["group"]]
    started = (records["started_ns"] > 0) & (records["started_ns"] < _LATEST_NS)
    use_device = bool(device.any()) and bool(started[device].all())
    arrived = np.where(use_device & device, records["started_ns"], records["created_ns"])
    return arrived + _corrections(trace, rows), bool(device.any()) and not use_device


def _corrections(trace: Trace, rows: Ints) -> Ints:
    """What to add to each row's times so that all hosts are on one clock, in ns.

    Members leave a collective together, so hosts whose ends differ by the same amount again and
    again differ by their clocks.
    """
    hosts = {name: n for n, name in enumerate(sorted({f.host or "" for f in trace.ranks.values()}))}
    zero = np.zeros(len(rows), np.int64)
    if len(hosts) < 2 or not len(rows):
        return zero
    records = trace.records[rows]
    host_of = np.zeros(int(max(max(trace.ranks), records["rank"].max())) + 1, np.int64)
    for rank, facts in trace.ranks.items():
        host_of[rank] = hosts[facts.host or ""]
    host = host_of[records["rank"]]
    ended = records["completed_ns"]
    usable = (ended > 0) & (ended < _LATEST_NS)
    order = np.lexsort((ended, host, records["collective_seq"], records["group"]))
    order = order[usable[order]]
    key = np.stack([records["group"][order], records["collective_seq"][order]], axis=1)
    shifts = _host_shifts(key, host[order], ended[order], len(hosts))
    correction: Ints = shifts[host]
    return correction


def _host_shifts(key: npt.NDArray[np.int64], host: Ints, ended: Ints, hosts: int) -> Ints:
    """Per host, what to add to its clock. Rows are sorted by collective, host and end.

    Each host is compared, by its first member to end, with the collective's first host; the medians
    are followed from host to host.
    """
    fresh = np.ones(len(host), bool)
    fresh[1:] = (key[1:] != key[:-1]).any(axis=1)
    first_of_host = fresh.copy()
    first_of_host[1:] |= host[1:] != host[:-1]
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(host)), 0))
    one = np.flatnonzero(first_of_host & ~fresh)
    pair = host[first[one]] * hosts + host[one]
    ahead = ended[one] - ended[first[one]]
    links: dict[int, dict[int, int]] = {}
    for number in np.unique(pair):
        median = int(np.median(ahead[pair == number]))
        a, b = divmod(int(number), hosts)
        links.setdefault(a, {})[b] = median
        links.setdefault(b, {})[a] = -median
    shifts = np.zeros(hosts, np.int64)
    reached = set()
    for start in range(hosts):
        pending = [start] if start not in reached else []
        reached.add(start)
        for known in pending:
            for other, median in links.get(known, {}).items():
                if other not in reached:
                    reached.add(other)
                    shifts[other] = shifts[known] - median
                    pending.append(other)
    return shifts
