"""The diagnosis as JSON, schema ``hangscope/diagnosis/2``.

Keys may be added, but are never removed or given another meaning. What a rank's row does not have
is unknown, or none.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson

from hangscope.diagnosis.model import (
    SCHEMA,
    Diagnosis,
    Finding,
    GroupRef,
    LastOperation,
    RankReport,
    Side,
    WaitEdge,
)
from hangscope.report.action import action_of
from hangscope.report.escape import visible_json
from hangscope.trace.model import Source, Stack

_INT64 = 2**63
_MANY_EDGES = 4096
_MANY_FILES = 1024
"""Of more files only so many are listed, and folders are not told apart."""
BY_RANK = ("ranks", "stacks", "operations", "wait_for", "sources")
"""Keys whose size grows with the number of ranks."""


def to_json(diagnosis: Diagnosis, *, brief: bool = False) -> bytes:
    """`diagnosis` as one JSON document, UTF-8, a line per row; it is safe to print on a terminal.

    ``brief``: without the rows for ranks, waits and files.
    """
    document = to_dict(diagnosis)
    for name in BY_RANK if brief else ():
        del document[name]
    try:
        return visible_json(_lines(document))
    except TypeError:  # lone surrogates or integers beyond 64 bits from a damaged dump
        return visible_json(_lines(_encodable(document)))


def _lines(document: dict[str, Any]) -> bytes:
    """Each key on a line, lists of rows with a line for each row."""
    parts = []
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            rows = b",\n    ".join(_dumped(row) for row in value)
            parts.append(b'  "%s": [\n    %s\n  ]' % (name.encode(), rows))
        else:
            parts.append(b'  "%s": %s' % (name.encode(), _dumped(value)))
    return b"{\n" + b",\n".join(parts) + b"\n}"


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


class _Table:
    """Values that many rows share, each once."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def of(self, value: Any) -> int | None:
        """The number of a value; None for none."""
        return self.numbers.setdefault(value, len(self.numbers)) if value else None


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """`diagnosis` as plain dictionaries, lists and numbers."""
    stacks, operations = _Table(), _Table()
    rows = [_rank(report, stacks, operations) for report in diagnosis.ranks]
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict.value,
        "culprits": list(diagnosis.culprits),
        "hosts": list(diagnosis.hosts),
        "confidence": diagnosis.confidence.value,
        "summary": diagnosis.summary,
        "world_size": diagnosis.world_size,
        "backend": diagnosis.backend or None,
        "live": diagnosis.live,
        "stalled_s": diagnosis.stalled_s,
        "action": action_of(diagnosis),
        "findings": [_finding(f) for f in diagnosis.findings],
        "warnings": list(diagnosis.warnings),
        "notes": list(diagnosis.notes),
        "missing": [
            {"host": host or None, "ranks": list(ranks)} for host, ranks in diagnosis.missing
        ],
        "ranks": rows,
        "stacks": [frames(stack) for stack in stacks.numbers],
        "operations": [_last(last) for last in operations.numbers],
        "wait_for": [_edge(e) for e in _told_edges(diagnosis.wait_for)],
        "sources": _sources(diagnosis.sources),
    }


def frames(stack: Stack) -> list[dict[str, Any]]:
    """A stack as the Flight Recorder writes it, innermost frame first."""
    return [{"name": f.name, "filename": f.filename, "line": f.line} for f in stack]


def _rank(report: RankReport, stacks: _Table, operations: _Table) -> dict[str, Any]:
    row = {
        "rank": report.rank,
        "role": report.role,
        "state": report.state,
        "host": report.host,
        "pid": report.pid,
        "waiting_for": list(report.waiting_for) or None,
        "waiting_s": None if report.waiting_s is None else round(report.waiting_s, 1),
        "last": operations.of(report.last),
        "stack": stacks.of(report.stack),
        "phase": report.phase,
        "exit": report.exit,
    }
    return {name: value for name, value in row.items() if value is not None}


def _last(last: LastOperation) -> dict[str, Any]:
    return {"group": last.group, "seq": last.seq, "op": last.op}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value,
        "culprits": list(finding.culprits),
        "victims": list(finding.victims),
        "hosts": list(finding.hosts),
        "confidence": finding.confidence.value,
        "summary": finding.summary,
        "why": finding.why,
        "group": _group(finding.group),
        "seq": finding.seq,
        "op": finding.op,
        "sides": [_side(s) for s in finding.sides],
        "evidence": list(finding.evidence),
        "unknowns": list(finding.unknowns),
        "fix": finding.fix,
        "playbook": finding.playbook,
        "began_ns": finding.began_ns or None,
    }


def _group(group: GroupRef | None) -> dict[str, Any] | None:
    if group is None:
        return None
    return {"name": group.name, "desc": group.desc, "ranks": list(group.ranks)}


def _side(side: Side) -> dict[str, Any]:
    return {
        "ranks": list(side.ranks),
        "op": side.op,
        "seq": side.seq,
        "input_sizes": _sizes(side.input_sizes),
        "output_sizes": _sizes(side.output_sizes),
        "dtypes": None if side.dtypes is None else list(side.dtypes),
        "reduce_op": side.reduce_op,
        "root": side.root,
        "tag": side.tag,
        "peer": side.peer,
        "stack": frames(side.stack),
        "full_stack": frames(side.full_stack),
        "differs_at": side.differs_at,
        "waiting_s": side.waiting_s,
        "activity": side.activity,
        "last_op": side.last_op,
        "last_seq": side.last_seq,
        "last_age_s": side.last_age_s,
    }


def _sizes(sizes: tuple[tuple[int, ...], ...] | None) -> list[list[int]] | None:
    return None if sizes is None else [list(s) for s in sizes]


def _told_edges(edges: Sequence[WaitEdge]) -> Sequence[WaitEdge]:
    """The edges; of very many, one waiter for each awaited rank: ranks' rows tell the others."""
    if len(edges) <= _MANY_EDGES:
        return edges
    first: dict[tuple[int, str, int], WaitEdge] = {}
    for edge in edges:
        first.setdefault((edge.on, edge.group, edge.seq), edge)
    return tuple(first.values())


def _edge(edge: WaitEdge) -> dict[str, Any]:
    return {
        "waiter": edge.waiter,
        "on": edge.on,
        "group": edge.group,
        "seq": edge.seq,
        "op": edge.op,
    }


def _sources(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Files by format and folder, each as name, rank and number of records.

    ``path``, ``rank`` and ``records`` of a row are those of its file; if it has several, their
    folder, no rank and the sum. ``count`` says how many files a row has. Of more than
    `_MANY_FILES` in all, a row has those of all folders, lists only as many, and ``dropped`` is the
    sum of what they have lost.
    """
    many = len(sources) > _MANY_FILES
    above = _common_folder(sources) if many else ""
    found: dict[tuple[str, str, str, int], list[list[Any]]] = {}
    lost: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for source in sources:
        folder, slash, name = source.path.rpartition("/")
        folder += slash
        if many:
            folder, name = above, source.path.removeprefix(above)
        apart = int(source.dropped > 0) if many else source.dropped
        key = (source.format, source.version, folder, apart)
        found.setdefault(key, []).append([name, source.rank, source.records])
        lost[key] = lost[key] + source.dropped if many else source.dropped
    return [
        {
            "path": key[2] + (rows[0][0] if len(rows) == 1 else "") or ".",
            "format": key[0],
            "version": key[1],
            "rank": rows[0][1] if len(rows) == 1 else None,
            "records": sum(records for _, _, records in rows),
            "dropped": lost[key],
            "folder": key[2],
            "count": len(rows),
            "files": rows[:_MANY_FILES],
        }
        for key, rows in found.items()
    ]


def _common_folder(sources: Sequence[Source]) -> str:
    """The folder that holds all of them, with a slash at its end; empty if none does."""
    folders = zip(*(source.path.split("/")[:-1] for source in sources), strict=False)
    shared = itertools.takewhile(lambda names: len(set(names)) == 1, folders)
    return "".join(f"{names[0]}/" for names in shared)


def _encodable(value: Any) -> Any:
    """`value` with everything that JSON or UTF-8 cannot represent converted to text."""
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_encodable(v) for v in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    return value
