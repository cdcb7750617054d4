"""Finds runs that are one job although its launchers gave it different names.

A job without an id is named by its rendezvous address. A node that was given another port, or the
same host under another name, then appears to be a run of its own, and its ranks are missing from
the others' run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """The rings of one run, or of its newest incarnation."""

    ranks: frozenset[int]
    world_sizes: frozenset[int]
    """What its ranks state; a single value unless the launch is wrong."""
    began_ns: int
    last_seen_ns: int


def runs_of_same_job(runs: Mapping[str, Run], main: str) -> list[str]:
    """The names of the runs that belong to the same job as ``main``, ``main`` included.

    Runs of one job overlap in time, expect the same world size, have no rank in common, and
    together have no more ranks than that size. Concurrent jobs each have a rank 0.
    """
    found = [main]
    ranks = set(runs[main].ranks)
    for name, run in sorted(runs.items(), key=lambda item: (-len(item[1].ranks), item[0])):
        if name != main and _is_same_job(run, runs[main], ranks):
            found.append(name)
            ranks |= run.ranks
    return found


def _is_same_job(run: Run, main: Run, ranks: Collection[int]) -> bool:
    return (
        run.world_sizes == main.world_sizes
        and len(run.world_sizes) == 1
        and run.ranks.isdisjoint(ranks)
        and max(run.ranks) < min(run.world_sizes)
        and run.began_ns <= main.last_seen_ns
        and main.began_ns <= run.last_seen_ns
    )


def run_of(rings: Sequence[tuple[int, int, int, int]]) -> Run:
    """A run of rings given as (rank, world size, creation time, time last seen)."""
    ranks, worlds, began, signs = zip(*rings, strict=True)
    return Run(frozenset(ranks), frozenset(worlds), min(began), max(signs))
