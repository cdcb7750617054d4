"""Resolves what an attempt has shown, step by step, and turns it into fragments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from hangscope.trace import formats, operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import UNKNOWN_GROUP, ProcessStacks, RankNotes
from hangscope.trace.job_log.group_table import GroupTable
from hangscope.trace.job_log.rank_ends import end_of, unexplained_failure
from hangscope.trace.job_log.readers.stacks import threads_of
from hangscope.trace.job_log.resolving import exceptions, statements
from hangscope.trace.job_log.resolving.ends import resolve_ends
from hangscope.trace.job_log.resolving.groups import resolve_groups
from hangscope.trace.job_log.rows.communicators import Communicators
from hangscope.trace.job_log.rows.comparisons import resolve_comparisons, resolve_started
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Claim,
    ClaimDetails,
    Flag,
    Fragment,
    RankFacts,
    Records,
    Signature,
    Source,
    Stack,
)

_STEPS = (
    resolve_comparisons,
    exceptions.set_survived_apart,
    exceptions.attribute_exceptions,
    statements.resolve_traps,
    exceptions.resolve_chains,
    exceptions.attribute_stacks,
    resolve_ends,
    statements.resolve_shared_places,
    resolve_groups,
    resolve_started,
    statements.resolve_barriers,
    statements.resolve_addresses,
    statements.resolve_store_barrier,
    statements.resolve_partly_recorded,
    exceptions.claim_unattributed,
)


def fragments_of(
    attempt: Attempt, path: str, *, whole_file_rank: int | None = None
) -> list[Fragment]:
    """One fragment per rank mentioned; other claims go to a fragment of rank -1."""
    _resolve(attempt)
    table = GroupTable(attempt)
    rows = sum(len(n.operations) for n in attempt.ranks.values())
    source = Source(path=path, format=formats.LOG, rank=whole_file_rank, records=rows)
    claims: dict[int, list[Claim]] = defaultdict(list)
    for said in attempt.stated:
        home = NONE if said.claim.reporter not in attempt.ranks else said.claim.reporter
        group = NONE if said.group is None else table.index(said.group)
        claims[home].append(replace(said.claim, group=group))
    fragments = [
        _fragment(notes, attempt.world_size, source, table, claims[rank])
        for rank, notes in sorted(attempt.ranks.items())
    ]
    fragments += [_of_unknown_rank(seen, source) for seen in attempt.stacks]
    known = attempt.stacks or attempt.stated or any(n.tells() for n in attempt.ranks.values())
    warnings = _warnings(attempt, tells_nothing=not known)
    if claims[NONE] or warnings or not fragments:
        facts, rest = RankFacts(NONE, world_size=attempt.world_size), tuple(claims[NONE])
        fragments.append(
            Fragment(source, facts, groups=table.groups, claims=rest, warnings=warnings)
        )
    earlier, pieces = attempt.fell_back, attempt.in_pieces
    if earlier or pieces:
        return [replace(f, of_earlier_attempt=earlier, in_pieces=pieces) for f in fragments]
    return fragments


def _resolve(attempt: Attempt) -> None:
    """Complete it in place."""
    largest = attempt.part(Communicators)
    if largest.size and not largest.are_groups:
        attempt.has_ranks(largest.size)
    for step in _STEPS:
        step(attempt)
    if attempt.thinned:
        for notes in attempt.ranks.values():
            notes.partly_recorded |= not (notes.operations or notes.counters or notes.has_ended)
    if attempt.cut or attempt.thinned:
        attempt.infer("other", details=ClaimDetails(cut=True))


def _of_unknown_rank(seen: ProcessStacks, source: Source) -> Fragment:
    """The stack of a process whose rank the log does not state; another file may."""
    facts = RankFacts(
        NONE, host=seen.machine.host, pid=seen.pid, called=seen.called, threads=threads_of(seen)
    )
    return Fragment(source, replace(facts, observed_ns=seen.at_ns))


def _warnings(attempt: Attempt, *, tells_nothing: bool) -> tuple[str, ...]:
    """Notes on the log itself for the user."""
    warnings = []
    if attempt.number:
        which = "last that tells anything" if attempt.fell_back else "newest"
        some = f"{attempt.number} earlier attempt{'s' if attempt.number > 1 else ''}"
        warnings.append(f"holds {some}; this report is about the {which}")
    if tells_nothing and attempt.native_stacks:
        warnings.append(
            "a debugger's backtrace without a call of a communication library, CUDA or a lock: "
            "take that of the thread that computes, or py-spy's"
        )
    elif tells_nothing and attempt.helpers:
        warnings.append(
            "only stacks of helper processes or threads (data loader workers, launchers), which "
            "wait for work in a hang: take the stacks of the ranks themselves"
        )
    elif tells_nothing and not attempt.ranks:
        warnings.append("no line in it that HangScope knows")
    return tuple(warnings)


def _fragment(
    notes: RankNotes, world: int | None, source: Source, table: GroupTable, claims: list[Claim]
) -> Fragment:
    signatures: dict[Signature, int] = {}
    stacks: dict[Stack, int] = {}
    records = _records(notes, table, signatures, stacks)
    end = end_of(notes)
    said = [*claims, *_own_claims(notes, table)]
    if end.fatal is not None and end.fatal.in_group:
        details = ClaimDetails(in_group=True, group_name=end.fatal.group_name)
        said.append(Claim("other", reporter=notes.rank, details=details))
    failure = unexplained_failure(end, notes)
    times = [o.at_ns for o in notes.operations] + [c.at_ns for c in notes.counters.values()]
    facts = RankFacts(
        rank=notes.rank,
        host=notes.host,
        pid=notes.pid,
        local_rank=notes.local_rank,
        world_size=world,
        exit=end.exit,
        exception=end.exception,
        printed=end.survived,
        threads=threads_of(notes.seen) if notes.seen is not None else (),
        observed_ns=max(times, default=0),
    )
    return Fragment(
        source,
        facts,
        records,
        _member_rows(notes, table),
        table.groups,
        signatures=tuple(signatures),
        stacks=tuple(stacks),
        claims=tuple(said if failure is None else [*said, failure]),
    )


def _own_claims(notes: RankNotes, table: GroupTable) -> list[Claim]:
    """Claims from a rank's own lines: timeouts, group ranks, partial output."""
    rank = notes.rank
    claims = [
        Claim("timeout", (), rank, table.index(o.group), o.seq, o.signature.op, o.text, o.at_ns)
        for o in notes.overdue
    ]
    claims += [
        Claim("other", reporter=rank, group=table.index(group), details=ClaimDetails(place=place))
        for group, place in notes.places.items()
        if group != UNKNOWN_GROUP
    ]
    if notes.by_local_rank:
        details = ClaimDetails(by_local_rank=True, local_as_rank=notes.local_as_rank)
        claims.append(Claim("other", reporter=rank, details=details))
    if notes.partly_recorded and not notes.operations and not notes.counters:
        claims.append(Claim("other", reporter=rank, details=ClaimDetails(partly_recorded=True)))
    return claims


def _counts_apart(op: str) -> bool:
    """Whether an operation has another counter on every rank than collectives."""
    return operations.is_p2p(op) or op == "coalesced"


def _records(
    notes: RankNotes, table: GroupTable, signatures: dict[Signature, int], stacks: dict[Stack, int]
) -> Records:
    found = sorted(notes.operations, key=lambda o: (o.at_ns, o.line))
    records = np.zeros(len(found), RECORD_DTYPE)
    for row, operation in zip(records, found, strict=True):
        signature = operation.signature
        apart = _counts_apart(signature.op)
        row["rank"], row["group"] = notes.rank, table.index(operation.group)
        row["collective_seq"] = NONE if apart else operation.seq
        row["p2p_seq"] = operation.seq if apart else 0
        row["op_id"] = row["record_id"] = row["stack"] = row["peer"] = row["root"] = NONE
        if operation.stack:
            row["stack"] = stacks.setdefault(operation.stack, len(stacks))
        row["signature"] = signatures.setdefault(signature, len(signatures))
        if operation.at_ns and operation.ran_ms:
            row["created_ns"] = max(operation.at_ns - operation.ran_ms * 10**6, 0)
        row["timeout_ms"], row["state"] = operation.timeout_ms, operation.state
        row["flags"] = (
            Flag.SYNTHETIC
            | (Flag.TIMED_OUT if operation.timed_out else 0)
            | (Flag.P2P if apart else 0)
            | (Flag.COALESCED_BATCH if operations.is_batch(signature.op) else 0)
        )
    return records


def _member_rows(notes: RankNotes, table: GroupTable) -> Records:
    rows = np.zeros(len(notes.counters), MEMBER_DTYPE)
    for row, (group, counters) in zip(rows, notes.counters.items(), strict=True):
        own = [o for o in notes.operations if o.group == group]
        pairs_only = bool(own) and all(_counts_apart(o.signature.op) for o in own)
        row["rank"], row["group"] = notes.rank, table.index(group)
        row["enqueued"] = row["started"] = row["completed"] = row["p2p_enqueued"] = NONE
        if any(o.timed_out and 0 < o.seq <= counters.completed for o in own):
            continue  # they call finished what has timed out, and count another kind of work, too
        if pairs_only:
            row["p2p_enqueued"] = counters.enqueued
        else:
            row["enqueued"], row["completed"] = counters.enqueued, counters.completed
            row["started"] = counters.started if counters.started > 0 else NONE
    return rows
