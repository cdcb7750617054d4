"""The host as the unit: what one host explains is said of the host, not of each of its ranks.

A host that vanishes or is cut off leaves the same picture at every survivor: nothing is heard of
any of its ranks nor of its monitor, or all connections that broke lead to its addresses. Which
ranks run where, the nodes have told each other while all was well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, Verdict
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.diagnosis.wording.phrases import capital, in_operation, rank_s
from hangscope.monitor.node_reports import Lost
from hangscope.trace.digests.hosts import Host, HostMap, hosts_s
from hangscope.trace.model import RankFacts, Trace

_ADDRESS = re.compile(r"\[([0-9A-Fa-f:.]+)\]:\d+|(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3}):\d+")
_CLOSED = re.compile(r"reset|broken pipe|got 0 bytes|clos(?:ed|ing)|refused", re.IGNORECASE)
"""Errors that an answering kernel gives: the other host is there, the process is not."""
_AT_ONCE_NS = 10**9 // 2
"""Connections that broke within this time of the first one may have broken with it."""
_FEW = 2
"""Connections that broke at once to more hosts say nothing about any of them."""
_FIX = (
    "see whether {hosts} is up and can be reached (ping, its console, the scheduler's state of the "
    "node), and start the job again without it if not"
)


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """What a monitor knows about hosts.

    Attributes
    ----------
    hosts:
        Who runs where.
    silent:
        Hosts that do not answer.
    store:
        Since when the job's store does not answer, if it does not.
    here:
        Ranks of this node.
    """

    hosts: HostMap
    silent: tuple[Host, ...] = ()
    store: Lost | None = None
    here: frozenset[int] = frozenset()

    @property
    def own(self) -> Host | None:
        """This host."""
        return next((h for h in self.hosts.hosts if not self.here.isdisjoint(h.ranks)), None)

    @property
    def is_alone(self) -> bool:
        """Whether no other host answers this one."""
        own = self.own
        others = [host for host in self.hosts.hosts if host != own]
        return bool(self.silent) and own is not None and len(self.silent) == len(others)

    @property
    def store_host(self) -> Host | None:
        """The host that holds the job's store: rank 0's."""
        return next((host for host in self.hosts.hosts if 0 in host.ranks), None)


def judged_by_host(diagnosis: Diagnosis, trace: Trace, known: HostEvidence) -> Diagnosis:
    """The diagnosis, with a host as its cause if one explains it, and hosts named."""
    return explained_by_host(diagnosis, trace, known) or with_host_names(diagnosis, known)


def explained_by_host(diagnosis: Diagnosis, trace: Trace, known: HostEvidence) -> Diagnosis | None:
    """The diagnosis with a host as its cause; None if none explains it.

    Parameters
    ----------
    diagnosis:
        Of what this node sees.
    trace:
        What it rests on.
    known:
        About the hosts.
    """
    first = diagnosis.findings[0] if diagnosis.findings else None
    if not known.hosts.hosts or first is None or _is_own(first, trace, known):
        return None
    found = (
        _alone(first, diagnosis, trace, known)
        or _silent(first, diagnosis, trace, known)
        or _cut_off(first, trace, known)
        or _closed(first, trace, known)
        or _without_store(first, trace, known)
    )
    return _headed_by(found, diagnosis) if found is not None else None


def with_host_names(diagnosis: Diagnosis, known: HostEvidence) -> Diagnosis:
    """The diagnosis with the names of the culprits' hosts, as far as known."""
    findings = tuple(
        f if f.hosts else replace(f, hosts=_names(f.culprits, known)) for f in diagnosis.findings
    )
    return replace(diagnosis, findings=findings)


def _is_own(first: Finding, trace: Trace, known: HostEvidence) -> bool:
    """Whether the culprits are seen, and did something themselves.

    If connections have broken since a rank of another host was last heard of, its host may be gone.
    """
    seen = [trace.ranks[rank] for rank in first.culprits if rank in trace.ranks]
    if not seen or all(f.exception and lost_a_peer(f.exception) for f in seen):
        return False
    broke_ns, _ = _first_broken(trace, known)
    ended = any(f.exit or f.exception or f.alive is False for f in seen)
    elsewhere = known.here.isdisjoint(first.culprits)
    unheard = all(f.heartbeat_ns < broke_ns + _AT_ONCE_NS for f in seen)
    return not (broke_ns and elsewhere and unheard and not ended)


def _alone(
    first: Finding, diagnosis: Diagnosis, trace: Trace, known: HostEvidence
) -> Finding | None:
    """Nothing is heard of any other host, and the ranks here wait for ranks there."""
    own, unseen = known.own, _accused(first, diagnosis) - trace.ranks.keys()
    if own is None or not known.is_alone or known.store is not None:
        return None
    waiting = sorted(set(first.victims) & trace.ranks.keys())
    if not unseen and (first.culprits or not all(map(set(waiting).intersection, _ranks(known)))):
        return None
    several = len(known.silent) > 1
    either = "either the link of this host is cut, or all of theirs are, or they are gone"
    return replace(
        first,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        victims=tuple(waiting),
        hosts=(own.name,) if several else (),
        confidence=Confidence.AMBIGUOUS,
        summary=f"Nothing comes to {hosts_s([own])} from any other host",
        why=f"{rank_s(waiting)} wait{_s(waiting)}{in_operation(first)}, and no monitor of "
        f"{hosts_s(known.silent)} answers: {either}",
        fix=_FIX.format(hosts=own.name),
        unknowns=(),
    )


def _ranks(known: HostEvidence) -> list[tuple[int, ...]]:
    return [host.ranks for host in known.silent]


def _accused(first: Finding, diagnosis: Diagnosis) -> set[int]:
    """Whom a finding names, or else whom its victims wait for."""
    awaited = {edge.on for edge in diagnosis.wait_for if edge.waiter in first.victims}
    return set(first.culprits) or awaited


def _silent(
    first: Finding, diagnosis: Diagnosis, trace: Trace, known: HostEvidence
) -> Finding | None:
    """All ranks and the monitor of hosts fell silent together, and the others wait for them."""
    gone = {rank for host in known.silent for rank in host.ranks} - trace.ranks.keys()
    accused = _accused(first, diagnosis) - trace.ranks.keys()
    hosts = known.hosts.of_ranks(accused & gone)
    if not hosts or not accused <= gone or known.store is not None:
        return None
    waiting = sorted(set(first.victims) & trace.ranks.keys())
    return replace(
        first,
        verdict=Verdict.RANK_LOST,
        culprits=tuple(sorted(rank for host in hosts for rank in host.ranks)),
        hosts=tuple(host.name for host in hosts),
        victims=tuple(waiting),
        confidence=Confidence.CERTAIN if len(hosts) == 1 else Confidence.LIKELY,
        summary=f"{capital(hosts_s(hosts))} fell silent",
        why=f"neither its ranks nor its monitor answer, while all other hosts do; "
        f"{rank_s(waiting)} wait{_s(waiting)}{in_operation(first)}",
        sides=tuple(side for side in first.sides if side.op is not None),
        fix=_FIX.format(hosts=" and ".join(host.name for host in hosts)),
        unknowns=(),
        evidence=(),
    )


def _cut_off(first: Finding, trace: Trace, known: HostEvidence) -> Finding | None:
    """Ranks that have all come do not finish, and of some hosts nothing comes through the network.

    What these hosts' ranks do is known from a shared directory.
    """
    silent, waiting = known.silent, set(first.victims)
    if first.culprits or known.store is not None or not silent or not waiting:
        return None
    if not all(map(waiting.intersection, _ranks(known))):
        return None
    return replace(
        first,
        verdict=Verdict.STUCK_COLLECTIVE,
        hosts=tuple(host.name for host in silent),
        hosts_silent=True,
        confidence=Confidence.LIKELY,
        summary=f"Nothing comes through the network from {hosts_s(silent)}",
        why=f"its ranks wait like the others{in_operation(first)}, as the shared directory shows, "
        "and its monitor does not answer through the job's store, while all others do",
        fix="see whether the link of {hosts} is up (ethtool, the switch's port, the fabric "
        "manager)".format(hosts=" and ".join(host.name for host in silent)),
        unknowns=(),
    )


def _closed(first: Finding, trace: Trace, known: HostEvidence) -> Finding | None:
    """The connections that broke first lead to one other host, or to few.

    Those to ranks of this host count for nothing: a rank here that has lost another host ends its
    own connections, too.
    """
    began_ns, early = _first_broken(trace, known)
    led_to = dict.fromkeys(host for text in early for host in _named(text, known.hosts))
    hosts = [host for host in led_to if known.here.isdisjoint(host.ranks)]
    if not 1 <= len(hosts) <= _FEW:
        return None
    keeper = known.store_host
    also = ""
    if known.store is not None and keeper is not None and keeper not in hosts:
        also = f", and {hosts_s([keeper])}, which holds the job's store, does not answer"
    who = sorted(rank for rank in known.here if rank in trace.ranks)
    one = "it" if len(hosts) == 1 else "one of them"
    led = ", the next to ".join(hosts_s([host]) for host in hosts)
    return replace(
        first,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        victims=tuple(who),
        confidence=Confidence.AMBIGUOUS,
        summary=f"The first connections of {rank_s(who)} that broke led to {led}{also}",
        why=f"{one} failed, or had lost another host before: {early[0][:200]}",
        fix="look for the host whose ranks lost no connection before they ended: its log, or its "
        "silence, tells what happened",
        began_ns=began_ns,
    )


def _without_store(first: Finding, trace: Trace, known: HostEvidence) -> Finding | None:
    """The job's store is gone, and what is seen here waits for, or lost, ranks elsewhere."""
    host, lost = known.store_host, known.store
    if host is None or lost is None or not known.here.isdisjoint(host.ranks):
        return None
    since_s = max(0.0, (time.time_ns() - lost.since_ns) / 1e9)
    waiting = sorted(set(first.victims) & trace.ranks.keys()) or sorted(known.here)
    why = (
        f"the job's store there has not answered for {since_s:.0f} s ({lost.error[:120]}); "
        f"{rank_s(waiting)} here stand{_s(waiting)}{in_operation(first)}"
    )
    closed = bool(_CLOSED.search(lost.error))
    how = (
        "has closed the job's store: its launcher or rank 0 is gone, be it because of another host"
        if closed
        else "cannot be reached from here: either it is gone, or this host is cut off"
    )
    return replace(
        first,
        verdict=Verdict.INCONCLUSIVE,
        culprits=(),
        hosts=(host.name,),
        victims=tuple(waiting),
        confidence=Confidence.AMBIGUOUS,
        summary=f"{capital(hosts_s([host]))} {how}",
        why=why,
        fix=_FIX.format(hosts=host.name),
    )


def _s(subjects: Collection[int]) -> str:
    """The ending of their verb."""
    return "s" if len(subjects) == 1 else ""


def _headed_by(found: Finding, diagnosis: Diagnosis) -> Diagnosis:
    roles = dict.fromkeys(found.culprits, "culprit") | dict.fromkeys(found.victims, "victim")
    rows = tuple(replace(row, role=roles.get(row.rank, "bystander")) for row in diagnosis.ranks)
    return replace(
        diagnosis,
        verdict=found.verdict,
        culprits=found.culprits,
        confidence=found.confidence,
        summary=found.summary,
        findings=(found,),
        ranks=rows,
    )


def doubtful_hosts(found: Diagnosis | Finding, known: HostEvidence) -> tuple[str, ...]:
    """The hosts of which one, or the link between them, is at fault, for the journal.

    A host that cannot be reached from here may be one that this host is cut off from.
    """
    own, named = known.own, set(found.hosts)
    if own is not None and named and found.confidence is Confidence.AMBIGUOUS:
        named.add(own.name)
    return tuple(sorted(named))


def closed_addresses(trace: Trace, known: HostEvidence) -> list[str]:
    """The addresses to which the ranks here lost the first connections."""
    texts = _first_broken(trace, known)[1]
    found = (match[1] or match[2] for text in texts for match in _ADDRESS.finditer(text))
    return list(dict.fromkeys(found))


def _first_broken(trace: Trace, known: HostEvidence) -> tuple[int, list[str]]:
    """When the ranks here lost the first connections, and the errors of these."""
    broken = list(_broken(trace.ranks[rank] for rank in known.here if rank in trace.ranks))
    began_ns = min((at_ns for at_ns, _ in broken), default=0)
    return began_ns, [text for at_ns, text in sorted(broken) if at_ns - began_ns <= _AT_ONCE_NS]


def _broken(ranks: Iterable[RankFacts]) -> Iterable[tuple[int, str]]:
    """When and how connections to other ranks broke."""
    for facts in ranks:
        for error in (facts.exception, facts.handled):
            if error is not None and lost_a_peer(error):
                yield error.at_ns, error.message


def _named(text: str, hosts: HostMap) -> Iterable[Host]:
    for match in _ADDRESS.finditer(text):
        host = hosts.at(match[1] or match[2])
        if host is not None:
            yield host


def _names(culprits: Collection[int], known: HostEvidence) -> tuple[str, ...]:
    return tuple(host.name for host in known.hosts.of_ranks(culprits)) if culprits else ()
