"""The analysis as a whole: `Trace` in, `Lateness` out."""

from __future__ import annotations

import numpy as np

from hangscope.lateness.arrivals import Arrivals, arrivals
from hangscope.lateness.model import Lateness, RankLateness, SiteCost
from hangscope.lateness.stragglers import site_of, stragglers
from hangscope.lateness.units import units
from hangscope.lateness.waits import waited_ns, waits
from hangscope.trace.model import Trace

LEAST_SHARE = 0.01
"""Who costs less of the observed time is not worth anybody's morning."""
_NS = 1e9


def lateness(
    trace: Trace, *, least_share: float = LEAST_SHARE, newest: int | None = None
) -> Lateness:
    """How much of a job's time was lost to late arrivals in collectives, and to whose.

    Parameters
    ----------
    trace:
        A job, running or ended; only collectives that finished and of which all members are
        recorded count.
    least_share:
        Name stragglers that cost at least this share of the observed time, 0 to 1.
    newest:
        Use only that many of each rank's newest records; by default all.
    """
    return lateness_of(trace, arrivals(trace, newest), least_share=least_share)


def lateness_of(trace: Trace, found: Arrivals, *, least_share: float = LEAST_SHARE) -> Lateness:
    """As `lateness`, of arrivals that are at hand (for a heat map, say)."""
    if not len(found.starts):
        return Lateness(0.0, 0, (), (), (), found.host_times_only)
    span_ns = int(found.arrived_ns.max() - found.arrived_ns.min())
    divisions = units(trace, found)
    return Lateness(
        span_ns / _NS,
        len(found.starts),
        rank_lateness(trace, found),
        stragglers(trace, found, divisions, span_ns, least_share),
        _sites(trace, found),
        found.host_times_only,
    )


def rank_lateness(trace: Trace, found: Arrivals) -> tuple[RankLateness, ...]:
    """Each rank's share of the waiting, by rank; of at least one collective."""
    highest = int(found.rank.max())
    each = np.arange(highest + 1)
    alone = waits(found, each, np.ones(len(found.starts), bool))
    made = np.bincount(alone.unit, alone.length_ns, highest + 1)
    took_part = np.bincount(found.rank, minlength=highest + 1)
    last = np.bincount(found.rank[found.last], minlength=highest + 1)
    return tuple(
        RankLateness(
            rank,
            (trace.ranks[rank].host if rank in trace.ranks else None) or "",
            int(took_part[rank]),
            int(last[rank]),
            waited / _NS,
            float(made[rank]) / _NS,
        )
        for rank, waited in waited_ns(found).items()
    )


def _sites(trace: Trace, found: Arrivals) -> tuple[SiteCost, ...]:
    """Time lost per call site of the member that came last."""
    rows = trace.records[found.record[found.last]]
    lost = found.own_ns[found.last] - found.own_ns[found.last - 1]
    labels = {group.label: number for number, group in reversed([*enumerate(trace.groups)])}
    alike = np.array([labels[group.label] for group in trace.groups])  # groups of one dimension
    keys = np.stack([rows["signature"], alike[rows["group"]], rows["stack"]], axis=1)
    sites, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    times, cost = np.bincount(which), np.bincount(which, lost)
    order = np.argsort(-cost)
    return tuple(
        SiteCost(site_of(trace, *map(int, sites[i])), int(times[i]), float(cost[i]) / _NS)
        for i in order.tolist()
    )
