"""The NCCL watchdog's lines: timeouts, per-group counters, dump signals and how it gave up.

Wordings from torch 1.10 to today, and of the backends that kept them (HCCL, RCCL).
"""

from __future__ import annotations

import re

from hangscope.trace import clean, operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import UNKNOWN_GROUP
from hangscope.trace.job_log.rows import overdue
from hangscope.trace.job_log.rows.devices import lost_peer
from hangscope.trace.job_log.rows.overdue import message_of
from hangscope.trace.job_log.rows.row import Report, Said, row
from hangscope.trace.job_log.rows.statements import claim
from hangscope.trace.model import ClaimDetails, Frame

_HCCL_GROUP = re.compile(
    r"group:\[([\w.\-]{1,120})\].{0,200}?rankSize\[(\d{1,7})\](?:, rankId\[(\d{1,7})\D)?", re.DOTALL
)
_FRAME = re.compile(r"^\s*#\d{1,4} (\S.{0,300}?) from (\S.{0,400}?):(\d{1,8})\s*$")
_LONGEST_STACK = 200
_FOR_S = re.compile(r"stuck\s*for\s*(\d{1,7})\s*seconds|timed\s*out\s*in\s*(\d{1,7})\s*seconds")
_CUT = re.compile(r"\[Rank \d+\] (?:Watchdog(?: caught)?)?\s*$")
"""What is left of the usual message, where a line is cut."""


def _label(said: Said, attempt: Attempt) -> bool:
    """Every message with a label shows that its writer is a member of that group."""
    rank, group, place = message_of(said.line)
    if rank is not None:
        notes = attempt.of(rank)
        if group != UNKNOWN_GROUP and place is not None:
            notes.places.setdefault(group, place)
    return False


def _dumps(said: Said, attempt: Attempt) -> bool:
    """The rank is about to write its dump: its watchdog has given up."""
    rank = message_of(said.line).rank
    if rank is not None:
        attempt.of(rank).partly_recorded = True
    return rank is not None


def _gives_up(said: Said, attempt: Attempt) -> None:
    rank = message_of(said.line).rank
    if rank is not None:
        if attempt.of(rank).partly_recorded:
            return
        attempt.of(rank).partly_recorded = True
    gave_up = ClaimDetails(gave_up=True)
    attempt.claim("other", said.line, reporter=rank, certain=False, details=gave_up)


def _issued_at(said: Said, attempt: Attempt) -> Report:
    """The stack of the operation that timed out, one frame a line, innermost first."""
    _gives_up(said, attempt)
    rank, frames = message_of(said.line).rank, list[Frame]()
    overdue_ = attempt.of(rank).overdue if rank is not None else []
    line = yield True
    while line.number <= said.line.number + _LONGEST_STACK:
        found = _FRAME.match(line.text)
        if found:
            frames.append(Frame(clean.name(found[1]), clean.name(found[2]), int(found[3][:8])))
            for operation in overdue_[-1:]:
                operation.stack = tuple(frames)
        elif frames or line.level:
            return
        line = yield found is not None


def _hccl(said: Said, attempt: Attempt) -> None:
    """HCCL's own timeout; the remote rank's number is a rank inside its communicator."""
    op = operations.canonical(said.text("tag").split("_")[0]) or None
    line, group = said.line, _HCCL_GROUP.search(said.line.text)
    if group is not None:
        line = line.saying(
            f"HCCL: member {group[3] or '?'} of the {group[2]} of group {group[1]} waits in "
            f"{op or 'a collective'} for member {said.text('remote')}, which has not come: "
            f"{line.text.strip()}"
        )
    by = message_of(said.line).rank
    attempt.claim("timeout", line, reporter=by, op=op, certain=False)


def _stuck(said: Said, attempt: Attempt) -> None:
    """The watchdog itself was stuck."""
    since, by = _FOR_S.search(said.line.text), message_of(said.line).rank
    told = ClaimDetails(watchdog_stuck=True, stuck_for_s=int(since[1] or since[2]) if since else 0)
    attempt.claim("other", said.line, reporter=by, details=told)


def _terminated(said: Said, attempt: Attempt) -> None:
    """Its exception is the useful part: this rank's device or connection failed."""
    line, words = said.line, said.text("msg")
    rank, group, _ = message_of(line)
    if "CUDA error" in words or "HIP error" in words:
        attempt.claim("device_error", line, accused=(rank,), reporter=rank)
    elif "NCCL error" in words or "network error" in words:
        # It found that earlier: it waits for dumps before it ends its rank.
        counters = attempt.of(rank).counters.get(group) if rank in attempt.ranks else None
        line = line._replace(at_ns=(counters.failed_ns if counters else 0) or line.at_ns)
        details = ClaimDetails(lost_peer=lost_peer(words))
        attempt.claim("network_error", line, reporter=rank, certain=False, details=details)
    elif _CUT.search(words):
        _gives_up(said, attempt)
    elif "caught collective" not in words:
        details = ClaimDetails(watchdog_failed=True)
        attempt.claim("other", line, reporter=rank, details=details)


def _aborted(said: Said, attempt: Attempt) -> bool:
    rank = message_of(said.line).rank
    if rank is not None:
        attempt.claim("other", said.line, reporter=rank)
    return rank is not None


def _gil(said: Said, attempt: Attempt) -> None:
    """Printed by a rank that is about to end itself: what it waited in is stated elsewhere."""
    if said.line.rank is not None:
        attempt.of(said.line.rank).partly_recorded = True
    attempt.claim("other", said.line)


# fmt: off
ROWS = (
    row("watchdog-label", "process", overdue.LABEL.pattern, _label,
        "[PG ID 2 PG GUID 9(tensor) Rank 2] ProcessGroupNCCL preparing to dump debug info.",
        "[Rank 3] Some NCCL operations have failed or timed out.", passing=True),
    row("watchdog-timeout", "timeout",
        r"aught\s*collective\s*operation\s*timeout|"
        r"timed\s*out\s*in\s*(?:call\s*to\s*wait|blocking\s*wait)",
        overdue.note_timeout,
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE"
        ", NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600030 milliseconds before timing "
        "out.",
        "[Rank 1] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
        "Timeout(ms)=1800000) ran for 1803344 milliseconds before timing out.",
        "[Rank 4] Work WorkNCCL(SeqNum=9, OpType=ALLGATHER, NumelIn=1, NumelOut=8, "
        "Timeout(ms)=600000) timed out in blocking wait.", since="torch 1.9"),
    row("work-counters", "counters",
        r"[lL]ast\s*enqueued\s*(?:\w+\s*)?work:\s*(-?\d+),\s*"
        r"(?:last\s*started\s*(?:\w+\s*)?work:\s*(-?\d+)\s*(?:\([^)]{0,200}\)\s*)?,\s*)?"
        r"last\s*completed\s*(?:\w+\s*)?work:\s*(-?\d+)",
        overdue.note_counters,
        "[PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: "
        "5 PG status: last enqueued work: 6, last completed work: 4",
        "[PG 0 (default_pg) Rank 2] Timeout at NCCL work: 5, last enqueued NCCL work: 6, last "
        "completed NCCL work: 4.", since="torch 2.3"),
    row("preparing-to-dump", "remark", r"preparing\s*to\s*dump\s*debug\s*info", _dumps,
        "[PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL preparing to dump debug info. "
        "Include stack trace: 1", since="torch 2.3"),
    row("torchcomms-timeout", "timeout",
        r"\[TC\]\s*\[rank=(?P<place>\d{1,7})\]\s*\[name=(?P<name>[^\]]{0,200})\]",
        overdue.note_torchcomms_timeout,
        "[TC][rank=2][name=0] Operation timed out after 600000 ms", since="torch 2.15"),
    row("failed-collective-stack", "remark",
        r"Stack\s*trace\s*of\s*the\s*failed\s*collective", _issued_at,
        "Stack trace of the failed collective: ",
        "Stack trace of the failed collective not found, potentially because FlightRecorder is "
        "disabled.", since="torch 2.6"),
    row("watchdog-gives-up", "remark",
        r"Some\s*\w*\s*operations\s*have\s*failed\s*or\s*timed\s*out|"
        r"taking\s*the\s*entire\s*process\s*down|"
        r"First\s*PG\s*on\s*this\s*rank\s*to\s*signal\s*dumping", _gives_up,
        "[Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
        "CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[Rank 3] To avoid data inconsistency, we are taking the entire process down."),
    row("dump-signal-observed", "remark",
        r"Observed\s*flight\s*recorder\s*dump\s*signal\s*from\s*another\s*rank",
        claim("dump_signal", certain=True),
        "[PG ID 0 PG GUID 0(default_pg) Rank 3] Observed flight recorder dump signal from another "
        "rank via TCPStore.", since="torch 2.5"),
    row("hccl-notify", "timeout",
        r"Notify register has not received the Notify record from remote rank(?:I[dD])?:? ?"
        r"\[(?P<remote>[\w ,]{1,200})\](?:.{0,400}?tag\[(?P<tag>[A-Z]\w{0,60}))?", _hccl,
        "The wait execution of the Notify register times out. Reason: The Notify register has not "
        "received the Notify record from remote rank [3]. base information: [streamID:[8], "
        "tag[AllReduce_127.0.0.1%eth0_6_0]]"),
    row("watchdog-stuck", "remark",
        r"watchdog\s*got\s*stuck|Heartbeat\s*monitor\s*timed\s*out|"
        r"no\s*heartbeat\s*of\s*its\s*watchdog", _stuck,
        "[PG ID 2 PG GUID 9 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
        "making progress in monitoring enqueued collectives.",
        "[PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated after dumping debug "
        "info. workMetaList_.size()=1", since="torch 2.2"),
    row("watchdog-terminated", "remark",
        r"watchdog\s*thread\s*terminated\s*with\s*exception:\s*(?P<msg>.*)", _terminated,
        "[PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an "
        "illegal memory access was encountered",
        "[Rank 2] NCCL watchdog thread terminated with exception: NCCL error: remote process exited"
        " or there was a network error, NCCL version 2.20.5"),
    row("communicator-aborted", "remark", r"communicator was aborted on rank (\d+)", _aborted,
        "NCCL communicator was aborted on rank 3."),
    row("gil-at-exit", "remark", r"Could not acquire GIL within", _gil,
        "Could not acquire GIL within 300 ms on exit, possible GIL induced hang",
        since="torch 2.3"),
)
# fmt: on
