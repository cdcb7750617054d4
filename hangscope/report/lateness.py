"""Lateness as a table, as two lines, and as plain dictionaries for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.processes.stacks import innermost
from hangscope.lateness.model import (
    CallSite,
    Lateness,
    RankLateness,
    SiteCost,
    Straggler,
    costliest,
)
from hangscope.report.escape import plain
from hangscope.report.formatting import place
from hangscope.report.json import frames
from hangscope.trace.rank_text import named

SCHEMA = "hangscope/lateness/1"
HOST_TIMES = (
    "times are those at which the hosts asked for the operations: when the devices began is not "
    "on record, so time that a host ran ahead looks like lateness of the others"
)
_BAR_COLUMNS = 24
_WORTH_A_WORD = 0.1
"""The share of the time from which on a few waits for one rank are mentioned."""


def site_words(site: CallSite) -> str:
    """``all_reduce in default, train.py:40 in step``."""
    frame = innermost(site.stack)
    where = f", {place(frame)}" if frame is not None else ""
    return f"{plain(site.op, 60)} in {plain(site.group, 60)}{where}"


def who(straggler: Straggler) -> str:
    """``rank 3``, ``host node1 (ranks 4–7)`` or ``tp 3 (ranks 3 7)``."""
    ranks = named(straggler.ranks, 40)
    if straggler.kind == "rank":
        return ranks
    name = plain(straggler.name, 60)
    return f"{'host ' if straggler.kind == 'host' else ''}{name} ({ranks})"


def habit(straggler: Straggler) -> str:
    """How often it is late: ``in 197 of 205 waits``, ``every 10th time``."""
    if straggler.pattern.startswith("every "):
        return f"every {_ordinal(int(straggler.pattern.removeprefix('every ')))} time"
    return f"in {straggler.times:,} of {straggler.of:,} waits"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 // 10 != 1 else 0, "th")
    return f"{number}{ending}"


def sentence(straggler: Straggler) -> str:
    """What one straggler costs, and where its late work lies."""
    words = (
        f"{who(straggler)} makes everybody else wait: {straggler.share:.1%} of the time, "
        f"{duration(straggler.typical_s)} at a time, {habit(straggler)}, at "
        f"{site_words(straggler.site)}"
    )
    if straggler.before is not None and straggler.before != straggler.site:
        words += f"; its work since {site_words(straggler.before)} takes longer"
    return words[0].upper() + words[1:]


def _rare(lateness: Lateness) -> str:
    """Who cost most in a few long waits, which show no habit and may be most of the time."""
    ranks = costliest(lateness.ranks)
    first_s = ranks[0].made_wait_s if ranks else 0.0
    rest_s = sum(rank.made_wait_s for rank in ranks[1:])
    if first_s <= rest_s or first_s < _WORTH_A_WORD * lateness.span_s:
        return ""
    return (
        f", but the others waited {duration(first_s)} for rank {ranks[0].rank}, in too few waits "
        "to tell a habit from chance"
    )


def remarks(lateness: Lateness) -> tuple[str, ...]:
    """At most two lines on a job that moves; none if too little is on record to say anything."""
    if not lateness.collectives or lateness.span_s <= 0:
        return ()
    total = (
        f"waiting for late ranks took {lateness.waited_share:.1%} of an average rank's time in "
        f"{lateness.collectives:,} collectives"
    )
    if not lateness.stragglers:
        return (f"{total}; nobody is late more often than chance{_rare(lateness)}",)
    more = len(lateness.stragglers) - 1
    rest = f" ({more} more: hangscope slow)" if more else ""
    return (sentence(lateness.stragglers[0]) + rest, total)


def render(lateness: Lateness, *, top: int = 10) -> RenderableType:
    """The whole analysis for a terminal: stragglers, ranks with bars, call sites.

    Parameters
    ----------
    lateness:
        What to show.
    top:
        How many ranks and call sites to list.
    """
    if not lateness.collectives:
        return Text(
            "No collective of which all members' arrivals are recorded: give the rings or dumps of "
            "all ranks."
        )
    return Group(*_parts(lateness, top))


def _parts(lateness: Lateness, top: int) -> Iterator[RenderableType]:
    yield Text(
        f"{lateness.collectives:,} collectives of {len(lateness.ranks):,} ranks in "
        f"{duration(lateness.span_s)}; an average rank waited {lateness.waited_share:.1%} of it."
    )
    yield Text()
    if not lateness.stragglers:
        yield Text(f"Nobody is late more often, or longer, than chance explains{_rare(lateness)}.")
    for straggler in lateness.stragglers[:top]:
        yield Text(sentence(straggler) + ".", style="bold")
    yield Text()
    yield _rank_table(lateness.ranks, top)
    yield Text()
    yield _site_table(lateness.sites[:top])
    if lateness.host_times_only:
        yield Text()
        yield Text(f"Note: {HOST_TIMES}.")


def _rank_table(ranks: tuple[RankLateness, ...], top: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "made wait", "", "last", "waited", "host"):
        table.add_column(name, justify="left" if name in ("", "host") else "right")
    shown = costliest(ranks)[:top]
    most = max((r.made_wait_s for r in shown), default=0.0) or 1.0
    for one in shown:
        table.add_row(
            str(one.rank),
            duration(one.made_wait_s),
            Bar(most, 0, one.made_wait_s, width=_BAR_COLUMNS),
            f"{one.times_last:,} of {one.collectives:,}",
            duration(one.waited_s),
            plain(one.host, 40),
        )
    if len(ranks) > len(shown):
        table.caption = f"{len(ranks) - len(shown):,} more ranks; --top N shows more"
    return table


def _site_table(sites: tuple[SiteCost, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("lost", justify="right")
    table.add_column("times", justify="right")
    table.add_column("where the last member came from")
    for cost in sites:
        table.add_row(duration(cost.lost_s), f"{cost.collectives:,}", site_words(cost.site))
    return table


def to_dict(lateness: Lateness) -> dict[str, Any]:
    """The analysis as plain dictionaries, lists and numbers; seconds, shares from 0 to 1."""
    return {
        "schema": SCHEMA,
        "span_s": lateness.span_s,
        "collectives": lateness.collectives,
        "waited_share": lateness.waited_share,
        "host_times_only": lateness.host_times_only,
        "stragglers": [_straggler(s) for s in lateness.stragglers],
        "ranks": [asdict(rank) for rank in lateness.ranks],
        "sites": [
            {"collectives": s.collectives, "lost_s": s.lost_s, **_site(s.site)}
            for s in lateness.sites
        ],
    }


def _straggler(straggler: Straggler) -> dict[str, Any]:
    before = straggler.before
    return {
        "kind": straggler.kind,
        "name": straggler.name,
        "ranks": list(straggler.ranks),
        "lost_s": straggler.lost_s,
        "share": straggler.share,
        "times": straggler.times,
        "of": straggler.of,
        "typical_s": straggler.typical_s,
        "pattern": straggler.pattern,
        "score": straggler.score,
        "site": _site(straggler.site),
        "before": None if before is None else _site(before),
    }


def _site(site: CallSite) -> dict[str, Any]:
    return {"op": site.op, "group": site.group, "stack": frames(site.stack)}
