"""Turns the resolved evidence of a log into fragments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from hangscope.trace import formats, operations
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import (
    UNKNOWN_GROUP,
    Counters,
    GroupId,
    Operation,
    ProcessStacks,
    RankNotes,
)
from hangscope.trace.job_log.group_table import GroupTable
from hangscope.trace.job_log.rank_ends import end_of, unexplained_failure
from hangscope.trace.job_log.readers.stacks import threads_of
from hangscope.trace.job_log.resolving.resolve import resolve
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


def fragments_of(
    evidence: Evidence, path: str, *, whole_file_rank: int | None = None
) -> list[Fragment]:
    """One fragment per rank mentioned; other claims go to a fragment of rank -1."""
    resolve(evidence)
    table = GroupTable(evidence)
    rows = sum(len(n.operations) for n in evidence.ranks.values())
    source = Source(path=path, format=formats.LOG, rank=whole_file_rank, records=rows)
    claims = _by_reporter(evidence, table)
    fragments = [
        _fragment(notes, evidence, source, table, claims.get(rank, []))
        for rank, notes in sorted(evidence.ranks.items())
    ]
    fragments += [_of_unknown_rank(seen, source) for seen in evidence.stacks]
    warnings = _warnings(evidence, tells_nothing=not (fragments or claims))
    rest = claims.get(NONE, [])
    if rest or warnings or not fragments:
        fragments.append(
            Fragment(
                source=source,
                facts=RankFacts(rank=NONE, world_size=evidence.world_size),
                groups=table.groups,
                claims=tuple(rest),
                warnings=warnings,
            )
        )
    earlier, pieces = evidence.fell_back, evidence.in_pieces
    if earlier or pieces:
        return [replace(f, of_earlier_attempt=earlier, in_pieces=pieces) for f in fragments]
    return fragments


def _of_unknown_rank(seen: ProcessStacks, source: Source) -> Fragment:
    """The stack of a process whose rank the log does not state; another file may."""
    facts = RankFacts(
        NONE,
        host=seen.machine.host,
        pid=seen.pid,
        called=seen.called,
        threads=threads_of(seen),
    )
    return Fragment(source, replace(facts, observed_ns=seen.at_ns))


def _by_reporter(evidence: Evidence, table: GroupTable) -> dict[int, list[Claim]]:
    """The claims of each rank with group indexes; -1 for claims that are not a rank's."""
    claims: dict[int, list[Claim]] = defaultdict(list)
    for claim, group in evidence.claims:
        reporter = NONE if claim.reporter is None else claim.reporter
        index = table.index(group) if group is not None else NONE
        home = reporter if reporter in evidence.ranks else NONE
        claims[home].append(replace(claim, group=index))
    return claims


def _warnings(evidence: Evidence, *, tells_nothing: bool) -> tuple[str, ...]:
    """Notes on the log itself for the user."""
    warnings = []
    if evidence.attempt:
        which = "last that tells anything" if evidence.fell_back else "newest"
        warnings.append(
            f"holds {evidence.attempt} earlier attempt{'s' if evidence.attempt > 1 else ''}; "
            f"this report is about the {which}"
        )
    if tells_nothing and evidence.native_stacks:
        warnings.append(
            "a debugger's backtrace without a call of a communication library, CUDA or a lock: "
            "take that of the thread that computes, or py-spy's"
        )
    elif tells_nothing and evidence.helpers:
        warnings.append(
            "only stacks of helper processes or threads (data loader workers, launchers), which "
            "wait for work in a hang: take the stacks of the ranks themselves"
        )
    elif tells_nothing:
        warnings.append("no line in it that HangScope knows")
    return tuple(warnings)


def _fragment(
    notes: RankNotes,
    evidence: Evidence,
    source: Source,
    table: GroupTable,
    claims: list[Claim],
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
    if failure is not None:
        said.append(failure)
    times = [o.at_ns for o in notes.operations] + [c.at_ns for c in notes.counters.values()]
    facts = RankFacts(
        rank=notes.rank,
        host=notes.host,
        pid=notes.pid,
        local_rank=notes.local_rank,
        world_size=evidence.world_size,
        exit=end.exit,
        exception=end.exception,
        threads=threads_of(notes.seen) if notes.seen is not None else (),
        observed_ns=max(times, default=0),
    )
    return Fragment(
        source=source,
        facts=facts,
        records=records,
        members=_member_rows(notes, table),
        groups=table.groups,
        signatures=tuple(signatures),
        stacks=tuple(stacks),
        claims=tuple(said),
    )


def _own_claims(notes: RankNotes, table: GroupTable) -> list[Claim]:
    """Claims from a rank's own lines: timeouts, group ranks, partial output."""
    claims = [_timeout_claim(o, notes.rank, table) for o in notes.operations if o.timed_out]
    claims += [
        Claim("other", reporter=notes.rank, group=table.index(group), details={"place": place})
        for group, place in notes.places.items()
        if group != UNKNOWN_GROUP
    ]
    if notes.by_local_rank:
        details = ClaimDetails(by_local_rank=True, local_as_rank=notes.local_as_rank)
        claims.append(Claim("other", reporter=notes.rank, details=details))
    if notes.partly_recorded and not notes.operations and not notes.counters:
        claims.append(Claim("other", reporter=notes.rank, details={"partly_recorded": True}))
    return claims


def _timeout_claim(operation: Operation, rank: int, table: GroupTable) -> Claim:
    return Claim(
        kind="timeout",
        reporter=rank,
        group=table.index(operation.group),
        seq=operation.seq,
        op=operation.signature.op,
        text=operation.text,
        at_ns=operation.at_ns,
    )


def _records(
    notes: RankNotes,
    table: GroupTable,
    signatures: dict[Signature, int],
    stacks: dict[Stack, int],
) -> Records:
    found = sorted(notes.operations, key=lambda o: (o.at_ns, o.line))
    records = np.zeros(len(found), RECORD_DTYPE)
    for row, operation in zip(records, found, strict=True):
        signature = operation.signature
        flags = int(Flag.SYNTHETIC)
        if operation.timed_out:
            flags |= Flag.TIMED_OUT
        # Sends, receives and coalesced batches have a separate counter on every rank.
        own_counter = operations.is_p2p(signature.op) or signature.op == "coalesced"
        if own_counter:
            flags |= Flag.P2P
        if operations.is_batch(signature.op):
            flags |= Flag.COALESCED_BATCH
        row["rank"] = notes.rank
        row["group"] = table.index(operation.group)
        row["collective_seq"] = NONE if own_counter else operation.seq
        row["p2p_seq"] = operation.seq if own_counter else 0
        row["op_id"] = row["record_id"] = row["stack"] = row["peer"] = row["root"] = NONE
        if operation.stack:
            row["stack"] = stacks.setdefault(operation.stack, len(stacks))
        row["signature"] = signatures.setdefault(signature, len(signatures))
        if operation.at_ns and operation.ran_ms:
            row["created_ns"] = max(operation.at_ns - operation.ran_ms * 10**6, 0)
        row["timeout_ms"] = operation.timeout_ms
        row["state"] = operation.state
        row["flags"] = flags
    return records


def _member_rows(notes: RankNotes, table: GroupTable) -> Records:
    rows = np.zeros(len(notes.counters), MEMBER_DTYPE)
    for row, (group, counters) in zip(rows, notes.counters.items(), strict=True):
        pairs_only = _all_pairs(notes, group)
        row["rank"], row["group"] = notes.rank, table.index(group)
        if _count_pairs_too(notes, group, counters):
            row["enqueued"] = row["started"] = row["completed"] = row["p2p_enqueued"] = NONE
            continue
        row["enqueued"] = NONE if pairs_only else counters.enqueued
        row["started"] = NONE if pairs_only or counters.started <= 0 else counters.started
        row["completed"] = NONE if pairs_only else counters.completed
        row["p2p_enqueued"] = counters.enqueued if pairs_only else NONE
    return rows


def _all_pairs(notes: RankNotes, group: GroupId) -> bool:
    """Whether the overdue work of this group is point-to-point: then the counters count that."""
    own = [o for o in notes.operations if o.group == group]
    return bool(own) and all(
        operations.is_p2p(o.signature.op) or o.signature.op == "coalesced" for o in own
    )


def _count_pairs_too(notes: RankNotes, group: GroupId, counters: Counters) -> bool:
    """Whether counters call finished what has timed out: they also count another kind of work."""
    overdue = [o.seq for o in notes.operations if o.group == group and o.timed_out]
    return any(0 < seq <= counters.completed for seq in overdue)
