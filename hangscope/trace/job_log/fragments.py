"""What a log told, settled and put into fragments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from hangscope.trace import formats, operations
from hangscope.trace.job_log.readers.evidence import (
    UNKNOWN_GROUP,
    Counters,
    Evidence,
    GroupId,
    Operation,
    RankNotes,
    Seen,
    Trouble,
)
from hangscope.trace.job_log.readers.stacks import threads_of
from hangscope.trace.job_log.settle import settle
from hangscope.trace.merging.groups import numel
from hangscope.trace.model import (
    CAUSED_BY,
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Claim,
    ExceptionFacts,
    ExitFacts,
    Flag,
    Fragment,
    Group,
    RankFacts,
    Records,
    Signature,
    Source,
)

_SIGTERM, _SIGKILL, _SIGABRT = 15, 9, 6
_OWN_SIGNALS = (4, 7, 8, 9, 11)


def fragments_of(
    evidence: Evidence, path: str, *, whole_file_rank: int | None = None
) -> list[Fragment]:
    """One fragment per rank spoken of; claims of nobody in particular go to one of rank -1."""
    settle(evidence)
    table = _GroupTable(evidence)
    rows = sum(len(n.operations) for n in evidence.ranks.values())
    source = Source(path=path, format=formats.LOG, rank=whole_file_rank, records=rows)
    claims: dict[int, list[Claim]] = {}
    for claim, group in evidence.claims:
        home = claim.reporter if claim.reporter in evidence.ranks else NONE
        place = table.index(group) if group is not None else NONE
        claims.setdefault(home if home is not None else NONE, []).append(
            replace(claim, group=place)
        )
    fragments = [
        _fragment(notes, evidence, source, table, claims.get(rank, []))
        for rank, notes in sorted(evidence.ranks.items())
    ]
    notes: list[str] = []
    if evidence.attempt:
        which = "last that tells anything" if evidence.fell_back else "newest"
        notes.append(
            f"holds {evidence.attempt} earlier attempt{'s' if evidence.attempt > 1 else ''}; "
            f"this report is about the {which}"
        )
    if evidence.stacks:
        notes.append(_whose_stacks(evidence.stacks))
    elif not fragments and not claims:
        notes.append(
            "a debugger's backtrace: its C frames are not used; py-spy shows the Python ones"
            if evidence.native_stacks
            else "tables of torch's debug server, not used; give HangScope the dumps themselves"
            if evidence.tables
            else "no line in it that HangScope knows"
        )
    rest = claims.get(NONE, [])
    if rest or notes or not fragments:
        fragments.append(
            Fragment(
                source=source,
                facts=RankFacts(rank=NONE, world_size=evidence.world_size),
                groups=table.groups(),
                claims=tuple(rest),
                warnings=tuple(notes),
            )
        )
    if evidence.fell_back:
        return [replace(fragment, of_earlier_life=True) for fragment in fragments]
    return fragments


def _whose_stacks(stacks: list[Seen]) -> str:
    """A warning about stacks that could not be given to a rank."""
    pids = sorted({seen.pid for seen in stacks if seen.pid is not None})
    whose = f" of process {', '.join(map(str, pids[:8]))}" if pids else ""
    return (
        f"holds stacks{whose} of an unknown rank, not used; a file named stack_rank_3.txt says "
        "whose they are"
    )


class _GroupTable:
    """Groups of the log with what is known of their members."""

    def __init__(self, evidence: Evidence) -> None:
        seen: dict[GroupId, None] = {}
        for notes in evidence.ranks.values():
            for operation in notes.operations:
                seen.setdefault(operation.group)
            for group in (*notes.counters, *notes.places):
                if group != UNKNOWN_GROUP:
                    seen.setdefault(group)
        for _, claimed in evidence.claims:
            if claimed is not None:
                seen.setdefault(claimed)
        by_name: dict[str, GroupId] = {}
        for group in seen:
            known = by_name.get(group[0])
            if known is None or (group[1] and not known[1]):
                by_name[group[0]] = group
        self._names = {name: i for i, name in enumerate(by_name)}
        self._groups = tuple(_group(g, evidence) for g in by_name.values())

    def index(self, group: GroupId) -> int:
        """Its place in the table; descriptions do not matter."""
        return self._names[group[0]]

    def groups(self) -> tuple[Group, ...]:
        """All of them."""
        return self._groups


def _group(group: GroupId, evidence: Evidence) -> Group:
    name, desc = group
    places: dict[int, int] = {}
    for rank, notes in evidence.ranks.items():
        for known, place in notes.places.items():
            if known[0] == name:
                places[place] = rank
    size = _size_by_use(name, evidence)
    return Group(
        name=name,
        desc=desc,
        ranks=_members(places, size),
        size=size,
        backend="nccl" if places else "",
    )


def _size_by_use(name: str, evidence: Evidence) -> int | None:
    """Even gathers print both sizes, and their quotient is the number of members."""
    votes: Counter[int] = Counter()
    for notes in evidence.ranks.values():
        for operation in notes.operations:
            if operation.group[0] == name:
                size = _quotient(operation.signature)
                if size:
                    votes[size] += 1
    return votes.most_common(1)[0][0] if votes else None


def _quotient(signature: Signature) -> int | None:
    ins = numel(signature.input_sizes, signature.input_numel)
    outs = numel(signature.output_sizes, signature.output_numel)
    if not ins or not outs:
        return None
    if signature.op in ("_all_gather_base", "all_gather") and outs % ins == 0 and outs > ins:
        return outs // ins
    if (
        signature.op in ("_reduce_scatter_base", "reduce_scatter")
        and ins % outs == 0
        and ins > outs
    ):
        return ins // outs
    return None


def _members(places: dict[int, int], size: int | None) -> tuple[int, ...]:
    """Global ranks in group order, where enough places are known to be sure of the rest.

    Meshes are laid out evenly: two known places give the stride, and every further one must fit it.
    """
    if size is None or len(places) < 2 or max(places) >= size:
        return ()
    if len(places) == size:
        return tuple(places[i] for i in range(size))
    (a, ra), (b, rb) = sorted(places.items())[:2]
    if (rb - ra) % (b - a):
        return ()
    stride = (rb - ra) // (b - a)
    base = ra - a * stride
    if stride <= 0 or base < 0 or any(base + p * stride != r for p, r in places.items()):
        return ()
    return tuple(base + i * stride for i in range(size))


def _fragment(
    notes: RankNotes,
    evidence: Evidence,
    source: Source,
    table: _GroupTable,
    claims: list[Claim],
) -> Fragment:
    signatures: dict[Signature, int] = {}
    records = _records(notes, table, signatures)
    said = [
        *claims,
        *(_timeout_claim(o, notes.rank, table) for o in notes.operations if o.timed_out),
        *(
            Claim("other", reporter=notes.rank, group=table.index(g), details={"place": place})
            for g, place in notes.places.items()
            if g != UNKNOWN_GROUP
        ),
    ]
    if notes.by_local_rank:
        said.append(Claim("other", reporter=notes.rank, details={"by_local_rank": True}))
    if notes.half_told and not notes.operations and not notes.counters:
        said.append(Claim("other", reporter=notes.rank, details={"half_told": True}))
    fatal = _fatal(notes)
    if fatal is not None and fatal.in_group:
        details = {"in_group": True, "group_name": fatal.group_name}
        said.append(Claim("other", reporter=notes.rank, details=details))
    exit_facts, exception = _ending(notes)
    failure = _launcher_claim(notes, exit_facts, exception)
    if failure is not None:
        said.append(failure)
    times = [o.at_ns for o in notes.operations] + [c.at_ns for c in notes.counters.values()]
    facts = RankFacts(
        rank=notes.rank,
        host=notes.host,
        pid=notes.pid,
        local_rank=notes.local_rank,
        world_size=evidence.world_size,
        exit=exit_facts,
        exception=exception,
        threads=threads_of(notes.seen) if notes.seen is not None else (),
        observed_ns=max(times, default=0),
    )
    return Fragment(
        source=source,
        facts=facts,
        records=records,
        members=_member_rows(notes, table),
        groups=table.groups(),
        signatures=tuple(signatures),
        claims=tuple(said),
    )


def _timeout_claim(operation: Operation, rank: int, table: _GroupTable) -> Claim:
    return Claim(
        kind="timeout",
        reporter=rank,
        group=table.index(operation.group),
        seq=operation.seq,
        op=operation.signature.op,
        text=operation.text,
        at_ns=operation.at_ns,
        details={"ran_ms": operation.ran_ms, "timeout_ms": operation.timeout_ms},
    )


def _records(notes: RankNotes, table: _GroupTable, signatures: dict[Signature, int]) -> Records:
    found = sorted(notes.operations, key=lambda o: (o.at_ns, o.line))
    records = np.zeros(len(found), RECORD_DTYPE)
    for row, operation in zip(records, found, strict=True):
        signature = operation.signature
        flags = int(Flag.SYNTHETIC)
        if operation.timed_out:
            flags |= Flag.TIMED_OUT
        # Pairs and coalesced batches have a counter of their own on every rank.
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
        row["signature"] = signatures.setdefault(signature, len(signatures))
        if operation.at_ns and operation.ran_ms:
            row["created_ns"] = max(operation.at_ns - operation.ran_ms * 10**6, 0)
        row["timeout_ms"] = operation.timeout_ms
        row["state"] = operation.state
        row["flags"] = flags
    return records


def _member_rows(notes: RankNotes, table: _GroupTable) -> Records:
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
    """Whether the overdue work of this group was a pair: then the counters count pairs."""
    own = [o for o in notes.operations if o.group == group]
    return bool(own) and all(
        operations.is_p2p(o.signature.op) or o.signature.op == "coalesced" for o in own
    )


def _count_pairs_too(notes: RankNotes, group: GroupId, counters: Counters) -> bool:
    """Whether counters call finished what has timed out: another kind of work has that number."""
    overdue = [o.seq for o in notes.operations if o.group == group and o.timed_out]
    return any(0 < seq <= counters.completed for seq in overdue)


def _ending(notes: RankNotes) -> tuple[ExitFacts | None, ExceptionFacts | None]:
    trouble = _fatal(notes)
    exception = None
    if trouble is not None:
        exception = ExceptionFacts(
            type_name=trouble.type_name,
            message=trouble.message + (CAUSED_BY + trouble.cause if trouble.cause else ""),
            stack=tuple(trouble.frames),
            at_ns=trouble.at_ns or notes.exit_ns,
            thread_name=trouble.thread_name,
            is_main_thread=trouble.thread_name == "MainThread",
        )
    told = notes.by_launcher or notes.exit_signal == _SIGTERM
    text = notes.exit_text
    if notes.oom_killed:
        return (
            ExitFacts(
                "oom", notes.exit_code, notes.exit_signal or _SIGKILL, notes.exit_ns, False, text
            ),
            exception,
        )
    if exception is not None and exception.is_main_thread:
        exit_ = ExitFacts(
            "exception", notes.exit_code, notes.exit_signal, exception.at_ns, False, text
        )
        return exit_, exception
    if notes.exit_signal is not None:
        return (
            ExitFacts("signal", notes.exit_code, notes.exit_signal, notes.exit_ns, told, text),
            exception,
        )
    if notes.exit_code is not None:
        kind = "code" if notes.exit_code else "clean"
        return ExitFacts(kind, notes.exit_code, None, notes.exit_ns, told, text), exception
    if notes.found_dead:
        return ExitFacts("unknown", at_ns=notes.exit_ns, text=text), exception
    if told:
        return ExitFacts("signal", None, _SIGTERM, notes.exit_ns, True, text), exception
    return None, exception


def _fatal(notes: RankNotes) -> Trouble | None:
    """The exception that ended the rank: the last one nobody caught.

    A traceback counts as uncaught where torch's hook printed it, or where the launcher saw the
    process end with a status of its own; one in the middle of a log may have been handled.
    """
    uncaught = [t for t in notes.troubles if t.uncaught]
    if not uncaught and (notes.exit_code not in (None, 0) and notes.exit_signal is None):
        uncaught = [t for t in notes.troubles if t.thread_name == "MainThread"]
    if not uncaught and notes.troubles:
        last = notes.troubles[-1]
        if not notes.operations and notes.exit_signal is None and not notes.by_launcher:
            uncaught = [last]
    main = [t for t in uncaught if t.thread_name == "MainThread"]
    return (main or uncaught)[-1] if uncaught else None


def _launcher_claim(
    notes: RankNotes, exit_facts: ExitFacts | None, exception: ExceptionFacts | None
) -> Claim | None:
    """A failure that only the launcher saw, and that no timeout explains."""
    if exit_facts is None or exit_facts.by_launcher or exception is not None:
        return None
    if exit_facts.signal in _OWN_SIGNALS or exit_facts.kind == "oom":
        what = "killed for memory" if exit_facts.kind == "oom" else f"signal {exit_facts.signal}"
    elif exit_facts.signal is None and exit_facts.code and not (notes.operations or notes.echo):
        what = f"exit status {exit_facts.code}"
    else:
        return None
    return Claim(
        kind="launcher_failure",
        accused=(notes.rank,),
        reporter=notes.rank,
        text=f"rank {notes.rank} ended: {what} {notes.exit_text}".strip()[:300],
        at_ns=exit_facts.at_ns,
        certain=False,
    )
