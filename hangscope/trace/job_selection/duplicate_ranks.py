"""Two processes with the same rank: a mistake in the launch script, never a restart.

Each of them writes a ring, but readers keep only one ring per rank. Unless it is reported, the
second process stays invisible, and the rank it should have had seems never to have started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hangscope.trace.job_selection.incarnations import Lifetime
from hangscope.trace.model import Claim, ClaimDetails, Trace

_OVERLAP_NS = 3_000_000_000
"""A replaced process may show signs of life for this long after its successor began."""
_OTHER_CLOCK_NS = 60_000_000_000
"""The same for two hosts, whose clocks may differ."""
KEY: Final = "two_processes"
"""The key of such a claim in HangScope's own part of a dump."""


@dataclass(frozen=True, slots=True)
class DuplicateRank:
    """A rank that two processes (machine, process id) had at the same time."""

    rank: int
    one: tuple[str, int]
    two: tuple[str, int]

    @property
    def text(self) -> str:
        """The sentence that reports print."""
        return (
            f"two processes are rank {self.rank} at the same time: {_spell(self.one)} and "
            f"{_spell(self.two)}; give every process a RANK of its own"
        )


def find_duplicate_ranks(
    starts: Sequence[Lifetime], alive: Iterable[tuple[str, int]] = ()
) -> list[DuplicateRank]:
    """Find ranks that two processes had at the same time.

    Parameters
    ----------
    starts:
        The lifetimes of all rings of one run and attempt.
    alive:
        Processes known to be running now.
    """
    living = set(alive)
    of_rank: dict[int, list[Lifetime]] = {}
    for start in sorted(starts, key=lambda s: s.created_ns):
        of_rank.setdefault(start.rank, []).append(start)
    found = []
    for rank, own in sorted(of_rank.items()):
        pair = next(
            (
                DuplicateRank(rank, one.process, two.process)
                for place, one in enumerate(own)
                for two in own[place + 1 :]
                if one.process != two.process
                and overlap_in_time(one, two, living)
                and not _in_two_worlds(one, two)
            ),
            None,
        )
        if pair is not None:
            found.append(pair)
    return found


def duplicate_rank_claims(found: Iterable[DuplicateRank]) -> tuple[Claim, ...]:
    """The claims that pass duplicate ranks on to the diagnosis."""
    return tuple(duplicate_rank_claim(pair.rank, pair.text) for pair in found)


def duplicate_rank_claim(rank: int, text: str) -> Claim:
    """A claim that two processes have this rank, in the given words."""
    return Claim("other", accused=(rank,), text=text, details=ClaimDetails(two_processes=True))


def duplicate_ranks(trace: Trace) -> dict[int, str]:
    """The ranks that two processes claim at the same time, with a sentence about each."""
    return {r: c.text for c in trace.claims if c.details.two_processes for r in c.accused}


def _in_two_worlds(one: Lifetime, two: Lifetime) -> bool:
    """Whether the two met at different rendezvous: each world has such a rank."""
    return bool(one.rendezvous and two.rendezvous) and one.rendezvous != two.rendezvous


def overlap_in_time(one: Lifetime, two: Lifetime, living: Collection[tuple[str, int]]) -> bool:
    """Whether two processes ran at the same time; ``living`` are those running now."""
    if one.created_ns > two.created_ns:
        one, two = two, one
    if one.process in living and two.process in living:
        return True
    margin_ns = _OVERLAP_NS if one.process[0] == two.process[0] else _OTHER_CLOCK_NS
    return one.last_seen_ns - two.created_ns > margin_ns


def _spell(process: tuple[str, int]) -> str:
    machine, pid = process
    host = machine.partition("/")[0]
    return f"pid {pid}" + (f" on host {host}" if host else "")
