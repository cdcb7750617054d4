"""Reports of other libraries about ranks that are missing or passed something different.

Horovod's stall inspector, JAX's coordination service, Ray Train's reports and accelerate's shape
check. Most of them spread a report over several lines.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence, GroupId, Operation, rank_ranges
from hangscope.trace.model import Signature, State

_STALLED = "submitted to be reduced, gathered or broadcasted by subset of ranks"
_TENSOR = re.compile(r" \[(?P<what>missing|ready) ranks: (?P<ranks>[\d, ]{1,4096})\]")
_MISSING_HEAD = re.compile(r"^\s*Missing ranks:\s*$")
_MISSING_ROW = re.compile(r"^\s*(\d{1,7}): \[(.*)")
_TASKS_HEAD = re.compile(r"imed out task names:")
_TASK = re.compile(r"^\s*/job:[\w\-]+/(?:replica:\d+/)?task:(\d{1,7})")
_HEARTBEAT = re.compile(
    r"Task /job:[\w\-]+/(?:replica:\d+/)?task:(\d{1,7}) heartbeat timeout|"
    r"check alive failed, /job:[\w\-]+/(?:replica:\d+/)?task:(\d{1,7}) is down"
)
"""JAX's coordination service and TensorFlow's strategies report which task is gone."""
_UNHEALTHY = "(stopped sending heartbeats)"
_RENDEZVOUS = re.compile(
    r"(?:This|These) threads? ha(?:s|ve) been waiting for .{1,400}? and may be stuck"
)
"""XLA's threads that are to start a collective together; the others may still come."""
_UNSTUCK = "Thread is unstuck!"
_ABORTED = re.compile(r"BaseCollectiveExecutor::StartAbort (?!CANCELLED|OUT_OF_RANGE)\w")
_SHAPES_HEAD = "Cannot apply desired operation due to shape mismatches"
_SHAPES_OP = re.compile(r"Operation: `?[\w.]*?(\w+)`?\s*$")
_SHAPES_ROW = re.compile(r"^\s*- Process (\d{1,7}): \[([\d, ]*)\]")
_SHAPES_GROUP: GroupId = ("accelerate", "accelerate's check of shapes")
_UNREPORTED = re.compile(
    r"(?: to join the `[\w.]{1,60}` call: |^to join the `[\w.]{1,60}` call: |"
    r"ranks have not called it: )\[(?P<ranks>[\d, ]{1,4096})\]"
)
"""Ray Train's workers wait until all have reported; the warning is repeated."""
WORDS = (
    _STALLED, _SHAPES_HEAD, "imed out task names:", "to join the `", "ranks have not called it:",
    " heartbeat timeout", "check alive failed", _UNHEALTHY, "may be stuck", _UNSTUCK,
    "::StartAbort ",
)  # fmt: skip
_OPERATIONS = {"gather": "all_gather", "reduce": "all_reduce", "broadcast": "broadcast"}
_NEAR = 24
"""Maximum number of lines of a report."""
_LONGEST_NAME = 300
_MAX_TENSORS = 2000


class FrameworkReports:
    """Follows reports of several lines."""

    def __init__(self) -> None:
        self._missing: dict[str, frozenset[int]] = {}
        """From Horovod's newest report: the ranks that have not submitted each tensor."""
        self._stall: tuple[LogLine, int] | None = None
        self._rows_until = 0
        self._tasks: list[int] = []
        self._tasks_at: tuple[LogLine, int] | None = None
        self._lost: set[int] = set()
        self._lost_at: tuple[LogLine, int] | None = None
        self._lists_lost = False
        self._waits: tuple[LogLine, int] | None = None
        self._unreported: tuple[tuple[int, ...], LogLine, int] | None = None
        self._shapes_until = 0
        self._shapes_op = "all_gather"

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a report."""
        return (
            self._stall is not None
            or self._tasks_at is not None
            or self._lists_lost
            or line.number <= self._shapes_until
        )

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record what such a line says. Returns whether it was one."""
        return (
            self._horovod(line, at_ns)
            or self._ray_train(line, at_ns)
            or self._jax(line, at_ns)
            or self._gone(line, at_ns)
            or self._xla(line, at_ns, evidence)
            or self._accelerate(line, at_ns, evidence)
        )

    def finish(self, evidence: Evidence) -> None:
        """Add claims for the newest reports once the log has ended."""
        if self._stall is not None and self._missing:
            _horovod_claim(self._missing, *self._stall, evidence)
        if self._tasks_at is not None and self._tasks:
            line, at_ns = self._tasks_at
            evidence.claim("missing_ranks", line, at_ns, accused=tuple(self._tasks))
        if self._lost_at is not None and self._lost:
            line, at_ns = self._lost_at
            accused, alone = tuple(self._lost), len(self._lost) == 1
            evidence.claim("unreachable", line, at_ns, accused=accused, certain=alone)
        if self._waits is not None:
            evidence.claim("timeout", *self._waits, certain=False)
        if self._unreported is not None:
            ranks, line, at_ns = self._unreported
            said_by = line._replace(rank=None)
            evidence.claim("missing_ranks", said_by, at_ns, accused=ranks, certain=len(ranks) == 1)

    def _horovod(self, line: LogLine, at_ns: int) -> bool:
        text = line.text
        known = False
        if _STALLED in text:  # each report lists everything that is currently stalled
            self._missing, self._stall, known = {}, (line, at_ns), True
        if self._stall is None:
            return False
        for found in _TENSOR.finditer(text):
            ranks = frozenset(rank_ranges(found.group("ranks")))
            if found.group("what") == "ready":
                ranks = frozenset(~rank for rank in ranks)  # complements mark ranks that came
            name = text[max(0, found.start() - _LONGEST_NAME) : found.start()].rsplit(" ", 1)[-1]
            self._note(name, ranks)
            known = True
        if _MISSING_HEAD.match(text):
            self._rows_until = line.number + _NEAR
            return True
        row = _MISSING_ROW.match(text) if line.number <= self._rows_until else None
        if row:
            for name in row.group(2).rstrip("]").split(", ")[:_MAX_TENSORS]:
                self._note(name, self._missing.get(name, frozenset()) | {int(row.group(1))})
            return True
        return known

    def _note(self, name: str, ranks: frozenset[int]) -> None:
        if name in self._missing or len(self._missing) < _MAX_TENSORS:
            self._missing[name] = ranks

    def _ray_train(self, line: LogLine, at_ns: int) -> bool:
        found = _UNREPORTED.search(line.text)
        if found:
            self._unreported = rank_ranges(found.group("ranks")), line, at_ns
        return bool(found)

    def _jax(self, line: LogLine, at_ns: int) -> bool:
        if _TASKS_HEAD.search(line.text):
            self._tasks, self._tasks_at = [], (line, at_ns)
            return True
        if self._tasks_at is None or line.number > self._tasks_at[0].number + _NEAR * 40:
            return False
        found = _TASK.match(line.text)
        if found:
            self._tasks.append(int(found.group(1)))
        return bool(found)

    def _gone(self, line: LogLine, at_ns: int) -> bool:
        """Tasks whose heartbeat a service no longer receives."""
        if self._lists_lost:
            task = _TASK.match(line.text)
            self._lists_lost = task is not None
            if task:
                self._lost.add(int(task.group(1)))
                return True
        found = _HEARTBEAT.search(line.text)
        if not (found or _UNHEALTHY in line.text):
            return False
        self._lost_at = self._lost_at or (line, at_ns)
        if found:
            self._lost.add(int(found.group(1) or found.group(2)))
        self._lists_lost = found is None
        return True

    def _xla(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        if _RENDEZVOUS.search(line.text):
            self._waits = self._waits or (line, at_ns)
        elif _UNSTUCK in line.text:
            self._waits = None
        elif _ABORTED.search(line.text):
            evidence.claim("timeout", line, at_ns, certain=False)
        else:
            return False
        return True

    def _accelerate(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        if _SHAPES_HEAD in line.text:
            self._shapes_until = line.number + _NEAR
            return False  # an exception, too
        if line.number > self._shapes_until:
            return False
        found = _SHAPES_OP.search(line.text)
        if found:
            self._shapes_op = _OPERATIONS.get(found.group(1), found.group(1))
            return True
        found = _SHAPES_ROW.match(line.text)
        if not found:
            return False
        self._shapes_until = line.number + _NEAR
        notes = evidence.of(int(found.group(1)))
        if all(o.group != _SHAPES_GROUP for o in notes.operations):  # every rank prints them all
            shape = tuple(int(d) for d in re.findall(r"\d{1,18}", found.group(2))[:32])
            notes.operations.append(
                Operation(
                    seq=1,
                    signature=Signature(
                        op=self._shapes_op, raw=self._shapes_op, input_sizes=(shape,)
                    ),
                    group=_SHAPES_GROUP,
                    state=State.SCHEDULED,
                    at_ns=at_ns,
                    line=line.number,
                    text=line.excerpt,
                )
            )
        return True


def _horovod_claim(
    missing: dict[str, frozenset[int]], line: LogLine, at_ns: int, evidence: Evidence
) -> None:
    """Ranks that submitted none of the stalled tensors, or tensors that only some submitted."""
    world = evidence.world_size or 0
    sets = set()
    for ranks in missing.values():
        came = {~rank for rank in ranks if rank < 0}
        world = max(world, *(rank + 1 for rank in came), 0)
        sets.add(frozenset(set(range(world)) - came) if came else ranks)
    sets.discard(frozenset())
    if not sets:
        return
    absent = frozenset.intersection(*sets)
    if absent:
        few = not world or len(absent) * 2 <= world
        evidence.claim("missing_ranks", line, at_ns, accused=tuple(absent), certain=few)
    else:  # each waits with a tensor that the others have not submitted
        least = min(len(ranks) for ranks in sets)
        smallest = [ranks for ranks in sets if len(ranks) == least]
        odd = smallest[0] if len(smallest) == 1 else frozenset.union(*sets)
        evidence.claim("fingerprint_mismatch", line, at_ns, accused=tuple(odd), certain=False)
