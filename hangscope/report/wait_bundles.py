"""Condenses the wait-for graph: ranks that wait for the same thing form one bundle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangscope.diagnosis.model import Diagnosis, Finding, Side, WaitEdge
from hangscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Bundle:
    """`waiters` all wait on the ranks `on`, in the same operation of the same group."""

    waiters: tuple[int, ...]
    on: tuple[int, ...]
    group: str
    seq: int
    op: str


def bundles(edges: Iterable[WaitEdge]) -> tuple[Bundle, ...]:
    """The edges with equal waits joined, most waiters first."""
    on_of: dict[tuple[int, str, int, str], set[int]] = {}
    for edge in edges:
        on_of.setdefault((edge.waiter, edge.group, edge.seq, edge.op), set()).add(edge.on)
    waiters_of: dict[tuple[tuple[int, ...], str, int, str], set[int]] = {}
    for (waiter, group, seq, op), on in on_of.items():
        waiters_of.setdefault((tuple(sorted(on)), group, seq, op), set()).add(waiter)
    joined = [
        Bundle(tuple(sorted(waiters)), on, group, seq, op)
        for (on, group, seq, op), waiters in waiters_of.items()
    ]
    return tuple(sorted(joined, key=lambda b: (-len(b.waiters), b.waiters, b.group, b.seq)))


def group_labels(diagnosis: Diagnosis, trace: Trace | None = None) -> dict[str, str]:
    """Map from group names in the graph to the labels shown to users."""
    labels = {g.name: g.label for g in trace.groups} if trace is not None else {}
    labels.update((e.group, e.label) for e in diagnosis.wait_for if e.label)
    labels.update((f.group.name, f.group.label) for f in diagnosis.findings if f.group is not None)
    return labels


def side_groups(diagnosis: Diagnosis, finding: Finding) -> dict[Side, str]:
    """The group that each side waits in, if the sides wait in different groups; else empty.

    Ranks on a cycle may wait in operations of the same name and number but of different groups.
    """
    labels_of = group_labels(diagnosis)
    groups_of: dict[tuple[int, int | None, str | None], set[str]] = {}
    for edge in diagnosis.wait_for:
        label = labels_of.get(edge.group, edge.group)
        groups_of.setdefault((edge.waiter, edge.seq, edge.op), set()).add(label)
    found = {}
    for side in finding.sides:
        labels = [groups_of.get((rank, side.seq, side.op), set()) for rank in side.ranks[:1]]
        if side.op is not None and labels and len(labels[0]) == 1:
            found[side] = next(iter(labels[0]))
    return found if len(set(found.values())) > 1 else {}
