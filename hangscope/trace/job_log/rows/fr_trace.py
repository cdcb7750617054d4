"""What torch's own analysis of Flight Recorder dumps prints (``torchfrtrace``, the debug server).

The debug server (``torch.distributed.debug``) prints the same as a table, one collective a row.

For each group it tells of the collective that some members have not joined: its number, who is
missing and, from torch 2.6 on, who belongs to the group. Of operations that do not go together it
calls culprits whoever differs from the first rank that it looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.trace import clean, operations
from hangscope.trace.job_log.evidence.attempt import MAX_MENTIONS, Attempt, rank_ranges
from hangscope.trace.job_log.evidence.notes import DEFAULT_GROUP, GroupId, Operation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.row import Report, Said, row
from hangscope.trace.model import Frame, Signature, State

_CULPRIT = re.compile(r"Culprit rank (\d{1,7}); Error type: (\w+)")
_NO_MISMATCH = ("COLLECTIVE_STATE_MISMATCH", "UNDECIDED")
"""That one rank has finished what another one has not is no mistake of either."""
_ROW = re.compile(
    r"^(?:INFO:[\w ]{1,40}:)?\s*(?P<key>internal record id|group info|collective|missing ranks|"
    r"(?:total )?(?:in|out)put (?:sizes|numel)|world size|expected ranks|collective state|"
    r"error msg): (?P<told>.*)"
)
_RANKS = re.compile(r"\{([\d, ]*)\}\s*$")
_FRAME = re.compile(r"\{'name': '([^']{1,200})', 'filename': '([^']{1,400})', 'line': (\d{1,8})\}")
_MISSING_CELL = re.compile(r"\}\]\s[\s\d]*\{([\d, ]+)\}")
_OTHER_CALL = re.compile(r"[{ ](\d{1,7}): Collective\(")
_IN_TABLE = "collective {seq} in the tables of torch's debug server"
_NEAR = 400
"""Lines from the first of a report to its last, of which others may write most."""


@dataclass(slots=True)
class _Report:
    """One collective that is not joined by all, or not with the same operation."""

    head: LogLine
    seq: int
    group: GroupId = DEFAULT_GROUP
    op: str = ""
    missing: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    stack: tuple[Frame, ...] = ()


def _table_row(said: Said, attempt: Attempt) -> None:
    """One collective of the debug server's table."""
    seq, rest = said.number("seq", 18) or 0, said.line.text[said.found.end() :]
    report = _Report(said.line.saying(_IN_TABLE.format(seq=seq)), seq)
    report.group = (said.text("group")[:100], said.text("desc").rpartition(":")[2][:200])
    report.op, report.members = said.text("op").rpartition(":")[2], said.ranks("members")
    report.stack = tuple(
        Frame(clean.name(name), clean.name(file), int(line))
        for name, file, line in _FRAME.findall(rest[: rest.find("}]") + 1])
    )
    missing = _MISSING_CELL.search(rest)
    report.missing = rank_ranges(missing[1]) if missing else ()
    culprits = {int(rank) for rank in _OTHER_CALL.findall(rest)}
    if culprits:
        _accuse(report, culprits, attempt)
    elif report.missing or said.text("state") != "completed":
        _note(report, attempt)


def _follow(said: Said, attempt: Attempt) -> Report:
    """Note the lines of a report, between which other ranks may write."""
    report = _Report(said.line, said.number("seq", 18) or 0)
    differs = said.text("errors")
    line = yield True
    while line.number <= said.line.number + _NEAR:
        found = _ROW.match(line.text)
        key, text = (found["key"], found["told"].strip()) if found else ("", "")
        if key == "group info":
            name, _, desc = text.partition(":")
            report.group = (name[:100], desc[:200])
        elif key == "collective":
            report.op = text.rpartition(":")[2]
        elif key == "missing ranks":
            report.missing = _ranks(text)
        elif key == "expected ranks":
            whole = report.group == DEFAULT_GROUP and text.isdecimal()
            report.members = tuple(range(int(text[:6]))) if whole else _ranks(text)
        elif key == "error msg":
            told = _CULPRIT.findall(text)
            _accuse(report, {int(r) for r, kind in told if kind not in _NO_MISMATCH}, attempt)
        elif key == "collective state" and not differs and text != "completed":
            _note(report, attempt)
        last = key == "error msg" or (key == "collective state" and not differs)
        line = yield found is not None
        if last:
            return


def _ranks(text: str) -> tuple[int, ...]:
    found = _RANKS.search(text)
    return rank_ranges(found[1]) if found else ()


def _note(report: _Report, attempt: Attempt) -> None:
    """Those who joined wait for those who are missing."""
    members, missing = sorted(set(report.members)), set(report.missing)
    attempt.mentions += len(members)
    op, group = operations.canonical(report.op), report.group
    if not members or not missing.issubset(members) or attempt.mentions > MAX_MENTIONS:
        attempt.claim(
            "missing_ranks", report.head, accused=report.missing, group=group,
            seq=report.seq, op=op or None, certain=False,
        )  # fmt: skip
        return
    attempt.group_sizes[group[0]] = len(members)
    if group == DEFAULT_GROUP:
        attempt.has_ranks(members[-1] + 1)
    for place, rank in enumerate(members):
        notes = attempt.of(rank)
        notes.places.setdefault(group, place)
        if rank not in missing:
            told = Operation(report.seq, Signature(op, report.op), group, state=State.SCHEDULED)
            told.at_ns, told.stack = report.head.at_ns, report.stack
            notes.issued(told, report.head)


def _accuse(report: _Report, culprits: set[int], attempt: Attempt) -> None:
    """Accuse the smaller side, whichever of them torch calls the culprits."""
    others = set(report.members) - culprits
    if not culprits or not others:
        return
    odd = min(culprits, others, key=len) if len(culprits) != len(others) else culprits | others
    said = f"at collective {report.seq} ranks {_some(culprits)} differ from ranks {_some(others)}"
    attempt.claim(
        "fingerprint_mismatch", report.head.saying(f"torch's analysis of the dumps: {said}"),
        accused=tuple(odd), group=report.group, seq=report.seq,
        op=operations.canonical(report.op) or None, certain=False,
    )  # fmt: skip


def _some(ranks: set[int]) -> str:
    shown = sorted(ranks)[:8]
    return ", ".join(map(str, shown)) + (", ..." if len(ranks) > len(shown) else "")


# fmt: off
ROWS = (
    row("fr-trace-missing", "missing ranks",
        r"Not all ranks joining collective(?:[,:] sequence number:)? (?P<seq>\d{1,18})"
        r"(?: at entry \d+)?\s*(?:$|\n)", _follow,
        "Not all ranks joining collective, sequence number: 118",
        "Not all ranks joining collective 5 at entry 4",
        "Not all ranks joining collective: sequence number: 31117", since="torch 2.5"),
    row("fr-trace-errors", "mismatch",
        r"Collective sequence number: (?P<seq>\d{1,18}) has (?P<errors>errors)\b", _follow,
        "Collective sequence number: 7 has errors", since="torch 2.6"),
    row("debug-server-table", "missing ranks",
        r"^\s*\d+\s+(?P<group>\S+)\s+(?:True|False)\s+(?P<seq>\d{1,18})\s+-?\d+\s+\d+\s+"
        r"(?P<desc>\S.{0,200}?)\s{2,}(?P<op>\w+:\S+)\s{2,}\[.{0,4000}?"
        r"\{(?P<members>[\d, ]+)\}\s{2,}(?P<state>\w+)\s{2,}\[(?=\{'name': )", _table_row,
        "   1           0  False                           2             0            1  "
        "0:default_pg  nccl:all_reduce    [[4]]          [[4]]           {0, 1, 2, 3}      "
        "scheduled           [{'name': 'step', 'filename': '/app/train.py', 'line': 44}]    {2}",
        since="torch 2.10"),
)
# fmt: on
