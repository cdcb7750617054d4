"""The NCCL watchdog's lines: timeouts, per-group counters, dump signals and how it gave up.

Wordings from torch 1.10 to today, and of the backends that kept them (HCCL, RCCL).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hangscope.trace import operations
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers import network_errors, timeouts, work_counters
from hangscope.trace.job_log.readers.evidence import UNKNOWN_GROUP, Evidence
from hangscope.trace.job_log.readers.watchdog_message import Message, message_of

_PEER_SIGNAL = re.compile(r"Observed\s*flight\s*recorder\s*dump\s*signal\s*from\s*another\s*rank")
_PREPARING = re.compile(r"preparing\s*to\s*dump\s*debug\s*info")
_STUCK = re.compile(
    r"(?:watchdog\s*got\s*stuck|Heartbeat\s*monitor\s*timed\s*out|no\s*heartbeat\s*of\s*its\s*watchdog)"
)
_GIVES_UP = re.compile(
    r"Some\s*\w*\s*operations\s*have\s*failed\s*or\s*timed\s*out|taking\s*the\s*entire\s*process\s*down|"
    r"Stack\s*trace\s*of\s*the\s*failed\s*collective|First\s*PG\s*on\s*this\s*rank\s*to\s*signal\s*dumping"
)
"""Printed only by ranks in a collective that failed; which one it was is stated elsewhere."""
_XCCL = re.compile(r"Work\s*ran\s*time\s*out\s*after\s*\d+\s*milliseconds")
_TERMINATED = re.compile(r"watchdog\s*thread\s*terminated\s*with\s*exception:\s*(?P<msg>.*)", re.S)
_NOTIFY = re.compile(
    r"Notify register has not received the Notify record from remote rank(?:I[dD])?:? ?"
    r"\[(?P<remote>[\w ,]{1,200})\]"
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


def follows(line: LogLine) -> bool:
    """Whether a line without any of these words counts because it makes its rank known."""
    return line.printed


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what a watchdog line says. Returns whether it was one."""
    if not any(word in line.text for word in _OF_WATCHDOGS):
        return bool(_GIL.search(line.text)) and _gil(line, at_ns, evidence)
    message = message_of(line, at_ns)
    if message.rank is not None:
        notes = evidence.of(message.rank)
        if message.group != UNKNOWN_GROUP and message.place is not None:
            notes.places.setdefault(message.group, message.place)
    return any(knows(message, evidence) for knows in _KINDS)


def _dumps(message: Message, evidence: Evidence) -> bool:
    """The rank is about to write its dump: its watchdog has given up."""
    text = message.line.text
    if message.rank is None or not ("preparing" in text and _PREPARING.search(text)):
        return False
    evidence.of(message.rank).partly_recorded = True
    return True


def _xccl(message: Message, evidence: Evidence) -> bool:
    line = message.line
    if not ("time" in line.text and _XCCL.search(line.text)):
        return False
    evidence.claim("timeout", line, message.at_ns, reporter=message.rank, certain=False)
    return True


def _gives_up(message: Message, evidence: Evidence) -> bool:
    if not _GIVES_UP.search(message.line.text):
        return False
    line, at_ns, rank = message.line, message.at_ns, message.rank
    if rank is not None and evidence.of(rank).partly_recorded:
        return True
    if rank is not None:
        evidence.of(rank).partly_recorded = True
    evidence.claim("other", line, at_ns, reporter=rank, certain=False, gave_up=True)
    return True


def _signalled(message: Message, evidence: Evidence) -> bool:
    """Another rank has requested dumps."""
    line = message.line
    if not ("Observed" in line.text and _PEER_SIGNAL.search(line.text)):
        return False
    evidence.claim("dump_signal", line, message.at_ns, reporter=message.rank)
    return True


def _hccl(message: Message, evidence: Evidence) -> bool:
    """HCCL's own timeout; the remote rank's number is a rank inside its communicator."""
    line = message.line
    notify = _NOTIFY.search(line.text) if "Notify" in line.text else None
    if notify is None:
        return False
    op = operations.canonical((notify["tag"] or "").split("_")[0]) or None
    evidence.claim("timeout", line, message.at_ns, reporter=message.rank, op=op, certain=False)
    return True


def _stuck(message: Message, evidence: Evidence) -> bool:
    """The watchdog itself was stuck."""
    line = message.line
    if not (("stuck" in line.text or "eartbeat" in line.text) and _STUCK.search(line.text)):
        return False
    since = _FOR_S.search(line.text)
    seconds = int(next(s for s in since.groups() if s)) if since else 0
    evidence.claim(
        "other",
        line,
        message.at_ns,
        reporter=message.rank,
        watchdog_stuck=True,
        stuck_for_s=seconds,
    )
    return True


def _terminated(message: Message, evidence: Evidence) -> bool:
    """Its exception is the useful part: this rank's device or connection failed."""
    line, at_ns, rank = message.line, message.at_ns, message.rank
    ended = _TERMINATED.search(line.text) if "terminated" in line.text else None
    if ended is None:
        return False
    said = ended["msg"]
    if "CUDA error" in said or "HIP error" in said:
        accused = (rank,) if rank is not None else ()
        evidence.claim("device_error", line, at_ns, accused=accused, reporter=rank)
    elif "NCCL error" in said or "network error" in said:
        lost = network_errors.lost_peer(said)
        at_ns = _found_ns(message, evidence) or at_ns
        evidence.claim("network_error", line, at_ns, reporter=rank, certain=False, **lost)
    elif "caught collective" not in said:  # truncated
        evidence.claim("other", line, at_ns, reporter=rank, watchdog_failed=True)
    return True


def _found_ns(message: Message, evidence: Evidence) -> int:
    """When the watchdog found what it ends its rank for: it waits for dumps before it does."""
    notes = evidence.ranks.get(message.rank) if message.rank is not None else None
    counters = notes.counters.get(message.group) if notes is not None else None
    return counters.failed_ns if counters is not None else 0


def _aborted(message: Message, evidence: Evidence) -> bool:
    line = message.line
    if message.rank is None or not ("aborted" in line.text and _ABORTED.search(line.text)):
        return False
    evidence.claim("other", line, message.at_ns, reporter=message.rank)
    return True


_KINDS: tuple[Callable[[Message, Evidence], bool], ...] = (
    timeouts.note_timeout,
    work_counters.note_counters,
    _dumps,
    timeouts.note_torchcomms_timeout,
    _xccl,
    _gives_up,
    _signalled,
    _hccl,
    _stuck,
    _terminated,
    _aborted,
)
"""Each records one kind of message and returns whether it was that kind; the first one counts."""


def _gil(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Printed by a rank that is about to end itself: what it waited in is stated elsewhere."""
    if line.rank is not None:
        evidence.of(line.rank).partly_recorded = True
    evidence.claim("other", line, at_ns)
    return True


_LINE_BEGINS = re.compile(r"\[r(?:a(?:n(?:k\d*)?)?)?\]?:?|\[[EWI]\d*(?: [\d:.]*)?")


def is_unfinished(line: LogLine) -> bool:
    """Whether the last line of a log is the beginning of a watchdog's line."""
    text = line.text.strip()
    if _LINE_BEGINS.fullmatch(text):
        return True
    if "Watchdog caught" in text:
        return "timing out" not in text
    if "detected by watchdog" in text or "Timeout at NCCL work" in text:
        return not work_counters.has_all_counters(text)
    return False
