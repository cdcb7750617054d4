"""Runs that are one job, although its launchers gave it several names.

Where nobody names a job, the address at which its ranks meet does. Who was given another port, or
the same host by another name, then seems to be in a run of its own, and is missing in the others'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """The rings of one run, or of its newest life."""

    ranks: frozenset[int]
    world_sizes: frozenset[int]
    """What its ranks say; one number in a launch without mistakes."""
    began_ns: int
    last_sign_ns: int


def parts_of_job(runs: Mapping[str, Run], main: str) -> list[str]:
    """The names of runs that are parts of the same job as ``main``, which is among them.

    Parts of a job run at the same time, expect as many ranks, have none in common, and are together
    no more than that. Jobs beside each other all have a rank 0.
    """
    found = [main]
    ranks = set(runs[main].ranks)
    for name, run in sorted(runs.items(), key=lambda item: (-len(item[1].ranks), item[0])):
        if name != main and _goes_with(run, runs[main], ranks):
            found.append(name)
            ranks |= run.ranks
    return found


def _goes_with(run: Run, main: Run, ranks: Collection[int]) -> bool:
    return (
        run.world_sizes == main.world_sizes
        and len(run.world_sizes) == 1
        and run.ranks.isdisjoint(ranks)
        and max(run.ranks) < min(run.world_sizes)
        and run.began_ns <= main.last_sign_ns
        and main.began_ns <= run.last_sign_ns
    )


def run_of(rings: Sequence[tuple[int, int, int, int]]) -> Run:
    """A run of these rings: rank, world size, when it was made, and when it was last heard of."""
    ranks, worlds, began, signs = zip(*rings, strict=True)
    return Run(frozenset(ranks), frozenset(worlds), min(began), max(signs))
