"""Turns a cause into a finding: summary, mechanism, fix, evidence, sides and hosts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.vanished_hosts import UNHEARD
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import GONE, Finding, GroupRef
from hangscope.diagnosis.wording.advice import advice
from hangscope.diagnosis.wording.evidence import evidence
from hangscope.diagnosis.wording.phrases import capital
from hangscope.diagnosis.wording.sides import sides_of
from hangscope.diagnosis.wording.summaries import sentences
from hangscope.trace.digests.hosts import Host, hosts_s
from hangscope.trace.model import RankFacts


class _Subject(NamedTuple):
    """The operation a finding is about, if any."""

    group: GroupRef | None = None
    seq: int | None = None
    op: str | None = None


def to_finding(context: Context, cause: Cause) -> Finding:
    """Turn one cause into a finding."""
    place = shown_place(context, cause)
    words = sentences(context, cause, place)
    sides = sides_of(context, cause, place)
    todo = advice(context, cause, place, sides)
    subject = _subject(context, cause, place)
    return Finding(
        verdict=cause.verdict,
        culprits=cause.culprits,
        victims=tuple(sorted(cause.victims - set(cause.culprits))),
        confidence=cause.confidence,
        summary=words.summary,
        why=words.why,
        fix=todo.fix,
        playbook=todo.playbook,
        group=subject.group,
        seq=subject.seq,
        op=subject.op,
        sides=sides,
        evidence=(*evidence(context, cause, place), *cause.evidence),
        unknowns=tuple(cause.unknowns),
        began_ns=cause.began_ns,
    )


def _subject(context: Context, cause: Cause, place: Place | None) -> _Subject:
    found = cause.mismatch
    if found is not None:
        signature = context.signature(found.parts[0].row)
        op = signature.op if signature else None
        return _Subject(context.group_ref(found.group), found.seq, op)
    if place is None:
        return _Subject()
    group = context.group_ref(place.group, place.members)
    return _Subject(group, None if place.phase else place.seq, context.place_op(place))


def with_hosts(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings with the names of their culprits' hosts, in a job of several hosts.

    If all ranks of a host are gone and left no word, the host is what fell silent.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, facts in context.trace.ranks.items():
        if facts.host:
            ranks_of[facts.host].append(rank)
    if len(ranks_of) < 2:
        return findings
    return tuple(_with_hosts(context, finding, ranks_of) for finding in findings)


def _with_hosts(context: Context, finding: Finding, ranks_of: dict[str, list[int]]) -> Finding:
    ranks = context.trace.ranks
    facts = [ranks[rank] for rank in finding.culprits if rank in ranks]
    names = dict.fromkeys(one.host for one in facts if one.host)
    if finding.hosts or not facts or len(facts) < len(finding.culprits):
        return finding
    hosts = [Host(name, tuple(ranks_of[name])) for name in names]
    unheard = all(context.processes[rank].end_text == UNHEARD for rank in finding.culprits)
    named = replace(finding, hosts=tuple(names), hosts_silent=unheard)
    whole = {rank for host in hosts for rank in host.ranks} == set(finding.culprits)
    several = all(len(host.ranks) > 1 for host in hosts)
    if not (whole and several and finding.verdict in GONE and all(map(_left_no_word, facts))):
        return named
    told = finding.summary[:1].lower() + finding.summary[1:]
    summary = f"{capital(hosts_s(hosts))} fell silent: {told}"
    return replace(named, summary=summary, hosts_silent=True)


def _left_no_word(facts: RankFacts) -> bool:
    """Whether nothing says how a process that is gone has ended."""
    end = facts.exit
    unseen = end is None or (end.kind == "unknown" and end.code is None and end.signal is None)
    return facts.alive is False and unseen and facts.exception is None
