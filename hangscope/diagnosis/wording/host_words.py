"""What a host's ranks have in common: missing evidence, a link that all stuck groups cross, or that
no monitor could reach it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.observability import recorders
from hangscope.trace.digests.hosts import homes
from hangscope.trace.model import Trace
from hangscope.trace.verdict_codec import OWN_VERDICT

_PAIR = 2
_OF_HOSTS = (Verdict.RANK_LOST.value, Verdict.STUCK_COLLECTIVE.value, Verdict.INCONCLUSIVE.value)


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


def with_unreachable_hosts(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """If all ranks have come and none goes on: the host, or two, that monitors could not reach.

    A monitor that cannot reach another host does not know which of the two is cut off; what several
    say together may tell.
    """
    first = findings[0] if findings else None
    if first is None or first.culprits or first.verdict is not Verdict.STUCK_COLLECTIVE:
        return findings
    said = [
        claim
        for claim in context.trace.claims
        if claim.kind == OWN_VERDICT and claim.at_ns >= context.newest_ns
        and claim.details.hosts and claim.details.verdict in _OF_HOSTS
    ]  # fmt: skip
    doubtful = Confidence.AMBIGUOUS.value
    said = [c for c in said if c.details.confidence != doubtful] or said
    common = frozenset.intersection(*(frozenset(c.details.hosts) for c in said)) if said else ()
    if not 0 < len(common) <= _PAIR:
        return findings
    names, texts = sorted(common), dict.fromkeys(claim.text for claim in said)
    what = f"from {names[0]}" if len(names) == 1 else f"between {names[0]} and {names[1]}"
    named = replace(
        first,
        hosts=tuple(names),
        hosts_silent=len(names) == 1,
        confidence=Confidence.LIKELY if len(names) == 1 else Confidence.AMBIGUOUS,
        summary=f"{first.summary}: nothing came through the network {what}",
        evidence=(*first.evidence, *(f"HangScope said meanwhile: {text}" for text in texts)),
    )
    return (named, *findings[1:])


def _hosts(context: Context, ranks: Iterable[int]) -> frozenset[str]:
    known = (context.trace.ranks[rank].host for rank in ranks if rank in context.trace.ranks)
    return frozenset(host for host in known if host)
