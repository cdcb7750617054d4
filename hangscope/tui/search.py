"""The search behind ``/``: ranks, hosts, operations and sequence numbers. Pure functions."""

from __future__ import annotations

import re

import numpy as np

from hangscope.tui.snapshot import Snapshot


def find(
    snapshot: Snapshot, wanted: str, rank: int | None, record: int | None, step: int = 1
) -> tuple[int, int | None] | None:
    """(rank, record) of the next match after (`rank`, `record`); wraps around at the end.

    ``12`` or ``rank 12`` is a rank, ``#118`` a sequence number, anything else part of an
    operation's name, a host or a state. `step` -1 searches backwards.
    """
    wanted = wanted.strip().lower()
    if not wanted or not snapshot.ranks:
        return None
    if match := re.fullmatch(r"(?:rank\s*)?(\d+)", wanted):
        number = int(match.group(1))
        return (number, snapshot.record_at_divergence(number)) if number in snapshot.ranks else None
    hit = _operations(snapshot, wanted, rank, record, step)
    return hit if hit is not None else _ranks(snapshot, wanted, rank, step)


def _operations(
    snapshot: Snapshot, wanted: str, rank: int | None, record: int | None, step: int
) -> tuple[int, int | None] | None:
    """The next operation with a matching name and, if given, number."""
    name, _, number = wanted.partition("#")
    name = name.strip()
    records = snapshot.trace.records
    if not len(records) or (number and not number.isdigit()):
        return None
    table = [name in s.op.lower() for s in snapshot.trace.signatures] + [not name]
    hits = np.asarray(table)[records["signature"]]
    if number:
        hits = hits & (records["collective_seq"] == int(number))
    elif not name:
        return None
    rows = np.flatnonzero(hits)
    if not len(rows):
        return None
    here = -1 if rank is None else snapshot.rows(rank)[0] - 1
    here = here if record is None else record
    after = rows[rows > here] if step > 0 else rows[rows < here][::-1]
    row = int(after[0]) if len(after) else int(rows[0] if step > 0 else rows[-1])
    return int(records["rank"][row]), row


def _ranks(
    snapshot: Snapshot, wanted: str, rank: int | None, step: int
) -> tuple[int, int | None] | None:
    """The next rank whose host, state, role or phase matches."""
    matching = [r for r in snapshot.ranks if wanted in _words(snapshot, r)]
    if not matching:
        return None
    here = -1 if rank is None else rank
    ahead = [r for r in matching if r > here] if step > 0 else [r for r in matching if r < here]
    if step > 0:
        chosen = ahead[0] if ahead else matching[0]
    else:
        chosen = ahead[-1] if ahead else matching[-1]
    return chosen, snapshot.record_at_divergence(chosen)


def _words(snapshot: Snapshot, rank: int) -> str:
    report, facts = snapshot.reports.get(rank), snapshot.trace.ranks.get(rank)
    words = [facts.host or ""] if facts is not None else ["no source"]
    if report is not None:
        words += [report.state, report.role, report.phase or "", report.exit or ""]
    return " ".join(words).lower()
