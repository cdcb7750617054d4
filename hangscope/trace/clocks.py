"""Corrects hosts whose clocks disagree, using collectives that they finished together.

A collective that no member can finish before all have issued it completes on all members at almost
the same moment. If the times of two hosts repeatedly differ by the same amount, one clock is wrong,
and their times cannot be compared. A single collective is enough if one host says it was over long
before another issued it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import NONE, Flag, Fragment, RankFacts, Records, State, Trace
from hangscope.trace.rows import RECORD_TIMES

SKEW_S = 2.0
"""A smaller skew is ignored: noticing a completion may take a second."""
_NEWEST = 64
"""How many of each rank's newest collectives are compared."""
_ENOUGH = 3
_CERTAIN_S = 60.0
"""A rank that has counted one operation more or less may have issued its own a little later."""
_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
MEMBER_TIMES = ("enqueued_ns", "completed_ns")


def align_clocks(trace: Trace) -> Trace:
    """The trace with the times of all hosts on one clock, and a warning for each host shifted.

    The reference is the host that runs the analysis if it has ranks, else the lowest rank's host.
    """
    hosts: dict[str, list[int]] = {}
    for rank, facts in sorted(trace.ranks.items()):
        if facts.host:
            hosts.setdefault(facts.host, []).append(rank)
    if len(hosts) < 2 or not len(trace.records):
        return trace
    here = [name for name, ranks in hosts.items() if trace.ranks[ranks[0]].alive is not None]
    reference = here[0] if len(here) == 1 else next(iter(hosts))
    offsets = _offsets(trace, hosts)
    shifts: dict[str, int] = {reference: 0}
    reached = [reference]
    for known in reached:  # a host may share groups only with hosts other than the reference
        for name, ahead_ns in offsets.get(known, {}).items():
            if name not in shifts:
                shifts[name] = shifts[known] - ahead_ns
                reached.append(name)
    wrong = {n: s for n, s in shifts.items() if abs(s) > SKEW_S * 1e9}
    return _shifted(trace, hosts, wrong, reference) if wrong else trace


def _offsets(trace: Trace, hosts: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
    """For each comparable pair of hosts, how far (ns) the second's clock is ahead.

    Per collective, all hosts are compared with the first that has it, in time linear in the
    records.
    """
    names = list(hosts)
    process_of = np.full(max(trace.ranks) + 1, -1)
    for number, ranks in enumerate(hosts.values()):
        process_of[ranks] = number
    rows = _ends(trace)
    rows = rows[rows["rank"] < len(process_of)]
    host = process_of[rows["rank"]]
    rows, host = rows[host >= 0], host[host >= 0]
    order = np.lexsort((host, rows["collective_seq"], rows["group"]))
    rows, host = rows[order], host[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows["group"][1:] != rows["group"][:-1]) | (
        rows["collective_seq"][1:] != rows["collective_seq"][:-1]
    )
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(rows)), 0))
    ahead = rows["completed_ns"] - rows["completed_ns"][first]
    if not (np.abs(ahead) > SKEW_S * 1e9).any():
        return {}  # the usual case: the clocks agree
    last_begin = np.maximum(rows["created_ns"], rows["created_ns"][first])
    first_end = np.minimum(rows["completed_ns"], rows["completed_ns"][first])
    impossible = last_begin - first_end > _CERTAIN_S * 1e9
    other = np.flatnonzero(host != host[first])
    pair = host[first][other] * len(names) + host[other]
    order = np.argsort(pair, kind="stable")
    pair, ahead, impossible = pair[order], ahead[other][order], impossible[other][order]
    cuts = np.flatnonzero(np.diff(pair)) + 1
    found: dict[str, dict[str, int]] = {}
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(pair)], strict=True):
        middle = _constant(ahead[begin:end], proven=bool(impossible[begin:end].all()))
        if middle is not None:
            one, two = (names[i] for i in divmod(int(pair[begin]), len(names)))
            found.setdefault(one, {})[two] = middle
            found.setdefault(two, {})[one] = -middle
    return found


def _ends(trace: Trace) -> Records:
    """The newest collectives of each rank that complete on all members at once."""
    records = trace.records
    starts = np.flatnonzero(np.diff(records["rank"], prepend=NONE - 1))
    place = np.arange(len(records))
    counts = np.diff(starts, append=len(records))
    records = records[np.repeat(starts + counts, counts) - place <= _NEWEST]
    together = np.array([s.op not in _ONE_SIDED for s in trace.signatures] or [False], bool)
    loose = int(Flag.P2P | Flag.COALESCED_MEMBER | Flag.UNOBSERVED | Flag.SYNTHETIC)
    good = (records["state"] == int(State.COMPLETED)) & (records["completed_ns"] > 0)
    good &= ((records["flags"] & loose) == 0) & together[records["signature"]]
    good &= records["collective_seq"] > 0  # without a number they cannot be matched
    found: Records = records[good]
    return found


def _constant(ahead_ns: npt.NDArray[np.int64], *, proven: bool) -> int | None:
    """The offset between two clocks, if it is the same every time; else it is not a clock error.

    ``proven``: there is no other explanation, however few times were compared.
    """
    if len(ahead_ns) < _ENOUGH and not proven:
        return None
    middle = int(np.median(ahead_ns))
    spread = float(np.median(np.abs(ahead_ns - middle)))
    return middle if spread < SKEW_S * 1e9 / 2 else None


def _shifted(
    trace: Trace, hosts: Mapping[str, list[int]], wrong: Mapping[str, int], reference: str
) -> Trace:
    shift_of = {rank: shift for name, shift in wrong.items() for rank in hosts[name]}
    ranks = {
        rank: shift_facts(facts, shift_of[rank]) if rank in shift_of else facts
        for rank, facts in trace.ranks.items()
    }
    words = [
        f"the clock of host {name} is {abs(shift) / 1e9:.0f} s "
        f"{'behind' if shift > 0 else 'ahead of'} that of host {reference}; its times are shown "
        "corrected"
        for name, shift in sorted(wrong.items())
    ]
    return replace(
        trace,
        records=_shifted_columns(trace.records, RECORD_TIMES, shift_of),
        members=_shifted_columns(trace.members, MEMBER_TIMES, shift_of),
        ranks=ranks,
        warnings=(*trace.warnings, *words),
    )


def _shifted_columns(
    table: npt.NDArray[np.void], columns: tuple[str, ...], shift_of: Mapping[int, int]
) -> npt.NDArray[np.void]:
    if not len(table):
        return table
    by_rank = np.zeros(int(table["rank"].max()) + 1, np.int64)
    for rank, shift in shift_of.items():
        if rank < len(by_rank):
            by_rank[rank] = shift
    return shift_times(table, columns, by_rank[table["rank"]])


def shift_times(
    table: npt.NDArray[np.void], columns: tuple[str, ...], shift_ns: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.void]:
    """A table with its times shifted, by one amount or one per row; 0 stays unknown."""
    table = table.copy()
    for column in columns:
        table[column] += np.where(table[column] > 0, shift_ns, 0)
    return table


def shift_fragment(fragment: Fragment, shift: int) -> Fragment:
    """A fragment with all its times shifted (ns)."""
    return replace(
        fragment,
        facts=shift_facts(fragment.facts, shift),
        records=shift_times(fragment.records, RECORD_TIMES, shift),
        members=shift_times(fragment.members, MEMBER_TIMES, shift),
        claims=tuple(replace(c, at_ns=_later(c.at_ns, shift)) for c in fragment.claims),
    )


def shift_facts(facts: RankFacts, shift: int) -> RankFacts:
    """Facts of a process with all its times shifted (ns)."""
    exit_, exception, handled = facts.exit, facts.exception, facts.handled
    return replace(
        facts,
        heartbeat_ns=_later(facts.heartbeat_ns, shift),
        observed_ns=_later(facts.observed_ns, shift),
        phases=tuple(replace(p, since_ns=_later(p.since_ns, shift)) for p in facts.phases),
        exit=exit_ and replace(exit_, at_ns=_later(exit_.at_ns, shift)),
        exception=exception and replace(exception, at_ns=_later(exception.at_ns, shift)),
        handled=handled and replace(handled, at_ns=_later(handled.at_ns, shift)),
        threads=tuple(replace(t, sampled_ns=_later(t.sampled_ns, shift)) for t in facts.threads),
    )


def _later(at_ns: int, shift: int) -> int:
    """A time shifted (ns); 0, an unknown time, stays unknown."""
    return at_ns and at_ns + shift
