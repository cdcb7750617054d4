"""The NCCL watchdog's lines: timeouts, per-group counters, dump signals and how it gave up.

Sentences of torch 1.10 to today, and of the backends that kept its grammar (HCCL, RCCL).
White space is optional everywhere: terminals wrap these lines in the middle of words.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hangscope.trace import operations
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import (
    DEFAULT_GROUP,
    MAX_SAME_NUMBER,
    UNKNOWN_GROUP,
    Counters,
    Evidence,
    GroupId,
    Operation,
    RankNotes,
)
from hangscope.trace.model import Signature

_WORK = re.compile(
    r"Work(?P<lib>NCCL|HCCL|[A-Z]CCL|XCCL)\(\s*(?:SeqNum=(?P<seq>[\d\s]+),)?\s*Op\s*Ty\s*pe="
    r"(?P<op>[A-Z_\s]+?)\s*(?:,\s*TensorShape=\[(?P<shape>[\d,\s]*)\])?"
    r"(?:,\s*Num\s*e\s*l\s*In=(?P<nin>[\d\s]+),\s*Num\s*e\s*l\s*Out=(?P<nout>[\d\s]+))?"
    r",\s*Timeout\s*\(ms\)=(?P<timeout>[\d\s]+)\)"
)
_RAN = re.compile(r"ran\s*for\s*(?P<ms>\d[\d\s]*?)\s*milliseconds")
_CAUGHT = re.compile(r"aught\s*collective\s*operation\s*timeout")
_TIMED_OUT = re.compile(r"timed\s*out\s*in\s*(?:call\s*to\s*wait|blocking\s*wait)")
_LABEL = re.compile(
    r"\[PG(?:\s*ID\s*(?P<id>\d+)\s*PG\s*GUID\s*(?P<guid>[^\s()\]]+)\s*|\s+(?P<name>[^\s()\]]+)\s*)"
    r"(?:\((?P<desc>[^)]*)\))?\s*Rank\s*(?P<rank>\d+)\s*\]"
)
_OLD_LABEL = re.compile(r"\[Rank\s*(\d{1,7})\s*\]")
_STATUS = re.compile(
    r"(?:(?P<plain>Timeout\s*at\s*NCCL\s*work:)|detected\s*by\s*watchdog\s*at\s*work"
    r"(?:\s*sequence\s*id)?:)\s*(?P<n>-?\d+)"
)
_LAST_ENQUEUED = re.compile(
    r"[lL]ast\s*enqueued\s*(?:\w+\s*)?work:\s*(-?\d+),\s*(?:last\s*started\s*(?:\w+\s*)?work:\s*(-?\d+)"
    r"\s*(?:\([^)]{0,200}\)\s*)?,\s*)?"
    r"last\s*completed\s*(?:\w+\s*)?work:\s*(-?\d+)"
)
_LAST_STARTED = re.compile(r"last\s*started\s*(?:\w+\s*)?work:\s*(-?\d+)")
_DUMP_SIGNAL = re.compile(r"Received\s*a(?:\s*global)?\s*dump\s*signal")
_PEER_SIGNAL = re.compile(r"Observed\s*flight\s*recorder\s*dump\s*signal\s*from\s*another\s*rank")
_PREPARING = re.compile(r"preparing\s*to\s*dump\s*debug\s*info")
_SIGNAL_FROM = re.compile(r"from\s+rank\s+(\d+)")
_STUCK = re.compile(
    r"(?:watchdog\s*got\s*stuck|Heartbeat\s*monitor\s*timed\s*out|no\s*heartbeat\s*of\s*its\s*watchdog)"
)
_GIVES_UP = re.compile(
    r"Some\s*\w*\s*operations\s*have\s*failed\s*or\s*timed\s*out|taking\s*the\s*entire\s*process\s*down|"
    r"Stack\s*trace\s*of\s*the\s*failed\s*collective|First\s*PG\s*on\s*this\s*rank\s*to\s*signal\s*dumping"
)
"""What only those say who were in a collective that failed; which it was stands elsewhere."""
_TC = re.compile(r"\[TC\]\s*\[rank=(?P<place>\d{1,7})\]\s*\[name=(?P<name>[^\]]{0,200})\]")
"""The label of torchcomms, and of NCCL from torch 2.15 on; nothing tells which operation it was."""
_TC_TIMED_OUT = re.compile(r"Operation\s*timed\s*out\s*after\s*(?P<ms>\d[\d\s]*?)\s*ms")
_XCCL = re.compile(r"Work\s*ran\s*time\s*out\s*after\s*\d+\s*milliseconds")
_TERMINATED = re.compile(r"watchdog\s*thread\s*terminated\s*with\s*exception:\s*(?P<msg>.*)", re.S)
_NOTIFY = re.compile(
    r"Notify register has not received the Notify record from remote rank:? ?\[(?P<remote>\w+)\]"
    r"(?:.{0,400}?tag\[(?P<tag>[A-Z]\w{0,60}))?",
    re.S,
)
_ABORTED = re.compile(r"communicator was aborted on rank (\d+)")
_GIL = re.compile(r"Could not acquire GIL within")
_FOR_S = re.compile(r"stuck\s*for\s*(\d{1,7})\s*seconds|timed\s*out\s*in\s*(\d{1,7})\s*seconds")
_OF_WATCHDOGS = (
    "ork", "atchdog", "signal", "abort", "Notify", "dump", "perations", "entire", "failed", "[TC]",
)  # fmt: skip
WORDS = (
    "[PG", "[Rank", "collective", "timed", "enqueued", "preparing", "Observed", "Notify", "stuck",
    "Heartbeat", "terminated", "aborted", "Could not acquire GIL", "operations", "entire",
    "dumping", "milliseconds", "heartbeat", "[TC]",
)  # fmt: skip
_SLACK_NS = 60 * 10**9
_MOST = 1 << 62
"""Larger numbers are damage, or the recorder's word for "none" (2**64 - 1)."""


def follows(line: LogLine) -> bool:
    """Whether a line that holds no word of these counts all the same: it makes its rank known."""
    return line.printed


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Note what a watchdog line says. Returns whether it was one."""
    text = line.text
    if not any(word in text for word in _OF_WATCHDOGS):
        return bool(_GIL.search(text)) and _gil(line, at_ns, evidence)
    rank = line.rank
    group, place = label(text)
    if rank is None:
        rank = _rank_without_prefix(group, place)
    if rank is not None:
        notes = evidence.of(rank)
        if group != UNKNOWN_GROUP and place is not None:
            notes.places.setdefault(group, place)
    if _CAUGHT.search(text) or _TIMED_OUT.search(text):
        begins = text.find("Work")
        work = _work(text[begins:]) if begins >= 0 else None
        if work:
            _timeout(line, at_ns, evidence, rank, group, place, work)
            return True
        if "atchdog" in text:  # cut, or told in other words
            evidence.claim("timeout", line, at_ns, reporter=rank, certain=False)
            return True
    counters = _LAST_ENQUEUED.search(text) if "enqueued" in text else None
    if counters:
        _counters(line, at_ns, evidence, rank, group, counters)
        return True
    if "preparing" in text and _PREPARING.search(text) and rank is not None:
        notes.half_told = True
        return True
    if "[TC]" in text:
        return _of_torchcomms(line, at_ns, evidence)
    if "time" in text and _XCCL.search(text):
        evidence.claim("timeout", line, at_ns, reporter=rank, certain=False)
        return True
    if _GIVES_UP.search(text):
        if rank is not None and notes.half_told:
            return True
        if rank is not None:
            notes.half_told = True
        evidence.claim("other", line, at_ns, reporter=rank, certain=False, gave_up=True)
        return True
    if "Observed" in text and _PEER_SIGNAL.search(text):
        if rank is not None:
            evidence.of(rank)
        evidence.claim("dump_signal", line, at_ns, reporter=rank, from_peer=True)
        return True
    notify = _NOTIFY.search(text) if "Notify" in text else None
    if notify:  # HCCL's own timeout; the remote rank's number is that inside its communicator
        op = operations.canonical((notify.group("tag") or "").split("_")[0])
        evidence.claim("timeout", line, at_ns, reporter=rank, op=op or None, certain=False)
        return True
    if ("stuck" in text or "eartbeat" in text) and _STUCK.search(text):
        since = _FOR_S.search(text)
        seconds = int(next(s for s in since.groups() if s)) if since else 0
        evidence.claim(
            "other", line, at_ns, reporter=rank, watchdog_stuck=True, stuck_for_s=seconds
        )
        return True
    ended = _TERMINATED.search(text) if "terminated" in text else None
    if ended:
        _terminated(line, at_ns, evidence, rank, ended.group("msg"))
        return True
    if "aborted" in text and _ABORTED.search(text) and rank is not None:
        evidence.claim("other", line, at_ns, reporter=rank, aborted=True)
        return True
    return False


_LINE_BEGINS = re.compile(r"\[r(?:a(?:n(?:k\d*)?)?)?\]?:?|\[[EWI]\d*(?: [\d:.]*)?")


def is_unfinished(line: LogLine) -> bool:
    """Whether a line, the last of a log, is the beginning of one that a watchdog prints."""
    text = line.text.strip()
    if _LINE_BEGINS.fullmatch(text):
        return True
    if "Watchdog caught" in text:
        return "timing out" not in text
    if "detected by watchdog" in text or "Timeout at NCCL work" in text:
        return not _LAST_ENQUEUED.search(text)
    return False


def label(text: str) -> tuple[GroupId, int | None]:
    """The group that a message's label names and the rank inside it."""
    found = _LABEL.search(text)
    if found:
        name = found.group("guid") or found.group("name") or ""
        desc = found.group("desc") or ("default_pg" if name == "0" else "")
        return (name, desc), int(found.group("rank")[:8])
    old = _OLD_LABEL.search(text)
    return UNKNOWN_GROUP, int(old.group(1)) if old else None


def _rank_without_prefix(group: GroupId, place: int | None) -> int | None:
    """Before torch 2.2 only the message tells a rank, and that is the one inside a group.

    Taken for the global rank where the group is unknown (then as a rule the default one).
    """
    if place is None:
        return None
    if group == UNKNOWN_GROUP or group[1] == "default_pg":
        return place
    return None


def _timeout(
    line: LogLine,
    at_ns: int,
    evidence: Evidence,
    rank: int | None,
    group: GroupId,
    place: int | None,
    work: re.Match[str],
) -> None:
    evidence.given_up = True
    raw = "".join(work.group("op").split())
    op = operations.canonical(raw)
    seq = _number(work.group("seq"))
    ran = _RAN.search(line.text)
    if rank is None:
        evidence.claim("timeout", line, at_ns, seq=seq, op=op, certain=False)
        return
    ran_ms = (_number(ran.group("ms")) or 0) if ran else 0
    if _is_of_another_life(evidence.of(rank), at_ns - ran_ms * 10**6, evidence):
        evidence.restart()
        evidence.given_up = True
    evidence.gave_up_ns = max(evidence.gave_up_ns, at_ns)
    notes = evidence.of(rank)
    same_number = notes.numbered(seq or 0)
    signature = _signature(work, raw, op)
    known = next((o for o in same_number if _may_be_same(o.signature, signature)), None)
    if known is not None:  # the same fact is printed up to five times
        if known.bare and line.rank is None and known.ran_ms and ran_ms not in (0, known.ran_ms):
            evidence.shared_places = True  # but never with another duration
        if known.group == UNKNOWN_GROUP and group != UNKNOWN_GROUP:
            known.group = group
        return
    if len(same_number) >= MAX_SAME_NUMBER:
        return
    notes.operations.append(
        Operation(
            seq=seq or 0,
            signature=signature,
            group=group,
            place=place,
            timed_out=True,
            timeout_ms=_number(work.group("timeout")) or 0,
            ran_ms=ran_ms,
            bare=line.rank is None,
            at_ns=at_ns,
            line=line.number,
            text=line.text.strip()[:400],
        )
    )


def _signature(work: re.Match[str], raw: str, op: str) -> Signature:
    shape = work.group("shape")
    return Signature(
        op=op,
        raw=raw,
        backend={"HCCL": "hccl"}.get(work.group("lib"), "nccl"),
        output_sizes=None if shape is None else (tuple(map(int, re.findall(r"\d+", shape))),),
        input_numel=_numel(work.group("nin"), op),
        output_numel=_numel(work.group("nout"), op),
    )


def _may_be_same(one: Signature, other: Signature) -> bool:
    """Whether two lines with one number may tell of one operation: groups count alike."""
    sizes = ("output_sizes", "input_numel", "output_numel")
    pairs = [(getattr(one, name), getattr(other, name)) for name in sizes]
    return one.raw == other.raw and all(a == b or None in (a, b) for a, b in pairs)


def _of_torchcomms(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A timeout of which only the group is told; what the process does about it is no news."""
    label_ = _TC.search(line.text)
    timed_out = _TC_TIMED_OUT.search(line.text)
    if label_ is None:
        return False
    if timed_out is None or line.rank is None:
        return True
    evidence.given_up = True
    name = label_.group("name")
    notes = evidence.of(line.rank)
    if not notes.operations:
        notes.operations.append(
            Operation(
                seq=0,
                signature=Signature(op="collective", raw="collective", backend="nccl"),
                group=(name, "default_pg" if name == "0" else ""),
                place=int(label_.group("place")),
                timed_out=True,
                ran_ms=_number(timed_out.group("ms")) or 0,
                at_ns=at_ns,
                line=line.number,
                text=line.text.strip()[:400],
            )
        )
    return True


def _is_of_another_life(notes: RankNotes, began_ns: int, evidence: Evidence) -> bool:
    """Whether a rank began an operation only after it, and all that are heard of, had given up:
    somebody has started the job again and appended its log.
    """
    gave_up = any(o.timed_out and o.at_ns for o in notes.operations)
    return gave_up and began_ns > evidence.gave_up_ns + _SLACK_NS


def _counters(
    line: LogLine,
    at_ns: int,
    evidence: Evidence,
    rank: int | None,
    group: GroupId,
    found: re.Match[str],
) -> None:
    enqueued, started, completed = (_counter(x) for x in found.groups())
    if enqueued is not None and completed is not None and 0 <= enqueued < completed:
        completed = None  # torch 2.2 and 2.3 print memory that nothing was written to
        at_work = _STATUS.search(line.text)
        if at_work and int(at_work.group("n")) > 0:
            completed = int(at_work.group("n")) - 1
    if started is None:
        later = _LAST_STARTED.search(line.text)
        started = _counter(later.group(1)) if later else None
    status = _STATUS.search(line.text)
    signal = _DUMP_SIGNAL.search(line.text)
    if signal:
        origin = _SIGNAL_FROM.search(line.text)
        evidence.claim(
            "dump_signal",
            line,
            at_ns,
            reporter=rank,
            from_rank=int(origin.group(1)) if origin else None,
            enqueued=enqueued,
            completed=completed,
        )
        if group == UNKNOWN_GROUP:
            group = DEFAULT_GROUP  # these counters are always the default group's
    if rank is None:
        return
    notes = evidence.of(rank)
    known = notes.counters.setdefault(group, Counters())
    known.enqueued = max(known.enqueued, -1 if enqueued is None else enqueued)
    known.completed = max(known.completed, -1 if completed is None else completed)
    if started is not None and started > 0:
        known.started = max(known.started, started)
    known.at_ns = known.at_ns or at_ns
    known.line = line.number
    if status:
        numbered = notes.numbered(int(status.group("n")))
        unlabelled = [o for o in numbered if o.group == UNKNOWN_GROUP]
        if len(unlabelled) == 1:  # each group's watchdog says first in what it waits
            unlabelled[0].group = group


def _terminated(
    line: LogLine, at_ns: int, evidence: Evidence, rank: int | None, message: str
) -> None:
    """The message behind it is the useful part: this rank's device, or its connection, failed."""
    accused = (rank,) if rank is not None else ()
    if "CUDA error" in message or "HIP error" in message:
        evidence.claim("device_error", line, at_ns, accused=accused, reporter=rank)
    elif "NCCL error" in message or "network error" in message:
        evidence.claim("network_error", line, at_ns, reporter=rank, certain=False)
    elif "caught collective" not in message:  # cut off
        evidence.claim("other", line, at_ns, reporter=rank, watchdog_failed=True)


def _gil(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Said by a rank that is about to end itself: what it waited in stands elsewhere."""
    if line.rank is not None:
        evidence.of(line.rank).half_told = True
    evidence.claim("other", line, at_ns, gil=True)
    return True


@lru_cache(maxsize=1024)
def _work(text: str) -> re.Match[str] | None:
    """The work of which a text tells; each is told several times."""
    return _WORK.search(text)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    digits = text[:20] if text.isdecimal() else re.sub(r"\D", "", text)[:20]
    number = int(digits) if digits else None
    return None if number is not None and number > _MOST else number


def _numel(text: str | None, op: str) -> int | None:
    number = _number(text)
    if number is None:
        return None
    return None if number == 0 and operations.is_batch(op) else number


def _counter(text: str | None) -> int | None:
    """-1 is "none yet", and torch 2.3 prints garbage for it."""
    if text is None:
        return None
    value = int(text)
    return value if 0 <= value < 3_000_000_000 else 0
