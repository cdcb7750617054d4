"""Gives machines that share a host name, as containers often do, distinct names.

Whatever compares hosts (clocks, ends on one host) then compares machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from hangscope.trace.model import RankFacts


def with_unique_host_names(ranks: dict[int, RankFacts]) -> dict[int, RankFacts]:
    """The facts, with distinct host names for machines that share one."""
    if len({f.machine for f in ranks.values() if f.machine}) < 2:
        return ranks
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, facts in sorted(ranks.items()):
        if facts.host and facts.machine:
            members[facts.host, facts.machine].append(rank)
    machines: dict[str, list[list[int]]] = defaultdict(list)
    for (host, _), those in members.items():
        machines[host].append(those)
    named = dict(ranks)
    for host, several in machines.items():
        if len(several) > 1:
            for those, name in zip(several, _names(ranks, several), strict=True):
                for rank in those:
                    named[rank] = replace(ranks[rank], host=f"{host} ({name})")
    return named


def _names(ranks: Mapping[int, RankFacts], machines: list[list[int]]) -> list[str]:
    """What distinguishes the machines: their node ranks, or else their lowest ranks."""
    nodes = [{ranks[rank].node_rank for rank in those} - {None} for those in machines]
    numbers = [number for node in nodes if len(node) == 1 for number in node]
    if len(numbers) == len(set(numbers)) == len(machines):
        return [f"node {number}" for number in numbers]
    return [f"of rank {those[0]}" for those in machines]
