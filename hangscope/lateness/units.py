"""Which sets of ranks may be late together: single ranks, hosts, positions in the mesh."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.lateness.arrivals import Arrivals, Ints
from hangscope.trace.model import Flag, Group, Trace, flagged


@dataclass(frozen=True, slots=True)
class Units:
    """One way to divide the ranks."""

    kind: str
    """``rank``, ``host`` or ``position``."""
    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    taking_part: npt.NDArray[np.bool_]
    """Collectives in which a unit that is last is late, and not only later in a pipeline."""

    def of_rank(self, highest: int) -> Ints:
        """The unit of each rank up to `highest`; -1 for none."""
        found = np.full(highest + 1, -1, np.int64)
        for number, ranks in enumerate(self.members):
            found[[rank for rank in ranks if rank <= highest]] = number
        return found


def units(trace: Trace, arrivals: Arrivals) -> list[Units]:
    """All ways to divide the ranks of a job, the finest first."""
    ranks = sorted({int(rank) for rank in np.unique(arrivals.rank)})
    pipelined = _pipelined_groups(trace)
    beside = ~pipelined[arrivals.group] if len(trace.groups) else np.zeros(0, bool)
    found = [Units("rank", ("",) * len(ranks), tuple((r,) for r in ranks), beside)]
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        facts = trace.ranks.get(rank)
        hosts[(facts.host if facts is not None else None) or ""].append(rank)
    hosts.pop("", None)
    if len(hosts) > 1 and max(map(len, hosts.values())) > 1:
        members = tuple(tuple(hosts[name]) for name in sorted(hosts))
        found.append(Units("host", tuple(sorted(hosts)), members, beside))
    everywhere = np.ones(len(arrivals.starts), bool)
    for name, groups in _dimensions(trace).items():
        members = tuple(zip(*(g.ranks for g in groups), strict=True))
        names = tuple(f"{name} {index}" for index in range(len(members)))
        found.append(Units("position", names, members, everywhere))
    return found


def _dimensions(trace: Trace) -> dict[str, list[Group]]:
    """The mesh's dimensions: described alike, equally large, at least two, and disjoint."""
    families: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in trace.groups:
        if group.desc and len(group.ranks) > 1:
            families[(group.label, len(group.ranks))].append(group)
    return {
        label: groups
        for (label, size), groups in sorted(families.items())
        if len(groups) > 1
        and len({rank for group in groups for rank in group.ranks}) == size * len(groups)
    }


def _pipelined_groups(trace: Trace) -> npt.NDArray[np.bool_]:
    """Groups with two members that send to each other.

    Stages of a pipeline end a step one after the other by design.
    """
    found = np.zeros(max(len(trace.groups), 1), bool)
    records = trace.records
    paired = flagged(records["flags"], Flag.P2P) & (records["peer"] >= 0)
    pairs = np.unique(np.stack([records["rank"][paired], records["peer"][paired]], axis=1), axis=0)
    groups_of: dict[int, set[int]] = defaultdict(set)
    for number, group in enumerate(trace.groups):
        for rank in group.ranks:
            groups_of[rank].add(number)
    for one, other in pairs.tolist():
        found[list(groups_of[one] & groups_of[other])] = True
    return found
