"""Operations that timed out according to a watchdog."""

from __future__ import annotations

import re
from functools import lru_cache

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.gathered import MAX_SAME_NUMBER, Evidence
from hangscope.trace.job_log.evidence.notes import UNKNOWN_GROUP, Operation, RankNotes
from hangscope.trace.job_log.rows.row import Said
from hangscope.trace.job_log.rows.watchdog_message import Message, message_of, number
from hangscope.trace.model import Signature

_WORK = re.compile(
    r"Work(?P<lib>NCCL|HCCL|[A-Z]CCL|XCCL)\(\s*(?:SeqNum=(?P<seq>[\d\s]+),)?\s*Op\s*Ty\s*pe="
    r"(?P<op>[A-Z_\s]+?)\s*(?:,\s*TensorShape=\[(?P<shape>[\d,\s]*)\])?"
    r"(?:,\s*Num\s*e\s*l\s*In=(?P<nin>[\d\s]+),\s*Num\s*e\s*l\s*Out=(?P<nout>[\d\s]+))?"
    r",\s*Timeout\s*\(ms\)=(?P<timeout>[\d\s]+)\)"
)
_RAN = re.compile(r"ran\s*for\s*(?P<ms>\d[\d\s]*?)\s*milliseconds")
_TC_TIMED_OUT = re.compile(r"Operation\s*timed\s*out\s*after\s*(?P<ms>\d[\d\s]*?)\s*ms")
_SLACK_NS = 60 * 10**9


def note_timeout(said: Said, evidence: Evidence) -> bool:
    """Record an operation that timed out. Returns whether the message is about one."""
    message, text = message_of(said.line, said.at_ns), said.line.text
    begins = text.find("Work")
    work = _work(text[begins:]) if begins >= 0 else None
    if work:
        _note(message, work, evidence)
        return True
    if "atchdog" not in text:
        return False
    line, at_ns = message.line, message.at_ns  # truncated, or in another wording
    evidence.claim("timeout", line, at_ns, reporter=message.rank, certain=False)
    return True


def _note(message: Message, work: re.Match[str], evidence: Evidence) -> None:
    evidence.given_up = True
    line, at_ns, rank = message.line, message.at_ns, message.rank
    raw = "".join(work["op"].split())
    op = operations.canonical(raw)
    seq = number(work["seq"])
    if rank is None:
        evidence.claim("timeout", line, at_ns, seq=seq, op=op, certain=False)
        return
    ran = _RAN.search(line.text)
    ran_ms = (number(ran["ms"]) or 0) if ran else 0
    if _is_another_incarnation(evidence.of(rank), at_ns - ran_ms * 10**6, evidence):
        evidence.restart(again=True)
        return
    evidence.gave_up_ns = max(evidence.gave_up_ns, at_ns)
    notes = evidence.of(rank)
    notes.host = notes.host or line.host or None
    same_number = notes.numbered(seq or 0)
    signature = _signature(work, raw, op)
    known = next((o for o in same_number if _may_be_same(o.signature, signature)), None)
    if known is not None:  # the same timeout is printed up to five times
        if known.bare and line.rank is None and known.ran_ms and ran_ms not in (0, known.ran_ms):
            evidence.shared_places = True  # but always with the same duration
        if known.group == UNKNOWN_GROUP:
            known.group = message.group
    elif len(same_number) < MAX_SAME_NUMBER:
        notes.operations.append(
            Operation(
                seq=seq or 0,
                signature=signature,
                group=message.group,
                place=message.place,
                timed_out=True,
                timeout_ms=number(work["timeout"]) or 0,
                ran_ms=ran_ms,
                bare=line.rank is None,
                at_ns=at_ns,
                line=line.number,
                text=line.excerpt,
            )
        )


def _signature(work: re.Match[str], raw: str, op: str) -> Signature:
    shape = work.group("shape")
    sizes = _numel(work.group("nin"), op), _numel(work.group("nout"), op)
    return Signature(
        op=_sized_batch(*sizes) if op == operations.BATCH else op,
        raw=raw,
        backend={"HCCL": "hccl"}.get(work.group("lib"), "nccl"),
        output_sizes=None if shape is None else (tuple(map(int, re.findall(r"\d+", shape))),),
        input_numel=sizes[0],
        output_numel=sizes[1],
    )


def _sized_batch(ins: int | None, outs: int | None) -> str:
    """What a coalesced batch of that many elements in and out is: a batch of sends and receives
    prints no sizes, and one of gathers or scatters (FSDP2's) multiples of each other."""
    if not ins or not outs or ins == outs:
        return operations.BATCH
    if outs % ins == 0:
        return "all_gather_into_tensor_coalesced"
    return "reduce_scatter_tensor_coalesced" if ins % outs == 0 else operations.BATCH


def _may_be_same(one: Signature, other: Signature) -> bool:
    """Whether two lines may be about one operation: groups may share a sequence number."""
    sizes = ("output_sizes", "input_numel", "output_numel")
    pairs = [(getattr(one, name), getattr(other, name)) for name in sizes]
    return one.raw == other.raw and all(a == b or None in (a, b) for a, b in pairs)


def _is_another_incarnation(notes: RankNotes, began_ns: int, evidence: Evidence) -> bool:
    """Whether a rank began an operation only after every rank had given up: the job was started
    again and its log appended.
    """
    gave_up = any(o.timed_out and o.at_ns for o in notes.operations)
    return gave_up and began_ns > evidence.gave_up_ns + _SLACK_NS


def note_torchcomms_timeout(said: Said, evidence: Evidence) -> None:
    """Record a timeout of which only the group is stated, and ignore how the process reacts.

    Such are the messages of torchcomms, and of NCCL from torch 2.15 on.
    """
    line, name = said.line, said.text("name")
    timeout = _TC_TIMED_OUT.search(line.text)
    if timeout is None or line.rank is None:
        return
    evidence.given_up = True
    notes = evidence.of(line.rank)
    if not notes.operations:
        notes.operations.append(
            Operation(
                seq=0,
                signature=Signature(op="collective", raw="collective", backend="nccl"),
                group=(name, "default_pg" if name == "0" else ""),
                place=said.number("place"),
                timed_out=True,
                ran_ms=number(timeout["ms"]) or 0,
                at_ns=said.at_ns,
                line=line.number,
                text=line.excerpt,
            )
        )


@lru_cache(maxsize=1024)
def _work(text: str) -> re.Match[str] | None:
    """The work in a text; cached because each is printed several times."""
    return _WORK.search(text)


def _numel(text: str | None, op: str) -> int | None:
    count = number(text)
    return None if count == 0 and operations.is_batch(op) else count
