"""Which rank a process is of which one file speaks by its id, where another file tells the ranks.

Stacks that somebody took by process id, and what the kernel says of a process that it killed.
Process ids begin anew on every machine and in every container: one is believed only where the
machine is told as well, or where the ids of all ranks are known and only one of them has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangscope.trace.model import NONE, Claim, ExitFacts, Fragment, RankFacts
from hangscope.trace.signals import SIGKILL


def with_owners(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments; what is told of a process is its rank's where that is known."""
    known = _known(fragments)
    found: list[Fragment] = []
    for fragment in fragments:
        if fragment.facts.rank != NONE or not known.ranks:
            found.append(fragment)
            continue
        pid, host, path = fragment.facts.pid, fragment.facts.host or "", fragment.source.path
        rank = known.rank_of(pid, host, path) if pid is not None else None
        if rank is not None:
            fragment = replace(fragment, facts=replace(fragment.facts, rank=rank))
        claims = [(c, _owner(c, known, path)) for c in fragment.claims]
        told = tuple(_of(c, rank) if rank is not None else c for c, rank in claims)
        found.append(replace(fragment, claims=told))
        killed = {rank: c for c, rank in claims if rank is not None and c.kind == "oom"}
        found += [_killed(rank, claim, fragment) for rank, claim in killed.items()]
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The processes of the ranks, as far as any file tells them."""

    ranks: dict[int, dict[int, str]]
    """By process id the ranks that have it, and the host of each."""
    hosts: frozenset[str]
    """Where they run, as far as that is told."""
    all_told: bool
    """Whether no rank of the job is without one."""

    def rank_of(self, pid: int, host: str, path: str) -> int | None:
        """The rank of a process; None where it may be another machine's."""
        alike = self.ranks.get(pid, {})
        hosts = {host} if host else self._named_in(path)
        if hosts:
            alike = {r: h for r, h in alike.items() if not h or any(_same(h, o) for o in hosts)}
        if len(alike) != 1:
            return None
        ((rank, its_host),) = alike.items()
        return rank if self.all_told or (hosts and its_host) else None

    def _named_in(self, path: str) -> set[str]:
        """The hosts of which a path holds the name."""
        return {
            h
            for h in self.hosts
            if (name := _short(h)) in path
            and re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", path)
        }


def _known(fragments: Sequence[Fragment]) -> _Known:
    ranks: dict[int, dict[int, str]] = defaultdict(dict)
    seen: set[int] = set()
    with_pid: set[int] = set()
    world = 0
    for facts in (f.facts for f in fragments):
        world = max(world, facts.world_size or 0)
        if facts.rank == NONE:
            continue
        seen.add(facts.rank)
        if facts.pid is not None:
            with_pid.add(facts.rank)
            ranks[facts.pid][facts.rank] = ranks[facts.pid].get(facts.rank) or facts.host or ""
    # Counted, not listed: a damaged file may claim a world of any size.
    everybody = seen == with_pid and sum(rank < world for rank in seen) == world
    hosts = frozenset(host for alike in ranks.values() for host in alike.values() if host)
    return _Known(dict(ranks), hosts, bool(with_pid) and everybody)


def _owner(claim: Claim, known: _Known, path: str) -> int | None:
    pid = claim.details.get("pid")
    if pid is None or claim.accused:
        return None
    return known.rank_of(pid, claim.details.get("host", ""), path)


def _of(claim: Claim, rank: int) -> Claim:
    return replace(claim, accused=(rank,), certain=True)


def _killed(rank: int, claim: Claim, fragment: Fragment) -> Fragment:
    """What a rank's end is of which the kernel says that it killed the process for its memory."""
    end = ExitFacts("oom", signal=SIGKILL, at_ns=claim.at_ns, text=claim.text[:200])
    return Fragment(fragment.source, RankFacts(rank, exit=end))


def _same(one: str, other: str) -> bool:
    """Whether two names may be of one host: a domain is often left out."""
    return one == other or _short(one) == _short(other)


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]
