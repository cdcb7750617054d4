"""What a host's ranks have in common: missing evidence, or a link that all stuck groups cross."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.observability import recorders
from hangscope.trace.digests.hosts import homes
from hangscope.trace.model import Trace

_PAIR = 2


def missing_evidence(trace: Trace) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The ranks of which others left records and they did not: (host, ranks), "" for no host known.

    Which host a rank ran on that left nothing, the monitors may have told each other.
    """
    own = recorders(trace)
    if not own:
        return ()
    host_of = {rank: host.name for host in homes(trace.claims).hosts for rank in host.ranks}
    found: dict[str, list[int]] = defaultdict(list)
    for rank in sorted({*range(trace.world_size or 0), *trace.missing_ranks} - own):
        facts = trace.ranks.get(rank)
        found[(facts.host if facts is not None else None) or host_of.get(rank, "")].append(rank)
    return tuple((host, tuple(ranks)) for host, ranks in found.items())


def with_common_hosts(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """If several groups stand, all members there: the hosts, one or two, that all of them have."""
    first = findings[0] if findings else None
    if first is None or first.culprits or first.verdict is not Verdict.STUCK_COLLECTIVE:
        return findings
    stuck = {p.group for p in context.waits.places if p.waiters and not p.targets and p.group >= 0}
    hosts_of = [_hosts(context, context.trace.groups[group].ranks) for group in sorted(stuck)]
    common = frozenset.intersection(*hosts_of) if len(hosts_of) > 1 else frozenset()
    if not 0 < len(common) <= _PAIR or all(hosts == common for hosts in hosts_of):
        return findings
    names = " and ".join(sorted(common))
    said = f"all {len(stuck)} groups that stand have members on {names}, and on no other host alike"
    named = replace(first, hosts=tuple(sorted(common)), evidence=(*first.evidence, said))
    return (named, *findings[1:])


def _hosts(context: Context, ranks: Iterable[int]) -> frozenset[str]:
    known = (context.trace.ranks[rank].host for rank in ranks if rank in context.trace.ranks)
    return frozenset(host for host in known if host)
