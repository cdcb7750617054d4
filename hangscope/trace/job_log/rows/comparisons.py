"""Lines in which torch compared ranks: desync reports, fingerprints, NCCL's own check."""

from __future__ import annotations

import re

from hangscope.trace import operations
from hangscope.trace.flight_recorder.columns import dtypes
from hangscope.trace.job_log.evidence.gathered import (
    MAX_MENTIONS,
    MAX_SAME_NUMBER,
    Comparison,
    Evidence,
    rank_ranges,
)
from hangscope.trace.job_log.evidence.notes import DEFAULT_GROUP, Counters, GroupId, Operation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim
from hangscope.trace.model import Signature, State

_FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+),?\s*)?OpType=(?P<op>[A-Z_]+)"
    r"(?:,\s*TensorShape=\[(?P<shape>[^\]]*)\](?:,\s*TensorDtypes=(?P<dtype>\w+))?)?"
)
# Terminals wrap these long lines, with or without a blank at the line break.
_MISMATCH = re.compile(
    r"Detected\s*mismatch\s*between\s*collectives\s*on\s*ranks\.\s*Rank\s*(?P<a>\d+)\s*is\s*running"
    r"\s*(?:inconsistent\s*)?collective:\s*(?P<fa>CollectiveFingerPrint\((?:(?!but\s*Rank).)*)"
    r"(?:but\s*Rank\s*(?P<b>\d+)\s*is\s*running\s*collective:\s*(?P<fb>CollectiveFingerPrint\(.*))?",
    re.S,
)
_GARBAGE_SEQ = 100_000_000
_SMALLER = ("", "subgroup")
"""A group about which only its being a subgroup is known."""
_MOST = 1 << 62
_MAX_AGREEING = 4096


def _begins(said: Said, evidence: Evidence) -> None:
    """The first line of a report, which states the writer's group rank."""
    line = said.line._replace(rank=evidence.writer)
    evidence.desync.of_subgroup = line.is_place(said.number("place") or 0)
    evidence.claim("desync_report", said.line, said.at_ns, reporter=evidence.writer)


def _lagging(said: Said, evidence: Evidence) -> None:
    ranks = _ranks(said)
    if not evidence.desync.of_subgroup:  # else its numbers are ranks inside a smaller group
        evidence.claim("desync_report", said.line, said.at_ns, accused=ranks)
        for rank in ranks:
            _counters(evidence, rank, 0, 0)


def _finished(said: Said, evidence: Evidence) -> None:
    ranks, n = _ranks(said), _seq(said)
    if not evidence.desync.of_subgroup:
        evidence.claim(
            "desync_report", said.line, said.at_ns, accused=ranks, group=DEFAULT_GROUP, seq=n + 1
        )  # fmt: skip
        for rank in ranks:
            _counters(evidence, rank, n, n)


def _joined(said: Said, evidence: Evidence) -> None:
    n = _seq(said)
    for rank in () if evidence.desync.of_subgroup else _ranks(said):
        _counters(evidence, rank, n, n - 1)


def _snapshot(said: Said, evidence: Evidence) -> None:
    """The sequence number that the following rows are about."""
    evidence.desync.seq = _seq(said)


def _snapshot_row(said: Said, evidence: Evidence) -> bool:
    seq = evidence.desync.seq
    if evidence.desync.of_subgroup or seq is None:
        return evidence.desync.of_subgroup
    started = said.text("what") == "started"
    state = State.STARTED if started else State.COMPLETED
    newest = evidence.desync.started
    for rank in _ranks(said):
        _operation(evidence, rank, seq, _bare(said.text("op")), state, said.at_ns, said.line)
        _counters(evidence, rank, seq, -1 if started else seq)
        if started:
            newest[rank] = max(newest.get(rank, 0), seq)
    return True


def resolve_started(evidence: Evidence) -> None:
    """What has completed on a rank on which something has started.

    Kernels of one group run one after another: all earlier ones have. Where a rank says that it
    gave up waiting for an earlier one, its reports do not count started kernels but issued ones.
    """
    newest = evidence.desync.started
    overdue = [
        (rank, operation.seq)
        for rank in newest.keys() & evidence.ranks.keys()
        for operation in evidence.ranks[rank].operations
        if operation.timed_out and operation.group == DEFAULT_GROUP
    ]
    issued_only = any(0 < seq < newest[rank] for rank, seq in overdue)
    for rank, seq in newest.items():
        notes = evidence.of(rank)
        if not issued_only:
            _counters(evidence, rank, seq, seq - 1)
            continue
        for operation in notes.operations:
            if operation.state == State.STARTED and not operation.timed_out:
                operation.state = State.SCHEDULED


def _counters(evidence: Evidence, rank: int, enqueued: int, completed: int) -> None:
    """Counters from a report, which covers started kernels: a rank may have issued more."""
    if not _may_speak(evidence):
        return
    known = evidence.of(rank).counters.setdefault(DEFAULT_GROUP, Counters())
    known.enqueued = max(known.enqueued, enqueued)
    known.completed = max(known.completed, completed)


def _may_speak(evidence: Evidence) -> bool:
    """Count one more rank mentioned by reports; False once there are too many to be real."""
    evidence.mentions += 1
    return evidence.mentions <= MAX_MENTIONS


def _bare(raw: str) -> Signature:
    return Signature(op=operations.canonical(raw), raw=raw)


def _operation(
    evidence: Evidence,
    rank: int,
    seq: int,
    signature: Signature,
    state: State,
    at_ns: int,
    line: LogLine,
    group: GroupId = DEFAULT_GROUP,
) -> None:
    if not _may_speak(evidence):
        return
    notes = evidence.of(rank)
    same_number = notes.numbered(seq)
    for known in same_number:
        if (known.signature.op, known.group) == (signature.op, group):
            known.state = max(known.state, state)
            return
    if len(same_number) >= MAX_SAME_NUMBER:
        return
    notes.operations.append(
        Operation(
            seq=seq,
            signature=signature,
            group=group,
            state=state,
            at_ns=at_ns,
            line=line.number,
            text=line.excerpt,
        )
    )


def comparison(text: str) -> Comparison | None:
    """Parse a message in which torch compared two ranks of a group: the writer's group rank, and
    what members ran, by group rank. None for other messages.
    """
    found = _MISMATCH.search(text)
    if not found:
        return None
    sides = {int(found.group("a")): fingerprint(found.group("fa"))}
    if found.group("b"):
        sides[int(found.group("b"))] = fingerprint(found.group("fb"))
    return int(found.group("a")), {p: side[1] for p, side in sides.items() if side is not None}


def _fingerprints(said: Said, evidence: Evidence) -> bool:
    """Record a comparison; which ranks it is about is known only at the end of the log."""
    line, at_ns = said.line, said.at_ns
    compared = comparison(line.text)
    if compared is None:
        return False
    place, sides = compared
    if place not in sides:
        return False
    evidence.comparisons.append((line, at_ns, compared))
    evidence.claim(
        "fingerprint_mismatch",
        line,
        at_ns,
        reporter=line.rank_or(place),
        group=DEFAULT_GROUP,
        seq=_compared_seq(line.text),
        op=sides[place].op,
    )
    return True


def _compared_seq(text: str) -> int:
    """The wrapper's own sequence number, which starts at 0 in some versions.

    A peer's is garbage in torch 2.0 and 2.1, so both sides get the reporter's.
    """
    found = _FINGERPRINT.search(text)
    seq = int(found.group("seq")[:18]) if found is not None and found.group("seq") else 0
    return seq if 0 < seq <= _GARBAGE_SEQ else 1


def resolve_comparisons(evidence: Evidence) -> None:
    """Record comparisons as operations of the ranks that issued them.

    Messages use group ranks. If a writer's group rank differs from its rank, the group is a
    subgroup, and only what each writer says about itself can be attributed.
    """
    smaller = any(line.rank not in (None, place) for line, _, (place, _) in evidence.comparisons)
    comparisons = _resolve_steps(evidence, smaller=smaller)
    agreed: dict[tuple[int, Signature], int] = {}
    """Up to which rank all are known to have issued an operation."""
    for line, at_ns, (place, sides) in comparisons:
        seq, mine = _compared_seq(line.text), sides[place]
        if smaller:
            if line.rank is not None:
                _operation(evidence, line.rank, seq, mine, State.SCHEDULED, at_ns, line, _SMALLER)
            continue
        _operation(evidence, place, seq, mine, State.SCHEDULED, at_ns, line)
        for other, signature in sides.items():
            _operation(evidence, other, seq, signature, State.SCHEDULED, at_ns, line)
            # The comparison names the lowest rank that differs, so the ranks below it agree.
            below = min(other, _MAX_AGREEING) if other != place else 0
            for rank in range(agreed.get((seq, mine), 0), below):
                if rank != place:
                    _operation(evidence, rank, seq, mine, State.SCHEDULED, at_ns, line)
            agreed[seq, mine] = max(agreed.get((seq, mine), 0), below)
    evidence.comparisons.clear()


def _resolve_steps(evidence: Evidence, *, smaller: bool) -> list[tuple[LogLine, int, Comparison]]:
    """State which ranks met in different calls of one operation; returns the other comparisons.

    They passed the same, and only their sequence numbers differ: one side left a collective out
    before, or issued one too many. In a ``smaller`` group, the numbers in a message are no ranks.
    """
    numbers: dict[int, int] = {}
    apart: list[tuple[LogLine, int, Comparison]] = []
    others: list[tuple[LogLine, int, Comparison]] = []
    for compared in evidence.comparisons:
        line, _, (place, sides) = compared
        met = _numbers_apart(line.text, sides)
        (apart if met else others).append(compared)
        for rank, number in met.items():
            numbers[rank] = number
            if rank != place:  # the lowest rank that differs: the ranks below it agree
                numbers |= dict.fromkeys(range(min(rank, _MAX_AGREEING)), met[place])
    if apart and not smaller:
        line, at_ns, _ = apart[0]
        accused = _fewer_or_all(numbers)
        evidence.claim("fingerprint_mismatch", line, at_ns, accused=accused, certain=False)
    return others


def _numbers_apart(text: str, sides: dict[int, Signature]) -> dict[int, int]:
    """The sequence numbers of two ranks that compared equal operations, if nothing else differs."""
    found = _MISMATCH.search(text)
    if found is None or not found.group("b") or len(set(sides.values())) > 1:
        return {}
    both = {int(found.group(of)): fingerprint(found.group("f" + of)) for of in "ab"}
    numbers = {place: said[0] for place, said in both.items() if said is not None}
    known = {p: n for p, n in numbers.items() if n is not None and n <= _GARBAGE_SEQ}
    return known if len(set(known.values())) > 1 else {}


def _fewer_or_all(numbers: dict[int, int]) -> tuple[int, ...]:
    """The ranks of the smaller side, if ranks that said nothing cannot even the sides out."""
    sides = [[r for r, n in numbers.items() if n == number] for number in set(numbers.values())]
    few, *more = sorted(sides, key=len)
    return tuple(few if len(few) + 1 < len(more[-1]) else numbers)


def fingerprint(text: str) -> tuple[int | None, Signature] | None:
    """The sequence number and signature in a ``CollectiveFingerPrint(...)``; None for others."""
    found = _FINGERPRINT.search(text)
    if not found:
        return None
    raw, shape = found.group("op"), found.group("shape")
    sizes = None
    if shape is not None:
        sizes = (tuple(int(d) for d in re.findall(r"\d+", shape)[:32]),)
    return (
        int(found.group("seq")[:18]) if found.group("seq") else None,
        Signature(
            op=operations.canonical(raw),
            raw=raw,
            input_sizes=sizes,
            input_dtypes=dtypes((found.group("dtype") or "").lower()),
        ),
    )


def _seq(said: Said) -> int:
    """A sequence number, bounded in case the line is damaged."""
    return min(said.number("n", 19) or 0, _MOST)


def _ranks(said: Said) -> tuple[int, ...]:
    return rank_ranges(said.text("ranks"))


_LIST = r"\[(?P<ranks>[\d,\s\-.]*)\]"
# fmt: off
ROWS = (
    row("fingerprints", "mismatch", "Detected mismatch between collectives", _fingerprints,
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[128], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 2 is running "
        "collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[96], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float)).", since="torch 1.10"),
    row("nccl-mismatch", "mismatch",
        "Mismatched collective detected, please check your collective calls at and around rank "
        r"(?P<accused>\d+)", claim("fingerprint_mismatch"),
        "NCCL WARN Mismatched collective detected, please check your collective calls at and around"
        " rank 2."),
    row("desync-begins", "timeout", r"- \[(?P<place>\d+)\] Timeout at collective: \w+, #\d+",
        _begins, "- [0] Timeout at collective: ALLREDUCE, #118", since="torch 1.11"),
    row("desync-lagging", "missing ranks",
        f"ranks {_LIST} are the lagging ranks that caused this timeout", _lagging,
        "- To our best knowledge, ranks [2] are the lagging ranks that caused this timeout. They "
        "never joined any collectives"),
    row("desync-finished", "missing ranks",
        _LIST + r" finished collective #(?P<n>\d+), but didn't join collective #(?P<m>\d+)",
        _finished, "[2] finished collective #117, but didn't join collective #118 (count from 1)"),
    row("desync-joined", "counters", _LIST + r" joined but didn't finish collective #(?P<n>\d+)",
        _joined, "- [0, 1] joined but didn't finish collective #118 (count from 1)"),
    row("desync-snapshot", "counters", r"#(?P<n>\d+) (?P<what>started|finished) ranks:", _snapshot,
        "#118 started ranks:"),
    row("desync-row", "counters", _LIST + r" (?P<what>started|finished) (?P<op>[A-Z_]+)",
        _snapshot_row, "[0, 1, 3] started ALLREDUCE"),
)
# fmt: on
