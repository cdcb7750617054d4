"""A watchdog's messages: who wrote them, which operation timed out, and the counters of its group.

White space is optional everywhere, because terminals wrap these lines in the middle of words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import (
    DEFAULT_GROUP,
    MAX_SAME_NUMBER,
    UNKNOWN_GROUP,
    Counters,
    GroupId,
    Operation,
)
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.row import Said
from hangscope.trace.model import Signature

LABEL = re.compile(
    r"\[PG(?:\s*ID\s*(?P<id>\d+)\s*PG\s*GUID\s*(?P<guid>[^\s()\]]+)\s*|\s+(?P<name>[^\s()\]]+)\s*)"
    r"(?:\((?P<desc>[^)]*)\))?\s*Rank\s*(?P<rank>\d+)\s*\]|\[Rank\s*(?P<old>\d{1,7})\s*\]"
)
"""A group's label, or that of versions which name no group."""
_IN_GROUP = re.compile(LABEL.pattern.rpartition("|")[0])
_WORK = re.compile(
    r"Work(?P<lib>NCCL|HCCL|[A-Z]CCL|XCCL)\(\s*(?:SeqNum=(?P<seq>[\d\s]+),)?\s*Op\s*Ty\s*pe="
    r"(?P<op>[A-Z_\s]+?)\s*(?:,\s*TensorShape=\[(?P<shape>[\d,\s]*)\])?"
    r"(?:,\s*Num\s*e\s*l\s*In=(?P<nin>[\d\s]+),\s*Num\s*e\s*l\s*Out=(?P<nout>[\d\s]+))?"
    r",\s*(?:Timeout\s*\(ms\)=(?P<timeout>[\d\s]+)\)|[Timeout]{0,7}\s*$)"
)
"""Where a log ends in the middle of the line, its sizes are whole if a comma follows."""
_RAN = re.compile(r"ran\s*for\s*(?P<ms>\d[\d\s]*?)\s*milliseconds")
_TC_TIMED_OUT = re.compile(r"Operation\s*timed\s*out\s*after\s*(?P<ms>\d[\d\s]*?)\s*ms")
_SLACK_NS = 60 * 10**9
_MOST = 1 << 62
"""Larger numbers are damage, or the recorder's value for "none" (2**64 - 1)."""
_STATUS = re.compile(
    r"(?:Timeout\s*at\s*NCCL\s*work:|detected\s*by\s*watchdog\s*at\s*work(?:\s*sequence\s*id)?:)"
    r"\s*(?P<n>-?\d+)"
)
_LAST_STARTED = re.compile(r"last\s*started\s*(?:\w+\s*)?work:\s*(-?\d+)")
_DUMP_SIGNAL = re.compile(r"Received\s*a(?:\s*global)?\s*dump\s*signal")
_MOST_COUNTED = 3_000_000_000
"""Larger counters are uninitialised memory."""


class Message(NamedTuple):
    """Whose a watchdog's message is, according to its label or the line's prefix."""

    rank: int | None
    group: GroupId
    place: int | None  # the writer's rank inside the group


def message_of(line: LogLine) -> Message:
    """The writer of a message.

    Before torch 2.2 only the message states a rank, and that is the rank inside a group. It is
    taken for the global rank if the group is unknown, as it is usually the default one then.
    """
    group, place = UNKNOWN_GROUP, None
    found = _IN_GROUP.search(line.text) or LABEL.search(line.text)
    if found and found["rank"]:
        name, place = found["guid"] or found["name"] or "", int(found["rank"][:8])
        group = name, found["desc"] or ("default_pg" if name == "0" else "")
    elif found:
        place = int(found["old"])
    if line.rank is not None:
        return Message(line.rank, group, place)
    whole = group == UNKNOWN_GROUP or group[1] == "default_pg"
    return Message(place if whole else None, group, place)


def _number(text: str | None) -> int | None:
    """The number in a text, without blanks from a wrapped line; None for damage."""
    digits = "".join(re.findall(r"\d", text or ""))[:20]
    return int(digits) if digits and int(digits) <= _MOST else None


@dataclass(slots=True)
class SharedPlaces:
    """Whether two processes used the same number for themselves: it is a rank in smaller groups."""

    seen: bool = False


@lru_cache(maxsize=1024)
def _work(text: str) -> re.Match[str] | None:
    """The work in a text; cached because each is printed several times."""
    return _WORK.search(text)


def note_timeout(said: Said, attempt: Attempt) -> bool:
    """Record an operation that timed out. Returns whether the message is about one."""
    line, text, by = said.line, said.line.text, message_of(said.line)
    begins = text.find("Work")
    work = _work(text[begins:]) if begins >= 0 else None
    if work is None:
        if "atchdog" in text:  # truncated, or in another wording
            attempt.claim("timeout", line, reporter=by.rank, certain=False)
        return "atchdog" in text
    attempt.given_up = True
    signature, seq = _signature(work), _number(work["seq"])
    if by.rank is None:
        attempt.claim("timeout", line, seq=seq, op=signature.op, certain=False)
        return True
    ran = _RAN.search(text)
    ran_ms = (_number(ran["ms"]) or 0) if ran else 0
    notes = attempt.of(by.rank)
    began_ns = line.at_ns - ran_ms * 10**6
    if began_ns > attempt.gave_up_ns + _SLACK_NS and any(o.at_ns for o in notes.overdue):
        attempt.restart(again=True)  # after every rank had given up: the log of another start
        return True
    attempt.gave_up_ns = max(attempt.gave_up_ns, line.at_ns)
    notes.runs_as(line.host, None)
    same_number = notes.numbered(seq or 0)
    known = next((o for o in same_number if _may_be_same(o.signature, signature)), None)
    if known is not None:  # the same timeout is printed up to five times
        if known.bare and line.rank is None and known.ran_ms and ran_ms not in (0, known.ran_ms):
            attempt.part(SharedPlaces).seen = True  # but always with the same duration
        if known.group == UNKNOWN_GROUP:
            known.group = by.group
    elif len(same_number) < MAX_SAME_NUMBER:
        told = Operation(seq or 0, signature, by.group, by.place, timed_out=True, at_ns=line.at_ns)
        told.timeout_ms, told.ran_ms = _number(work["timeout"]) or 0, ran_ms
        told.bare = line.rank is None
        notes.add(told, line)
    return True


def _signature(work: re.Match[str]) -> Signature:
    """The operation. A batch of sends and receives prints no sizes, and one of gathers or scatters
    (FSDP2's) multiples of each other."""
    raw, shape = "".join(work["op"].split()), work["shape"]
    op, sizes = operations.canonical(raw), (_number(work["nin"]), _number(work["nout"]))
    if operations.is_batch(op):
        sizes = sizes[0] or None, sizes[1] or None
    ins, outs = sizes
    if op == operations.BATCH and ins and outs and ins != outs:
        if outs % ins == 0:
            op = "all_gather_into_tensor_coalesced"
        elif ins % outs == 0:
            op = "reduce_scatter_tensor_coalesced"
    return Signature(
        op=op,
        raw=raw,
        backend="hccl" if work["lib"] == "HCCL" else "nccl",
        output_sizes=None if shape is None else (tuple(map(int, re.findall(r"\d+", shape))),),
        input_numel=ins,
        output_numel=outs,
    )


def _may_be_same(one: Signature, other: Signature) -> bool:
    """Whether two lines may be about one operation: groups may share a sequence number."""
    sizes = ("output_sizes", "input_numel", "output_numel")
    pairs = [(getattr(one, name), getattr(other, name)) for name in sizes]
    return one.raw == other.raw and all(a == b or None in (a, b) for a, b in pairs)


def note_torchcomms_timeout(said: Said, attempt: Attempt) -> None:
    """Record a timeout of which only the group is stated, and ignore how the process reacts.

    Such are the messages of torchcomms, and of NCCL from torch 2.15 on.
    """
    line, name = said.line, said.text("name")
    timeout = _TC_TIMED_OUT.search(line.text)
    if timeout is None or line.rank is None:
        return
    attempt.given_up = True
    notes = attempt.of(line.rank)
    if not notes.operations:
        group = name, "default_pg" if name == "0" else ""
        signature = Signature("collective", "collective", "nccl")
        told = Operation(0, signature, group, said.number("place"), timed_out=True)
        told.ran_ms, told.at_ns = _number(timeout["ms"]) or 0, line.at_ns
        notes.add(told, line)


def note_counters(said: Said, attempt: Attempt) -> None:
    """Record a group's last work enqueued, started and completed."""
    line, text = said.line, said.line.text
    rank, group, _ = message_of(line)
    signal, status = _DUMP_SIGNAL.search(text), _STATUS.search(text)
    if signal:
        attempt.claim("dump_signal", line, reporter=rank)
        if group == UNKNOWN_GROUP:
            group = DEFAULT_GROUP  # these counters are always the default group's
    if rank is None:
        return
    enqueued, started, completed = (_counter(x) for x in said.found.groups())
    if 0 <= enqueued < completed:  # torch 2.2 and 2.3 print uninitialised memory
        completed = int(status["n"]) - 1 if status and int(status["n"]) > 0 else -1
    if said.found[2] is None and (later := _LAST_STARTED.search(text)):
        started = _counter(later[1])
    notes = attempt.of(rank)
    known = notes.counters.setdefault(group, Counters())
    known.enqueued = max(known.enqueued, enqueued)
    known.completed = max(known.completed, completed)
    if started > 0:
        known.started = max(known.started, started)
    known.at_ns = known.at_ns or line.at_ns
    if not signal:
        known.failed_ns = known.failed_ns or line.at_ns
    numbered = notes.numbered(int(status["n"])) if status else []
    unlabelled = [o for o in numbered if o.group == UNKNOWN_GROUP]
    if len(unlabelled) == 1:  # a watchdog prints both: the timeout is of this group
        unlabelled[0].group = group


def _counter(text: str | None) -> int:
    """A counter as in `Counters`. -1 means "none yet", for which torch 2.3 prints garbage."""
    if text is None:
        return -1
    return int(text) if 0 <= int(text) < _MOST_COUNTED else 0
