"""Operations that a log announces as they are issued, and communicators as they are created.

They are printed by torch's debug wrapper (``Running collective: CollectiveFingerPrint(...)``, at
level INFO) and by NCCL (``AllReduce: opCount 1c ... comm 0x...``, with ``NCCL_DEBUG=INFO`` and its
``COLL`` subsystem). If no rank says what it waits in, they show where ranks diverged.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.trace import operations
from hangscope.trace.flight_recorder.columns import dtypes
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import DEFAULT_GROUP, GroupId, Operation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.communicators import Communicators, Process
from hangscope.trace.job_log.rows.comparisons import Comparisons, fingerprint
from hangscope.trace.model import ClaimDetails, Signature, State

_WRAPPER = re.compile(r"\[Rank (?P<place>\d{1,7})\]\s+Running collective: (?P<print>Coll.*)")
_ISSUED = re.compile(
    r"^(?:(?P<host>[\w.\-]+):(?P<pid>\d{1,9}):\d+ )?\[(?P<device>\d{1,4})\] NCCL INFO "
    r"(?P<name>[A-Z][A-Za-z]{2,20}): opCount (?P<n>[0-9a-f]{1,15}) .{0,400}? "
    r"count (?P<count>\d{1,18}) datatype (?P<type>\d{1,2}) .{0,400}?root (?P<root>-?\d{1,9}) "
    r"comm (?P<comm>0x[0-9a-f]+)(?: \[nranks=(?P<size>\d{1,7})\])?"
)
_ANNOUNCED = re.compile(r"[A-Z][A-Za-z]{2,20}: opCount [0-9a-f]+ .* comm 0x")
WORDS = HEADS = ("opCount", "Running collective:")
_NCCL_NAMES = {
    "AllReduce": "all_reduce",
    "AllGather": "_all_gather_base",
    "ReduceScatter": "_reduce_scatter_base",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_NCCL_TYPES = (
    "char", "byte", "int", "uint32", "long", "uint64", "half", "float", "double", "bfloat16",
)  # fmt: skip
_PAIRS = ("Send", "Recv")
_KEPT = 512
"""Announcements kept per rank and group; ranks diverge near the end."""
_SHOWN = 32
_STOOD = frozenset(
    {"timeout", "dump_signal", "network_error", "rendezvous", "launcher_failure", "barrier_timeout"}
    | {"monitored_barrier", "desync_report"}
)
"""Statements that show that the job was not moving when the log ended."""


class _Step(NamedTuple):
    seq: int
    signature: Signature
    line: LogLine

    @property
    def contents(self) -> str:
        """What it does, where a batch has several in any order."""
        told = self.signature
        return f"{told.op} {told.input_numel} {told.output_numel}"


_Told = Mapping[int, Sequence[_Step]]
"""By rank."""


@dataclass(slots=True)
class _Communicator:
    """One process's end of a communicator. ``size`` and ``rank`` are -1 if unknown."""

    device: int = -1
    rank: int = -1
    size: int = -1
    name: str = ""
    pairs: bool = False
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=_KEPT))


class DebugTraces:
    """Tracks which rank announced what; it is interpreted at the end of the log."""

    def __init__(self) -> None:
        self._wrapped: dict[int, deque[_Step]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._one_group = True
        self._ends: dict[tuple[str, int, str], _Communicator] = {}
        self._last: dict[str, str] = {}
        """By process, what it issued last."""
        self._torn = False
        """An announcement names no process: lines have been torn apart."""

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record an announcement. Returns whether the line was one."""
        if "Running collective:" in line.text:
            return self._wrapper(line)
        return self._issued(line, attempt)

    def _end(self, host: str, pid: int, comm: str) -> _Communicator:
        return self._ends.setdefault((host, pid, comm), _Communicator())

    def finish(self, attempt: Attempt) -> None:
        """Turn announcements into operations, unless ranks themselves say what they wait in."""
        # Each process of NCCL's has its own device, unless the job was restarted or two share one.
        created = attempt.part(Communicators)
        devices = {(host, device) for (host, _), device in created.speakers.items()}
        world = len(devices) if len(devices) == len(created.speakers) else 0
        attempt.has_ranks(world)
        for key, member in created.members.items():
            end = self._end(*key)
            end.name, end.rank, end.size = member
        told = bool(created.begun) or created.connects is not None
        attempt.in_pieces = told or any(e.steps for e in self._ends.values())
        known = any(n.operations or n.counters for n in attempt.ranks.values())
        stood = _has_stood(attempt)
        created.finish(attempt, stood=stood)
        if attempt.part(Comparisons).lines:
            return
        if self._one_group and not known:
            _note(DEFAULT_GROUP, self._wrapped, stood, attempt)
        groups = self._communicators(attempt)
        if all(len(ends) < 2 for ends in groups.values()) and not (attempt.stated or known):
            self._tell_last(attempt)
        for group, ends in groups.items():
            steps = _numbered_apart({rank: end.steps for rank, end in ends.items()})
            pairs = any(end.pairs for end in ends.values())
            if known:  # a watchdog counts otherwise, and says itself who is behind
                group = (f"{group[0]} communicator".strip(), "communicator")
            if self._torn and not known:
                self._tell_last(attempt)
            else:
                _note(group, steps, stood and not (pairs or known), attempt)

    def _tell_last(self, attempt: Attempt) -> None:
        """What each process issued last, where that cannot be compared."""
        if self._last:
            text = "; ".join(f"{what} by {who}" for who, what in sorted(self._last.items()))
            attempt.infer("other", text[:300], details=ClaimDetails(announced_last=True))

    def _wrapper(self, line: LogLine) -> bool:
        found = _WRAPPER.search(line.text)
        told = fingerprint(found["print"]) if found else None
        if found is None or told is None:
            return False
        place, (seq, signature) = int(found["place"]), told
        if seq is None:
            return False
        known = self._wrapped[line.rank_or(place)]
        # Groups are not named. Numbers that go back, or group ranks that differ from the rank, show
        # that there are several.
        if line.is_place(place) or (known and seq <= known[-1].seq):
            self._one_group = False
        known.append(_Step(seq, signature, line))
        return True

    def _issued(self, line: LogLine, attempt: Attempt) -> bool:
        found = _ISSUED.search(line.text)
        if not found:
            self._torn |= _ANNOUNCED.search(line.text) is not None
            return False
        # Where the host and the process are cut off, the device tells processes apart.
        end = self._end(found["host"] or "", int(found["pid"] or found["device"]), found["comm"])
        end.device, n = int(found["device"]), int(found["n"], 16)
        who = f"device {end.device}" + (f" of {found['host']}" if found["host"] else "")
        if found["size"]:
            end.size = int(found["size"])
        if found["name"] in _PAIRS:
            end.pairs = True
            self._last[who] = f"{found['name'].lower()} #{n} with member {found['root']}"
        else:
            end.steps.append(_Step(n + 1, _signature(found, end.size), line))
            self._last[who] = f"{end.steps[-1].signature.op} #{n + 1}"
        if found["host"]:
            known = attempt.part(Communicators)
            known.speaks((found["host"], int(found["pid"])), end.device, line)
        return True

    def _communicators(self, attempt: Attempt) -> dict[GroupId, dict[int, _Communicator]]:
        """Ends that belong together, by group and global rank, as far as they can be matched."""
        world = max((e.size for e in self._ends.values()), default=-1)
        ranks = self._ranks(world, attempt.part(Communicators).told)
        largest = Counter(k[:2] for k, e in self._ends.items() if e.size == world and e.steps)
        alone = bool(largest) and max(largest.values()) == 1
        groups: dict[GroupId, dict[int, _Communicator]] = defaultdict(dict)
        for key, end in self._ends.items():
            rank = ranks.get(key[:2])
            if rank is None or not end.steps:
                continue
            if alone and end.size == world:
                groups[DEFAULT_GROUP][rank] = end
                attempt.has_ranks(world)
            elif end.name:
                groups[end.name, "communicator"][rank] = end
                attempt.of(rank).places[end.name, "communicator"] = end.rank
        return groups

    def _ranks(self, world: int, told: Mapping[Process, int]) -> dict[tuple[str, int], int]:
        """The rank of each process: its rank in the largest communicator, or its device if all are
        on one host.
        """
        ranks = {k[:2]: e.rank for k, e in self._ends.items() if e.size == world and e.rank >= 0}
        if ranks or told:
            return {**ranks, **told}
        devices = {k[:2]: e.device for k, e in self._ends.items() if e.size == world}
        apart = len(set(devices.values())) == len(devices)
        one_host = len({host for host, _ in devices}) == 1
        return devices if one_host and apart and 0 < max(devices.values()) < world else {}


def _signature(found: re.Match[str], size: int) -> Signature:
    name, count, kind = found["name"], int(found["count"]), int(found["type"])
    op = _NCCL_NAMES.get(name, operations.canonical(name.upper()))
    many = count * size if size > 0 else None
    return Signature(
        op=op,
        raw=name,
        backend="nccl",
        input_dtypes=dtypes(_NCCL_TYPES[kind] if kind < len(_NCCL_TYPES) else ""),
        input_numel=many if op == "_reduce_scatter_base" else count,
        output_numel=many if op == "_all_gather_base" else count,
    )


def _numbered_apart(told: _Told) -> _Told:
    """The steps, with a number each: those of a batch share one.

    Where all members announce the same in one batch, in whatever order, that order proves nothing.
    """
    batches: dict[int, list[list[str]]] = defaultdict(list)
    for steps in told.values():
        for seq in {step.seq for step in steps}:
            batches[seq].append(sorted(step.contents for step in steps if step.seq == seq))
    extra: dict[int, int] = {}
    before = 0
    for seq in sorted(batches):
        extra[seq] = before
        before += max(map(len, batches[seq])) - 1
    alike = {seq for seq, each in batches.items() if all(batch == each[0] for batch in each)}
    found: dict[int, list[_Step]] = {}
    for rank, steps in told.items():
        place: Counter[int] = Counter()
        found[rank] = []
        for step in sorted(steps, key=lambda s: (s.seq, s.contents if s.seq in alike else "")):
            found[rank].append(step._replace(seq=step.seq + extra[step.seq] + place[step.seq]))
            place[step.seq] += 1
    return found


def _has_stood(attempt: Attempt) -> bool:
    """Whether anything in the log says that the job stood still or was ended."""
    raised, ends, claims = attempt.raised, attempt.ends, [said.claim for said in attempt.stated]
    if raised.pending or raised.anonymous or ends.failures or ends.stopped:
        return True
    told = any(claim.kind in _STOOD or claim.details.stopped for claim in claims)
    return told or any(notes.exceptions for notes in attempt.ranks.values())


def _note(group: GroupId, told: _Told, stood: bool, attempt: Attempt) -> None:
    """Record operations of a group if its members announced different ones or some stayed behind.

    Earlier operations that all members announced count as completed. A log may end anywhere, so a
    rank that is behind counts only if the log says that the job stood still.
    """
    told = {rank: steps for rank, steps in told.items() if steps}
    if len(told) < 2:
        return
    first = max(steps[0].seq for steps in told.values())
    last = {rank: steps[-1].seq for rank, steps in told.items()}
    common, newest = min(last.values()), max(last.values())
    kinds: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    for step in [step for steps in told.values() for step in steps]:
        kinds[step.seq].add((step.signature.op, step.signature.input_numel or step.signature))
    parted = min((s for s, k in kinds.items() if len(k) > 1 and s >= first), default=None)
    if parted is None and (common == newest or not stood):  # that accuses nobody
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, steps in sorted(told.items()):
            ranks[f"{steps[-1].signature.op} #{steps[-1].seq}"].append(rank)
        words = (f"{what} by rank {str(r[:8])[1:-1]}" for what, r in ranks.items())
        attempt.infer("other", "; ".join(words)[:300], details=ClaimDetails(announced_last=True))
        return
    attempt.infer("other", details=ClaimDetails(announced=True))
    upto = common if parted is None else parted - 1
    until = newest if parted is None else parted
    for rank, steps in told.items():
        notes = attempt.of(rank)
        for step in steps:
            if max(first, upto - _SHOWN) <= step.seq <= until:
                state = State.COMPLETED if step.seq <= upto else State.SCHEDULED
                issued = Operation(
                    step.seq, step.signature, group, state=state, at_ns=step.line.at_ns
                )
                notes.add(issued, step.line)
