"""The metrics, by the naming rules of Prometheus: one table for all exporters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hangscope.monitor.metrics.standing import Standing

_MOST_NAMED = 64
"""Ranks or hosts in one label."""


class Family(NamedTuple):
    """A metric: its name without the suffix of counters, and a value for each set of labels."""

    name: str
    is_counter: bool
    help: str
    values: list[tuple[dict[str, str], float]]


def families(standing: Standing) -> Iterator[Family]:
    """All metrics of a moment."""

    def of_ranks(name: str, is_counter: bool, text: str, field: str) -> Family:
        rows = [
            ({"run": standing.run, "host": standing.host, "rank": str(rank)}, getattr(one, field))
            for rank, one in standing.ranks.items()
        ]
        return Family(f"hangscope_{name}", is_counter, text, rows)

    yield of_ranks("collectives_issued", True, "Collectives that the rank has issued.", "issued")
    yield of_ranks("collectives_finished", True, "Collectives that have finished.", "finished")
    yield of_ranks(
        "waiting_seconds", False, "How long the rank's longest waiting collective has waited.",
        "waiting_s",
    )  # fmt: skip
    late = [
        ({"run": standing.run, "host": standing.host, "rank": str(rank)}, seconds)
        for rank, seconds in standing.late_s.items()
    ]
    text = "How long the others have waited for the rank, in its newest collectives."
    yield Family("hangscope_late_seconds", False, text, late)
    labels = {
        "run": standing.run, "host": standing.host, "verdict": standing.verdict,
        "confidence": standing.confidence,
        "culprits": ",".join(map(str, standing.culprits[:_MOST_NAMED])),
        "culprit_hosts": ",".join(standing.hosts[:_MOST_NAMED]),
    }  # fmt: skip
    is_hung = float(standing.verdict != "healthy")
    text = "1 while a verdict stands that this monitor has reported, 0 while all is well."
    yield Family("hangscope_verdict", False, text, [(labels, is_hung)])
