"""What torch's own analysis of Flight Recorder dumps prints (``torchfrtrace``, the debug server).

For each group it tells of the collective that some members have not joined: its number, who is
missing and, from torch 2.6 on, who belongs to the group. Of operations that do not go together it
calls culprits whoever differs from the first rank that it looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.trace import operations
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import (
    DEFAULT_GROUP,
    MAX_MENTIONS,
    MAX_SAME_NUMBER,
    Evidence,
    GroupId,
    Operation,
    rank_ranges,
)
from hangscope.trace.model import Signature, State

_HEAD = re.compile(
    r"Not all ranks joining collective(?:, sequence number:)? (?P<seq>\d{1,18})"
    r"(?: at entry \d+)?\s*$"
)
_ERRORS = re.compile(r"Collective sequence number: (?P<seq>\d{1,18}) has errors\s*$")
_CULPRIT = re.compile(r"Culprit rank (\d{1,7}); Error type: (\w+)")
_NO_MISMATCH = ("COLLECTIVE_STATE_MISMATCH", "UNDECIDED")
"""That one rank has finished what another one has not is no mistake of either."""
_ROW = re.compile(
    r"^(?:INFO:[\w ]{1,40}:)?\s*(?P<key>internal record id|group info|collective|missing ranks|"
    r"(?:total )?(?:in|out)put (?:sizes|numel)|world size|expected ranks|collective state|"
    r"error msg): (?P<told>.*)"
)
_RANKS = re.compile(r"\{([\d, ]*)\}\s*$")
_NEAR = 400
"""Lines from the first of a report to its last, of which others may write most."""
WORDS = ("ranks joining collective", "Collective sequence number: ")


@dataclass(slots=True)
class _Report:
    """One collective that is not joined by all, or not with the same operation."""

    head: LogLine
    at_ns: int
    seq: int
    differs: bool
    group: GroupId = DEFAULT_GROUP
    op: str = ""
    missing: tuple[int, ...] = ()
    members: tuple[int, ...] = ()


class FrTrace:
    """Follows such reports line by line."""

    def __init__(self) -> None:
        self._report: _Report | None = None

    def follows(self, line: LogLine) -> bool:
        """Whether the line may belong to a report that has begun."""
        return self._report is not None and line.number <= self._report.head.number + _NEAR

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Note one line of a report. Returns whether it was one."""
        head, differs = _HEAD.search(line.text), _ERRORS.search(line.text)
        begins = head or differs
        if begins:
            self._report = _Report(line, at_ns, int(begins["seq"]), differs=differs is not None)
            return True
        row = _ROW.match(line.text)
        if self._report is None or row is None:
            return False  # another rank writes in between
        key, text = row["key"], row["told"].strip()
        if key == "group info":
            name, _, desc = text.partition(":")
            self._report.group = (name[:100], desc[:200])
        elif key == "collective":
            self._report.op = text.rpartition(":")[2]
        elif key == "missing ranks":
            self._report.missing = _ranks(text)
        elif key == "expected ranks":
            whole = self._report.group == DEFAULT_GROUP and text.isdecimal()
            self._report.members = tuple(range(int(text[:6]))) if whole else _ranks(text)
        elif key == "error msg":
            _note_culprits(self._report, text, evidence)
            self._report = None
        elif key == "collective state" and not self._report.differs:
            if text != "completed":
                _note(self._report, evidence)
            self._report = None
        return True


def _ranks(text: str) -> tuple[int, ...]:
    found = _RANKS.search(text)
    return rank_ranges(found[1]) if found else ()


def _note(report: _Report, evidence: Evidence) -> None:
    """Those who joined wait for those who are missing."""
    members = sorted(set(report.members))
    missing = set(report.missing)
    evidence.mentions += len(members)
    if not missing.issubset(members) or evidence.mentions > MAX_MENTIONS:
        members = []
    if not members:
        evidence.claim(
            "missing_ranks",
            report.head,
            report.at_ns,
            accused=report.missing,
            group=report.group,
            seq=report.seq,
            op=operations.canonical(report.op) or None,
            certain=False,
        )
        return
    evidence.group_sizes[report.group[0]] = len(members)
    if report.group == DEFAULT_GROUP:
        evidence.world_size = evidence.world_size or members[-1] + 1
    for place, rank in enumerate(members):
        notes = evidence.of(rank)
        notes.places.setdefault(report.group, place)
        known = notes.numbered(report.seq)
        if rank in missing or len(known) >= MAX_SAME_NUMBER:
            continue
        if any(operation.group == report.group for operation in known):
            continue  # it prints the same every few seconds
        notes.operations.append(
            Operation(
                seq=report.seq,
                signature=Signature(op=operations.canonical(report.op), raw=report.op),
                group=report.group,
                state=State.SCHEDULED,
                at_ns=report.at_ns,
                line=report.head.number,
                text=report.head.excerpt,
            )
        )


def _note_culprits(report: _Report, text: str, evidence: Evidence) -> None:
    """Accuse the smaller side, whichever of them torch calls the culprits."""
    culprits = {int(rank) for rank, kind in _CULPRIT.findall(text) if kind not in _NO_MISMATCH}
    others = set(report.members) - culprits
    if not culprits or not others:
        return
    odd = min(culprits, others, key=len) if len(culprits) != len(others) else culprits | others
    said = f"at collective {report.seq} ranks {_some(culprits)} differ from ranks {_some(others)}"
    evidence.claim(
        "fingerprint_mismatch",
        report.head.saying(f"torch's analysis of the dumps: {said}"),
        report.at_ns,
        accused=tuple(odd),
        group=report.group,
        seq=report.seq,
        op=operations.canonical(report.op) or None,
        certain=False,
    )


def _some(ranks: set[int]) -> str:
    shown = sorted(ranks)[:8]
    return ", ".join(map(str, shown)) + (", ..." if len(ranks) > len(shown) else "")
