"""Finds the rank of processes that one file identifies only by pid, from files that know ranks.

Examples are stacks taken by pid, and the kernel's report of a process that it killed. Pids repeat
across machines and containers. One is matched only if its machine is known as well, or if the pids
of all ranks are known and exactly one rank has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangscope.trace.model import NONE, Claim, ExitFacts, Fragment, RankFacts
from hangscope.trace.signals import SIGKILL


def attribute_by_pid(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments; what they say about a process is attributed to its rank, if known."""
    known = _rank_processes(fragments)
    found: list[Fragment] = []
    for fragment in fragments:
        if fragment.facts.rank != NONE or not known.ranks:
            found.append(fragment)
            continue
        pid, host, path = fragment.facts.pid, fragment.facts.host or "", fragment.source.path
        rank = known.rank_of(pid, host, path) if pid is not None else None
        if rank is not None:
            fragment = replace(fragment, facts=replace(fragment.facts, rank=rank))
        claims = [(c, _accused_rank(c, known, path)) for c in fragment.claims]
        attributed = tuple(_accusing(c, rank) if rank is not None else c for c, rank in claims)
        found.append(replace(fragment, claims=attributed))
        killed = {rank: c for c, rank in claims if rank is not None and c.kind == "oom"}
        found += [_oom_killed(rank, claim, fragment) for rank, claim in killed.items()]
    return found


@dataclass(frozen=True, slots=True)
class _RankProcesses:
    """The known processes of the ranks."""

    ranks: dict[int, dict[int, str]]
    """For each pid, the ranks that have it and the host of each."""
    hosts: frozenset[str]
    """The known hosts of the ranks."""
    all_told: bool
    """Whether every rank of the job has a known pid."""

    def rank_of(self, pid: int, host: str, path: str) -> int | None:
        """The rank of a process; None if it may be on another machine."""
        alike = self.ranks.get(pid, {})
        hosts = {host} if host else self._named_in(path)
        if hosts:
            alike = {
                r: h
                for r, h in alike.items()
                if not h or any(_may_be_same_host(h, o) for o in hosts)
            }
        if len(alike) != 1:
            return None
        ((rank, its_host),) = alike.items()
        return rank if self.all_told or (hosts and its_host) else None

    def _named_in(self, path: str) -> set[str]:
        """The hosts whose names a path contains."""
        return {
            h
            for h in self.hosts
            if (name := _short_host(h)) in path
            and re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", path)
        }


def _rank_processes(fragments: Sequence[Fragment]) -> _RankProcesses:
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
    # Counted rather than built as a set: a damaged file may state any world size.
    everybody = seen == with_pid and sum(rank < world for rank in seen) == world
    hosts = frozenset(host for alike in ranks.values() for host in alike.values() if host)
    return _RankProcesses(dict(ranks), hosts, bool(with_pid) and everybody)


def _accused_rank(claim: Claim, known: _RankProcesses, path: str) -> int | None:
    pid = claim.details.pid
    if pid is None or claim.accused:
        return None
    return known.rank_of(pid, claim.details.host, path)


def _accusing(claim: Claim, rank: int) -> Claim:
    return replace(claim, accused=(rank,), certain=True)


def _oom_killed(rank: int, claim: Claim, fragment: Fragment) -> Fragment:
    """The fragment for a rank whose process was killed for memory, according to the kernel."""
    end = ExitFacts("oom", signal=SIGKILL, at_ns=claim.at_ns, text=claim.text[:200])
    return Fragment(fragment.source, RankFacts(rank, exit=end))


def _may_be_same_host(one: str, other: str) -> bool:
    """Whether two names may be one host: the domain is often omitted."""
    return one == other or _short_host(one) == _short_host(other)


def _short_host(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]
