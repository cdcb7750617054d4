"""Two processes that call themselves the same rank: a launch script's mistake, never a restart.

Both write a ring of their own, and readers keep one of them. Without a word about it the other is
invisible, and the rank whose number it should have had seems never to have started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hangscope.trace.job_selection.incarnations import Start
from hangscope.trace.model import Claim, Trace

_OVERLAP_NS = 3_000_000_000
"""A process that was replaced may be heard of a little after its successor began."""
_OTHER_CLOCK_NS = 60_000_000_000
"""The same, on hosts whose clocks may differ."""
KEY: Final = "two_processes"
"""In the details of the claims that say so."""


@dataclass(frozen=True, slots=True)
class Twins:
    """One rank, and two processes (machine, process id) that claimed it at the same time."""

    rank: int
    one: tuple[str, int]
    two: tuple[str, int]

    @property
    def text(self) -> str:
        """A sentence about them."""
        return (
            f"two processes are rank {self.rank} at the same time: {_spell(self.one)} and "
            f"{_spell(self.two)}; give every process a RANK of its own"
        )


def twins(starts: Sequence[Start], alive: Iterable[tuple[str, int]] = ()) -> list[Twins]:
    """Ranks that two processes claimed at the same time.

    Parameters
    ----------
    starts:
        All rings of one run and attempt.
    alive:
        Processes that are known to live just now.
    """
    living = set(alive)
    of_rank: dict[int, list[Start]] = {}
    for start in sorted(starts, key=lambda s: s.created_ns):
        of_rank.setdefault(start.rank, []).append(start)
    found = []
    for rank, own in sorted(of_rank.items()):
        pair = next(
            (
                Twins(rank, one.process, two.process)
                for place, one in enumerate(own)
                for two in own[place + 1 :]
                if one.process != two.process
                and are_together(one, two, living)
                and not _in_two_worlds(one, two)
            ),
            None,
        )
        if pair is not None:
            found.append(pair)
    return found


def claims_of(found: Iterable[Twins]) -> tuple[Claim, ...]:
    """What the diagnosis is told."""
    return tuple(claim_of(pair.rank, pair.text) for pair in found)


def claim_of(rank: int, text: str) -> Claim:
    """The claim, in these words, that two processes are a rank."""
    return Claim("other", accused=(rank,), text=text, details={KEY: True})


def doubled(trace: Trace) -> dict[int, str]:
    """Ranks that two processes claim at the same time, and a sentence about each."""
    return {r: c.text for c in trace.claims if c.details.get(KEY) for r in c.accused}


def _in_two_worlds(one: Start, two: Start) -> bool:
    """Whether both have a world of their own, in which they may well be the same rank."""
    return bool(one.meets_at and two.meets_at) and one.meets_at != two.meets_at


def are_together(one: Start, two: Start, living: Collection[tuple[str, int]]) -> bool:
    """Whether two processes have lived at the same time; ``living`` are those that live now."""
    if one.created_ns > two.created_ns:
        one, two = two, one
    if one.process in living and two.process in living:
        return True
    margin_ns = _OVERLAP_NS if one.process[0] == two.process[0] else _OTHER_CLOCK_NS
    return one.last_sign_ns - two.created_ns > margin_ns


def _spell(process: tuple[str, int]) -> str:
    machine, pid = process
    host = machine.partition("/")[0]
    return f"pid {pid}" + (f" on host {host}" if host else "")
