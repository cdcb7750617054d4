"""The diagnosis as JSON, schema ``hangscope/diagnosis/1``.

Keys may be added, but are never removed or given another meaning.
"""

from __future__ import annotations

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
from hangscope.report.escape import visible_json
from hangscope.trace.model import Source, Stack

_INT64 = 2**63


def to_json(diagnosis: Diagnosis) -> bytes:
    """`diagnosis` as one indented JSON document, UTF-8; it is safe to print on a terminal."""
    document = to_dict(diagnosis)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    try:
        return visible_json(orjson.dumps(document, option=options))
    except TypeError:  # lone surrogates or integers beyond 64 bits from a damaged dump
        return visible_json(orjson.dumps(_encodable(document), option=options))


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """`diagnosis` as plain dictionaries, lists and numbers."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict.value,
        "culprits": list(diagnosis.culprits),
        "confidence": diagnosis.confidence.value,
        "summary": diagnosis.summary,
        "world_size": diagnosis.world_size,
        "backend": diagnosis.backend or None,
        "live": diagnosis.live,
        "stalled_s": diagnosis.stalled_s,
        "ranks": [_rank(r) for r in diagnosis.ranks],
        "findings": [_finding(f) for f in diagnosis.findings],
        "wait_for": [_edge(e) for e in diagnosis.wait_for],
        "sources": [_source(s) for s in diagnosis.sources],
        "warnings": list(diagnosis.warnings),
        "notes": list(diagnosis.notes),
    }


def frames(stack: Stack) -> list[dict[str, Any]]:
    """A stack as the Flight Recorder writes it, innermost frame first."""
    return [{"name": f.name, "filename": f.filename, "line": f.line} for f in stack]


def _rank(report: RankReport) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "role": report.role,
        "state": report.state,
        "host": report.host,
        "pid": report.pid,
        "waiting_for": list(report.waiting_for) or None,
        "waiting_s": report.waiting_s,
        "last": _last(report.last),
        "stack": frames(report.stack),
        "phase": report.phase,
        "exit": report.exit,
    }


def _last(last: LastOperation | None) -> dict[str, Any] | None:
    return None if last is None else {"group": last.group, "seq": last.seq, "op": last.op}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value,
        "culprits": list(finding.culprits),
        "victims": list(finding.victims),
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


def _edge(edge: WaitEdge) -> dict[str, Any]:
    return {
        "waiter": edge.waiter,
        "on": edge.on,
        "group": edge.group,
        "seq": edge.seq,
        "op": edge.op,
    }


def _source(source: Source) -> dict[str, Any]:
    return {
        "path": source.path,
        "format": source.format,
        "version": source.version,
        "rank": source.rank,
        "records": source.records,
        "dropped": source.dropped,
    }


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
