"""Lines in which torch compared ranks: desync reports, fingerprints, NCCL's own check."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangscope.trace import operations
from hangscope.trace.flight_recorder.columns import dtypes
from hangscope.trace.job_log.evidence.attempt import MAX_MENTIONS, Attempt
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


_SCHEDULED = State.SCHEDULED
Comparison = tuple[int, dict[int, Signature]]
"""The writer's group rank, and what members ran, by group rank."""
_Compared = tuple[LogLine, Comparison]


@dataclass(slots=True)
class Comparisons:
    """Lines in which torch compared two ranks' operations, and their content."""

    lines: list[_Compared] = field(default_factory=list)


@dataclass(slots=True)
class _DesyncReport:
    """What the first lines of a desync report state about the following ones."""

    seq: int | None = None
    """The collective that the rows are about; None until it is stated."""
    of_subgroup: bool = False
    """Its numbers are ranks inside a smaller group."""
    started: dict[int, int] = field(default_factory=dict)
    """By rank: the newest collective that has started on it, according to any report."""


def _begins(said: Said, attempt: Attempt) -> None:
    """The first line of a report, which states the writer's group rank."""
    line = said.line._replace(rank=attempt.writer)
    attempt.part(_DesyncReport).of_subgroup = line.is_place(said.number("place") or 0)
    attempt.claim("desync_report", said.line, reporter=attempt.writer)


def _told(said: Said, attempt: Attempt) -> tuple[tuple[int, ...], int]:
    """The ranks of a line, unless they are ranks inside a smaller group, and its sequence number,
    bounded in case the line is damaged."""
    ranks = () if attempt.part(_DesyncReport).of_subgroup else said.ranks("ranks")
    return ranks, min(said.number("n", 19) or 0, _MOST)


def _lagging(said: Said, attempt: Attempt) -> None:
    ranks, _ = _told(said, attempt)
    if not attempt.part(_DesyncReport).of_subgroup:
        attempt.claim("desync_report", said.line, accused=ranks)
    for rank in ranks:
        _counters(attempt, rank, 0, 0)


def _finished(said: Said, attempt: Attempt) -> None:
    ranks, n = _told(said, attempt)
    if not attempt.part(_DesyncReport).of_subgroup:
        attempt.claim("desync_report", said.line, accused=ranks, group=DEFAULT_GROUP, seq=n + 1)
    for rank in ranks:
        _counters(attempt, rank, n, n)


def _joined(said: Said, attempt: Attempt) -> None:
    ranks, n = _told(said, attempt)
    for rank in ranks:
        _counters(attempt, rank, n, n - 1)


def _snapshot(said: Said, attempt: Attempt) -> None:
    """The sequence number that the following rows are about."""
    attempt.part(_DesyncReport).seq = _told(said, attempt)[1]


def _snapshot_row(said: Said, attempt: Attempt) -> bool:
    report, ranks = attempt.part(_DesyncReport), _told(said, attempt)[0]
    if report.of_subgroup or report.seq is None:
        return report.of_subgroup
    started, seq = said.text("what") == "started", report.seq
    state = State.STARTED if started else State.COMPLETED
    signature = Signature(operations.canonical(said.text("op")), said.text("op"))
    for rank in ranks:
        _operation(
            attempt, rank, Operation(seq, signature, state=state, at_ns=said.line.at_ns), said.line
        )
        _counters(attempt, rank, seq, -1 if started else seq)
        if started:
            report.started[rank] = max(report.started.get(rank, 0), seq)
    return True


def resolve_started(attempt: Attempt) -> None:
    """What has completed on a rank on which something has started.

    Kernels of one group run one after another: all earlier ones have. Where a rank says that it
    gave up waiting for an earlier one, its reports do not count started kernels but issued ones.
    """
    newest = attempt.part(_DesyncReport).started
    issued_only = any(
        0 < operation.seq < newest[rank] and operation.group == DEFAULT_GROUP
        for rank in newest.keys() & attempt.ranks.keys()
        for operation in attempt.ranks[rank].overdue
    )
    for rank, seq in newest.items():
        if not issued_only:
            _counters(attempt, rank, seq, seq - 1)
            continue
        for operation in attempt.of(rank).operations:
            if operation.state == State.STARTED and not operation.timed_out:
                operation.state = _SCHEDULED


def _counters(attempt: Attempt, rank: int, enqueued: int, completed: int) -> None:
    """Counters from a report, which covers started kernels: a rank may have issued more."""
    if _may_speak(attempt):
        known = attempt.of(rank).counters.setdefault(DEFAULT_GROUP, Counters())
        known.enqueued = max(known.enqueued, enqueued)
        known.completed = max(known.completed, completed)


def _may_speak(attempt: Attempt) -> bool:
    """Count one more rank mentioned by reports; False once there are too many to be real."""
    attempt.mentions += 1
    return attempt.mentions <= MAX_MENTIONS


def _operation(attempt: Attempt, rank: int, told: Operation, line: LogLine) -> None:
    """An operation of the default group, unless a group is stated."""
    if not _may_speak(attempt):
        return
    told.group = told.group if told.group[1] else DEFAULT_GROUP
    attempt.of(rank).issued(told, line)


def comparison(text: str) -> Comparison | None:
    """Parse a message in which torch compared two ranks of a group: the writer's group rank, and
    what members ran, by group rank. None for other messages.
    """
    sides = _sides(text)
    if not sides:
        return None
    return next(iter(sides)), {p: side[1] for p, side in sides.items() if side is not None}


def _sides(text: str) -> dict[int, tuple[int | None, Signature] | None]:
    """The fingerprints that a message compares by group rank, the writer's first."""
    found = _MISMATCH.search(text)
    if not found:
        return {}
    sides = {int(found["a"]): fingerprint(found["fa"])}
    if found["b"]:
        sides[int(found["b"])] = fingerprint(found["fb"])
    return sides


def _fingerprints(said: Said, attempt: Attempt) -> bool:
    """Record a comparison; which ranks it is about is known only at the end of the log."""
    line = said.line
    compared = comparison(line.text)
    if compared is None or compared[0] not in compared[1]:
        return False
    place, sides = compared
    attempt.part(Comparisons).lines.append((line, compared))
    attempt.claim(
        "fingerprint_mismatch", line,
        reporter=line.rank_or(place), group=DEFAULT_GROUP, seq=_compared_seq(line.text),
        op=sides[place].op,
    )  # fmt: skip
    return True


def _compared_seq(text: str) -> int:
    """The wrapper's own sequence number, which starts at 0 in some versions.

    A peer's is garbage in torch 2.0 and 2.1, so both sides get the reporter's.
    """
    seq = (fingerprint(text) or (0, None))[0] or 0
    return seq if 0 < seq <= _GARBAGE_SEQ else 1


def resolve_comparisons(attempt: Attempt) -> None:
    """Record comparisons as operations of the ranks that issued them.

    Messages use group ranks. If a writer's group rank differs from its rank, the group is a
    subgroup, and only what each writer says about itself can be attributed.
    """
    every = attempt.part(Comparisons).lines
    smaller = any(line.rank not in (None, place) for line, (place, _) in every)
    agreed: dict[tuple[int, Signature], int] = {}
    """Up to which rank all are known to have issued an operation."""
    for line, (place, sides) in _resolve_steps(every, attempt, smaller=smaller):
        seq, mine = _compared_seq(line.text), sides[place]

        def note(rank: int, what: Signature, group: GroupId = DEFAULT_GROUP) -> None:
            told = Operation(seq, what, group, state=_SCHEDULED, at_ns=line.at_ns)  # noqa: B023
            _operation(attempt, rank, told, line)  # noqa: B023

        if smaller:
            if line.rank is not None:
                note(line.rank, mine, _SMALLER)
            continue
        note(place, mine)
        for other, signature in sides.items():
            note(other, signature)
            # The comparison names the lowest rank that differs, so the ranks below it agree.
            below = min(other, _MAX_AGREEING) if other != place else 0
            for rank in range(agreed.get((seq, mine), 0), below):
                if rank != place:
                    note(rank, mine)
            agreed[seq, mine] = max(agreed.get((seq, mine), 0), below)
    every.clear()


def _resolve_steps(every: list[_Compared], attempt: Attempt, *, smaller: bool) -> list[_Compared]:
    """State which ranks met in different calls of one operation; returns the other comparisons.

    They passed the same, and only their sequence numbers differ: one side left a collective out
    before, or issued one too many. In a ``smaller`` group, the numbers in a message are no ranks.
    """
    numbers: dict[int, int] = {}
    apart: list[_Compared] = []
    others: list[_Compared] = []
    for compared in every:
        line, (place, sides) = compared
        told = {p: side[0] for p, side in _sides(line.text).items() if side is not None}
        met = {p: n for p, n in told.items() if n is not None and n <= _GARBAGE_SEQ}
        if len(sides) < 2 or len(set(sides.values())) > 1 or len(set(met.values())) < 2:
            others.append(compared)
            continue
        apart.append(compared)
        for rank, number in met.items():
            numbers[rank] = number
            if rank != place:  # the lowest rank that differs: the ranks below it agree
                numbers |= dict.fromkeys(range(min(rank, _MAX_AGREEING)), met[place])
    if apart and not smaller:
        line = apart[0][0]
        alike = [[r for r, n in numbers.items() if n == number] for number in set(numbers.values())]
        few, *more = sorted(alike, key=len)
        # The smaller side, if ranks that said nothing cannot even the sides out.
        accused = tuple(few if len(few) + 1 < len(more[-1]) else numbers)
        attempt.claim("fingerprint_mismatch", line, accused=accused, certain=False)
    return others


def fingerprint(text: str) -> tuple[int | None, Signature] | None:
    """The sequence number and signature in a ``CollectiveFingerPrint(...)``; None for others."""
    found = _FINGERPRINT.search(text)
    if not found:
        return None
    raw, shape = found["op"], found["shape"]
    sizes = None if shape is None else (tuple(int(d) for d in re.findall(r"\d+", shape)[:32]),)
    kinds = dtypes((found["dtype"] or "").lower())
    signature = Signature(operations.canonical(raw), raw, input_sizes=sizes, input_dtypes=kinds)
    return int(found["seq"][:18]) if found["seq"] else None, signature


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
