"""Two processes with the same rank: a mistake in the launch script, never a restart.

Each of them writes a ring, but readers keep only one ring per rank. Unless it is reported, the
second process stays invisible, and the rank it should have had seems never to have started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from hangscope.trace.job_selection.processes import Key, RankProcess
from hangscope.trace.model import Claim, ClaimDetails, Trace

KEY: Final = "two_processes"
"""The key of such a claim in HangScope's own part of a dump."""


@dataclass(frozen=True, slots=True)
class DuplicateRank:
    """A rank that two processes (machine, process id) had at the same time."""

    rank: int
    one: Key
    two: Key

    @property
    def text(self) -> str:
        """The sentence that reports print."""
        return (
            f"two processes are rank {self.rank} at the same time: {_spell(self.one)} and "
            f"{_spell(self.two)}; give every process a RANK of its own"
        )


def find_duplicate_ranks(present: Sequence[RankProcess]) -> list[DuplicateRank]:
    """Find ranks that two processes of one run and attempt had at the same time; a pair of each.

    Worlds that met at different rendezvous each have such a rank.
    """
    of_rank: dict[int, list[RankProcess]] = defaultdict(list)
    for one in sorted(present, key=lambda one: one.created_ns):
        of_rank[one.rank].append(one)
    found: dict[int, DuplicateRank] = {}
    for rank, own in sorted(of_rank.items()):
        for one, two in combinations(own, 2):
            worlds = {one.rendezvous, two.rendezvous} - {""}
            if one.key != two.key and len(worlds) < 2 and one.overlaps(two):
                found.setdefault(rank, DuplicateRank(rank, one.key, two.key))
                break
    return list(found.values())


def duplicate_rank_claims(found: Iterable[DuplicateRank]) -> tuple[Claim, ...]:
    """The claims that pass duplicate ranks on to the diagnosis."""
    return tuple(duplicate_rank_claim(pair.rank, pair.text) for pair in found)


def duplicate_rank_claim(rank: int, text: str) -> Claim:
    """A claim that two processes have this rank, in the given words."""
    return Claim("other", accused=(rank,), text=text, details=ClaimDetails(two_processes=True))


def duplicate_ranks(trace: Trace) -> dict[int, str]:
    """The ranks that two processes claim at the same time, with a sentence about each."""
    return {r: c.text for c in trace.claims if c.details.two_processes for r in c.accused}


def _spell(process: Key) -> str:
    machine, pid = process
    host = machine.partition("/")[0]
    return f"pid {pid}" + (f" on host {host}" if host else "")
