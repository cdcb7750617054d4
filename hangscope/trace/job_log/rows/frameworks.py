"""Reports of other libraries about ranks that are missing or passed something different.

Horovod's stall inspector, JAX's coordination service, Ray Train's reports and accelerate's shape
check. Most of them spread a report over several lines, and the newest report counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.attempt import Attempt, rank_ranges
from hangscope.trace.job_log.evidence.notes import GroupId, Operation
from hangscope.trace.job_log.rows import gloo
from hangscope.trace.job_log.rows.row import Report, Said, row
from hangscope.trace.job_log.rows.statements import claim
from hangscope.trace.model import ClaimKind, Signature, State

_TENSOR = re.compile(r" \[(?P<what>missing|ready) ranks: (?P<ranks>[\d, ]{1,4096})\]")
_MISSING_HEAD = re.compile(r"^\s*(?:Missing|Stalled) ranks:\s*$")
_MISSING_ROW = re.compile(r"^\s*(\d{1,7}): \[(.*)")
_STALLED = "submitted to be reduced, gathered or broadcasted by subset of ranks"
_TASK = re.compile(r"^\s*/job:[\w\-]+/(?:replica:\d+/)?task:(\d{1,7})")
_SHAPES_OP = re.compile(r"Operation: `?[\w.]*?(\w+)`?\s*$")
_SHAPES_ROW = re.compile(r"^\s*- Process (\d{1,7}): \[([\d, ]*)\]")
_SHAPES_GROUP: GroupId = ("accelerate", "accelerate's check of shapes")
_OPERATIONS = {"gather": "all_gather", "reduce": "all_reduce", "broadcast": "broadcast"}
_UCC_ROW = re.compile(
    r"^\s*(?:Ranks \[([\d ]{0,4096})\] are (last known )?|Comms status of other ranks)"
)
_NEAR = 24
"""Maximum number of lines of a report."""
_LONGEST_NAME = 300
_MAX_TENSORS = 2000

_Missing = dict[str, frozenset[int]]
"""The ranks that have not submitted each tensor. Complements mark ranks that have."""


def _horovod(said: Said, attempt: Attempt) -> Report:
    """Each report lists everything that is currently stalled; an excerpt may begin inside one."""
    missing: _Missing = {}

    def note(name: str, ranks: frozenset[int]) -> None:
        if name in missing or len(missing) < _MAX_TENSORS:
            missing[name] = ranks

    line, rows_until, known = said.line, 0, True
    while True:
        for found in _TENSOR.finditer(line.text):
            ranks = frozenset(rank_ranges(found["ranks"]))
            ranks = ranks if found["what"] == "missing" else frozenset(~rank for rank in ranks)
            before = line.text[max(0, found.start() - _LONGEST_NAME) : found.start()]
            note(before.rsplit(" ", 1)[-1], ranks)
            known = True
        if _MISSING_HEAD.match(line.text):
            rows_until, known = line.number + _NEAR, True
        listed = _MISSING_ROW.match(line.text) if line.number <= rows_until else None
        if listed:
            for name in listed[2].rstrip("]").split(", ")[:_MAX_TENSORS]:
                note(name, missing.get(name, frozenset()) | {int(listed[1])})
        if missing or _horovod not in attempt.at_end:
            attempt.at_end[_horovod] = partial(_stalled, missing, said, attempt)
        line = yield known or listed is not None
        known = False
        if _STALLED in line.text:
            return  # the next report


def _stalled(missing: _Missing, said: Said, attempt: Attempt) -> None:
    """Ranks that submitted none of the stalled tensors, or tensors that only some submitted."""
    world = attempt.world_size or 0
    sets = set()
    for ranks in missing.values():
        came = {~rank for rank in ranks if rank < 0}
        world = max(world, *(rank + 1 for rank in came), 0)
        sets.add(frozenset(set(range(world)) - came) if came else ranks)
    sets.discard(frozenset())
    if not sets:
        if not missing:
            attempt.claim("timeout", said.line, certain=False)
        return
    shown = ", ".join([*missing][:2])
    text = f"Horovod: {len(missing)} tensors wait for some ranks, such as {shown}"
    tell, absent = (
        partial(attempt.claim, line=said.line.saying(text)),
        tuple(frozenset.intersection(*sets)),
    )
    if absent:
        few = not world or len(absent) * 2 <= world
        tell("missing_ranks", accused=absent, certain=few)
        return
    # Each waits with a tensor that the others have not submitted.
    least = min(map(len, sets))
    smallest = [ranks for ranks in sets if len(ranks) == least]
    odd = smallest[0] if len(smallest) == 1 else frozenset.union(*sets)
    tell("fingerprint_mismatch", accused=tuple(odd), certain=False)


def _ray_train(said: Said, attempt: Attempt) -> None:
    """Ray Train's workers wait until all have reported; the warning is repeated."""
    ranks, line = said.ranks("ranks"), said.line._replace(rank=None)
    attempt.at_end[_ray_train] = partial(
        attempt.claim, "missing_ranks", line, accused=ranks, certain=len(ranks) == 1
    )


@dataclass(slots=True)
class _LostTasks:
    """JAX's tasks whose heartbeat is missing."""

    tasks: set[int] = field(default_factory=set)


def _tasks(said: Said, attempt: Attempt) -> Report:
    """JAX lists the tasks that did not come to a barrier, one a line. The newest list counts, and
    every task whose heartbeat is missing, which a line states alone or a list."""
    silent = "task" in said.found.groupdict()
    tasks = attempt.part(_LostTasks).tasks if silent else set[int]()

    def add(task: str) -> None:
        tasks.add(int(task))
        if silent:
            attempt.at_end.setdefault(_LostTasks, tell)
        else:
            attempt.at_end[_tasks] = tell

    def tell() -> None:
        kind: ClaimKind = "unreachable" if silent else "missing_ranks"
        alone = not silent or len(tasks) == 1
        attempt.claim(kind, said.line, accused=tuple(tasks), certain=alone)

    if said.text("task"):
        add(said.text("task"))
    line = yield True
    while line.number <= said.line.number + _NEAR * 40:
        found = _TASK.match(line.text)
        if found:
            add(found[1])
        line = yield found is not None


def _ucc(said: Said, attempt: Attempt) -> Report:
    """UCC's check of a communicator: who it thinks is late, then how far each rank has got."""
    accused, heard = set(said.ranks("accused")), set[int]()

    def tell() -> None:
        few = len(accused) * 2 <= len(heard | accused)
        for rank in sorted(heard)[:_MAX_TENSORS]:
            attempt.of(rank)
        attempt.claim(
            "missing_ranks", said.line, accused=tuple(accused) if few else (),
            seq=said.number("seq", 18), op=operations.canonical(said.text("op")),
        )  # fmt: skip

    attempt.at_end[_ucc] = tell
    line = yield True
    while line.number <= said.line.number + _NEAR and (found := _UCC_ROW.match(line.text)):
        heard |= set(map(int, found[1].split())) if found[2] else set()
        line = yield True


def _waits(said: Said, attempt: Attempt) -> None:
    """Somebody waits for others, who may still come: it counts unless `_goes_on` is said later."""
    kind: ClaimKind = "timeout" if said.text("stuck") else "rendezvous"
    attempt.at_end.setdefault(_waits, partial(attempt.claim, kind, said.line, certain=False))


def _goes_on(_: Said, attempt: Attempt) -> None:
    attempt.at_end.pop(_waits, None)


def _shapes(said: Said, attempt: Attempt) -> Report:
    """accelerate's check: every rank prints the shapes of all."""
    op, until = "all_gather", said.line.number + _NEAR
    line = yield False  # an exception, too
    while line.number <= until:
        named, found = _SHAPES_OP.search(line.text), _SHAPES_ROW.match(line.text)
        if named:
            op = _OPERATIONS.get(named[1], named[1])
        elif found:
            until = line.number + _NEAR
            shape = tuple(int(d) for d in re.findall(r"\d{1,18}", found[2])[:32])
            told = Operation(1, Signature(op, op, input_sizes=(shape,)), _SHAPES_GROUP)
            told.state, told.at_ns = State.SCHEDULED, said.line.at_ns
            attempt.of(int(found[1])).issued(told, line)
        line = yield False


# fmt: off
ROWS = (
    row("horovod-stall", "missing ranks", f"{_STALLED}|{_TENSOR.pattern}", _horovod,
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
        "ranks and are waiting for remainder of ranks for more than 60 seconds.",
        "HorovodBroadcast_dense_bias_0 [missing ranks: 1]"),
    row("ray-train-report", "missing ranks",
        r"(?:(?: |^)to join the `[\w.]{1,60}` call: |ranks have not called it: )"
        r"\[(?P<ranks>[\d, ]{1,4096})\]", _ray_train,
        "Waiting for the following ranks to join the `ray.train.report` call: "
        "The following ranks have not called it: [2, 3]"),
    row("jax-barrier", "missing ranks", "imed out task names:", _tasks,
        "Barrier timed out. # of tasks that reached the barrier: 3/4. The first task at the "
        "barrier: /job:w/task:0. Some timed out task names:"),
    row("jax-heartbeat", "lost peer",
        r"(?:Task|check alive failed,) /job:[\w\-]+/(?:replica:\d+/)?task:(?P<task>\d{1,7}) "
        r"(?:heartbeat timeout|is down)|\(stopped sending heartbeats\)", _tasks,
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that "
        "the remote task has failed",
        "The following tasks are unhealthy (stopped sending heartbeats):"),
    row("ucc-comm-check", "missing ranks",
        r"Aborting comms #(?P<seq>\d+) \(op=(?P<op>\w+)\) due to the problematic ranks: "
        r"\[(?P<accused>[\d ]{1,4096})\]", _ucc,
        "Aborting comms #12 (op=ALLTOALL_BASE) due to the problematic ranks: [ 0 ]"),
    row("waits-for-others", "missing ranks",
        r"Th(?:is|ese) threads? ha(?:s|ve) been waiting for .{1,400}? and may be (?P<stuck>stuck)|"
        r"(?:No quorum|New quorum not ready), only have \d+ participants, need \d+|"
        r"Waiting for \d+ .{0,40}?core engine proc\(s\) to start|"
        r"worker group startup timed out after [\d.]+ seconds waiting for \d+ workers", _waits,
        "This thread has been waiting for 10 seconds and may be stuck: ",
        "start: No quorum, only have 1 participants, need 2",
        "New quorum not ready, only have 1 participants, need 2 min_replicas",
        "Waiting for 1 local, 0 remote core engine proc(s) to start.",
        "The worker group startup timed out after 30.0 seconds waiting for 4 workers."),
    row("others-came", "remark",
        r"Thread is unstuck!|Detected quorum change, bumping quorum_id|"
        r"init engine \(profile, create kv cache|Started training worker group of size", _goes_on,
        "Thread is unstuck! Warning above was a false-positive.",
        "Detected quorum change, bumping quorum_id to 2",
        "init engine (profile, create kv cache, warmup model) took 30.22 seconds",
        "Started training worker group of size 4:"),
    row("accelerate-shapes", "mismatch", "Cannot apply desired operation due to shape mismatches",
        _shapes, "Cannot apply desired operation due to shape mismatches. All shapes across devices"
        " must be valid."),
    row("waited-too-long", "timeout",
        rf"{gloo.TIMEOUT.pattern}|"
        r"StreamSplitDataIterator\(epoch=\d+, split=\d+\) blocked waiting on other clients for "
        r"more than \d+s|DEADLINE_EXCEEDED: Barrier timed out\.(?!.*task names:)|"
        r"BaseCollectiveExecutor::StartAbort (?!CANCELLED|OUT_OF_RANGE)\w|"
        r"Work\s*ran\s*time\s*out\s*after\s*\d+\s*milliseconds|"
        r": kernel begins at work \d+ may hang", claim("timeout"),
        "StreamSplitDataIterator(epoch=2, split=3) blocked waiting on other clients for more than "
        "30s. All clients must read from the DataIterator splits at the same time.",
        "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.",
        "BaseCollectiveExecutor::StartAbort UNAVAILABLE: Collective ops is aborted by: failed",
        "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation "
        "to complete", "[Rank 1] Work ran time out after 600000 milliseconds.",
        "WARN StateMonitor:4e4c:Rank1 : kernel begins at work 55731 may hang in polling"),
)
# fmt: on
