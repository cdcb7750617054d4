"""Who is late more often, or longer, than equal ranks would be by chance.

The null hypothesis: in each separate wait, any of the k units that took part was as likely as any
other to come last. A unit's lost time is then a sum of independent terms with mean g/k and variance
g²(k-1)/k², g being the length of the wait (a weighted sign test). It needs no model of how long
steps take, and one test serves ranks that are always late and ranks that are rarely but very late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hangscope.lateness.arrivals import Arrivals, Ints
from hangscope.lateness.model import CallSite, Straggler
from hangscope.lateness.units import Units
from hangscope.lateness.waits import Waits, waits
from hangscope.trace.model import Trace

SIGNIFICANT = 5.0
"""Standard deviations; by chance fewer than one unit in three million exceeds it."""
LEAST_WAITS = 3.0
"""One long wait is an event, not a habit: the time must come from as many waits of equal length."""
EXPLAINED = 0.5
"""A part of a unit stands for the whole if it explains most of the time lost."""
_REGULAR = 0.8
"""Of the steps between two late passes, this share must be equal for a rhythm."""
_NS = 1e9


def stragglers(
    trace: Trace,
    arrivals: Arrivals,
    divisions: Sequence[Units],
    span_ns: int,
    least_share: float,
) -> tuple[Straggler, ...]:
    """The units that make others wait for at least `least_share` of the observed time.

    Of a unit and its parts, the smallest that explains the time is named.
    """
    highest = int(arrivals.rank.max(initial=0))
    found = []
    for division in divisions:
        unit_of = division.of_rank(highest)
        all_waits = waits(arrivals, unit_of, division.taking_part)
        scores = _scores(all_waits, arrivals, unit_of, len(division.members))
        lost = np.bincount(all_waits.unit, all_waits.length_ns, len(division.members))
        for unit in np.flatnonzero((scores >= SIGNIFICANT) & (lost >= least_share * span_ns)):
            own = all_waits.unit == unit
            length = all_waits.length_ns[own].astype(float)
            if length.sum() ** 2 / (length**2).sum() < LEAST_WAITS:
                continue
            found.append(
                _described(trace, arrivals, division, int(unit), all_waits, own, span_ns, scores)
            )
    return _smallest_that_explain(found)


def _scores(found: Waits, arrivals: Arrivals, unit_of: Ints, units: int) -> npt.NDArray[np.float64]:
    """For each unit, how far its lost time is above chance, in standard deviations."""
    length, k = found.length_ns.astype(float), found.units_in
    groups = int(arrivals.group.max(initial=0)) + 1
    group = arrivals.group[found.collective]
    expected = np.bincount(group, length / k, groups)
    variance = np.bincount(group, length**2 * (k - 1) / k**2, groups)
    number = np.repeat(arrivals.group, arrivals.sizes)
    member = np.unique(np.stack([unit_of[arrivals.rank], number], axis=1), axis=0)
    member = member[member[:, 0] >= 0]
    mean = np.bincount(member[:, 0], expected[member[:, 1]], units)
    spread = np.sqrt(np.bincount(member[:, 0], variance[member[:, 1]], units))
    lost = np.bincount(found.unit, length, units)
    return np.where(spread > 0, (lost - mean) / np.where(spread > 0, spread, 1), 0.0)


def _described(
    trace: Trace,
    arrivals: Arrivals,
    division: Units,
    unit: int,
    all_waits: Waits,
    own: npt.NDArray[np.bool_],
    span_ns: int,
    scores: npt.NDArray[np.float64],
) -> Straggler:
    length = all_waits.length_ns[own]
    groups = set(arrivals.group[all_waits.collective[own]].tolist())
    within = np.isin(arrivals.group[all_waits.collective], list(groups))
    rows = arrivals.record[arrivals.last[all_waits.collective[own]]]
    before = rows - 1
    before = np.where((rows > 0) & _same_rank(trace, rows, before), before, -1)
    return Straggler(
        division.kind,
        division.names[unit],
        division.members[unit],
        float(length.sum()) / _NS,
        float(length.sum()) / max(span_ns, 1),
        int(own.sum()),
        int(within.sum()),
        _typical(length) / _NS,
        _pattern(arrivals, all_waits.collective[own], length),
        float(scores[unit]),
        _costliest(trace, rows, length) or CallSite("", "", ()),
        _costliest(trace, before, length),
    )


def _typical(length: Ints) -> float:
    """The length of the waits in which half of the time was lost (weighted median), in ns."""
    ordered = np.sort(length)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])


def _same_rank(trace: Trace, rows: Ints, before: Ints) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = trace.records["rank"][rows] == trace.records["rank"][before]
    return same


def _costliest(trace: Trace, rows: Ints, length: Ints) -> CallSite | None:
    """The call site of these records (-1: none) that accounts for most of the time."""
    cost: Counter[tuple[int, int, int]] = Counter()
    records = trace.records
    for row, lost in zip(rows.tolist(), length.tolist(), strict=True):
        if row >= 0:
            one = records[row]
            cost[int(one["signature"]), int(one["group"]), int(one["stack"])] += lost
    return site_of(trace, *cost.most_common(1)[0][0]) if cost else None


def site_of(trace: Trace, signature: int, group: int, stack: int) -> CallSite:
    """A call site from the columns of a record."""
    frames = trace.stacks[stack] if 0 <= stack < len(trace.stacks) else ()
    return CallSite(trace.signatures[signature].op, trace.groups[group].label, tuple(frames))


def _pattern(arrivals: Arrivals, collectives: Ints, length: Ints) -> str:
    """``always``, ``every N`` or ``sometimes``, counted in meetings of the costliest group."""
    groups = arrivals.group[collectives]
    here = groups == np.argmax(np.bincount(groups, length))
    # Among waits of very different lengths, the long ones make the pattern.
    long = here & (length >= length[here].max() / 4)
    meetings = np.unique(arrivals.since_ns[arrivals.group == groups[here][0]])
    late = np.unique(np.searchsorted(meetings, arrivals.since_ns[collectives[long]]))
    if len(late) * 2 >= len(meetings):
        return "always"
    steps = Counter(np.diff(late).tolist()).most_common(1)
    if steps and len(late) > 3 and steps[0][1] >= _REGULAR * (len(late) - 1):
        return f"every {steps[0][0]}"
    return "sometimes"


def _smallest_that_explain(found: list[Straggler]) -> tuple[Straggler, ...]:
    """Units of which most is late, and the late parts of the others; the costliest first."""
    left = sorted(found, key=lambda s: (-len(s.ranks), -s.lost_s))
    chosen: list[Straggler] = []
    while left:
        whole = left[0]
        parts = [
            s
            for s in left[1:]
            if set(s.ranks) < set(whole.ranks) and s.lost_s >= EXPLAINED * whole.lost_s
        ]
        smallest = min((len(s.ranks) for s in parts), default=0)
        parts = [s for s in parts if len(s.ranks) == smallest]
        if len(parts) != 1 and len(parts) * smallest * 2 >= len(whole.ranks):
            parts = []
        chosen.extend(parts or [whole])
        ranks = {rank for s in parts or [whole] for rank in s.ranks}
        left = [s for s in left[1:] if not ranks & set(s.ranks)]
    return tuple(sorted(chosen, key=lambda s: -s.lost_s))
