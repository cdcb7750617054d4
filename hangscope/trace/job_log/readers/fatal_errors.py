"""Fatal errors: memory, devices, signals."""

from __future__ import annotations

import re

from hangscope.trace import clean, signals
from hangscope.trace.job_log.lines.line import LogLine, Machine
from hangscope.trace.job_log.readers import network_errors
from hangscope.trace.job_log.readers.evidence import (
    Evidence,
    LoggedException,
    UnattributedException,
)
from hangscope.trace.job_log.readers.process_ends import LauncherFailure
from hangscope.trace.job_log.readers.process_ranks import Process
from hangscope.trace.job_log.readers.tracebacks import RAISED
from hangscope.trace.model import ClaimDetails

_MEMORY = re.compile(
    r"(?:OutOfMemoryError|RuntimeError)?:?\s*(?:CUDA|HIP|NPU|XPU) out of memory\. Tried to allocate"
)
_GARBAGE_SIZE = "more than 1EB memory"
_DEVICE = re.compile(
    r"(?:CUDA|HIP) error: (?P<what>[a-z][^\n]{3,100}?(?:error encountered|launch failure|"
    r"memory access was encountered|detected during the execution|assert triggered|"
    r"unknown error|failure|error))|"
    r"(?P<fault>Memory access fault by GPU node-\d+|\w+_DEVICE_LOST\b|"
    r"NVRM: .{0,80}?fallen off the bus|"
    r"HW Exception by GPU node-\d+.{0,80}?reason ?: ?GPU Hang)"
)
_NCCL = re.compile(
    r"NCCL error.{0,80}?(?:remote process exited|unhandled system error|internal error)|"
    r"ncclRemoteError|ncclSystemError|NET/\w*IB\w* ?: ?Got completion .* with (?:error|status=)|"
    r"NCCL WARN Call to ibv_\w+ failed|"
    r"socketProgress(?:Opt)?: Connection closed by remote peer|"
    r"failed : (?:Broken pipe|Connection reset|No route|Connection refused|Software caused)|"
    r"collective mismatch error, local size|Getting socket times out|"
    r"\|CCL_ERROR\||comm aborted due to timeout|commRemoteError|"
    r"\[Proxy Service \d+\] Failed to execute operation|UCX +ERROR|"
    r"NET/\w*IB.{0,80}?Got async event ?: (?:port error|.{0,40}(?:catastrophic|fatal|violation))|"
    r"NET/\w*IB.{0,80}?Async fatal event|"
    r"wait socket establish timeout|"
    r"NET/OFI .{0,300}?(?:completed with error|failed: )|efa\w*_handle_error\(\)|"
    r"Transport init error! createLink|ExceptionType:\[(?:Heartbeat Lost|Error cqe) Occurred\]|"
    r"RPC agent for \S{1,200} encountered error when .{1,300}?: (?!.*expected to happen)"
)
_NCCL_DEVICE = re.compile(
    r"\b(?:Cuda|HIP) failure (?:\d{1,4} )?'(?P<what>[^'\n]{3,120})'|ncclUnhandledCudaError|"
    r"NCCL error.{0,80}?unhandled cuda error",
    re.S,
)
"""The communicator's call to the driver failed: this rank's own device, not its peers'."""
_SHARED = re.compile(r"Duplicate GPU detected ?: rank (\d{1,7}) and rank (\d{1,7}) both on")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d{1,3}), (?:pid='?(\d+)'?)?")
_ECHOES = frozenset({43, 45, 63, 92})
"""Xids of clean-up after a process has failed or was killed, and of repaired memory."""
_OOM_KILL = re.compile(
    r"[Oo]ut of memory: Killed process (\d+)|oom-kill:.{0,400}?pid=(\d+)|"
    r"oom_reaper: reaped process (\d+)"
)
_OOM_EVENT = re.compile(
    r"oom[_-]kill event|OOMKilled|OOM Killed|killed due to memory pressure|"
    r"killed due to the node running low on memory",
    re.I,
)
_SIGNALLED = re.compile(
    r"Segmentation fault|signal (?:SIG)?SEGV|\*\*\* SIG(?P<name>[A-Z]{3,5}) received at time="
)
_FATAL_PYTHON = re.compile(r"Fatal Python error: (?P<what>[^\n]{1,300})")
"""Written by faulthandler with the description of a signal, and by Python before it aborts."""
_NAN = re.compile(
    r"checkForNaN|Minimum loss scale reached|loss is (?:nan|inf)\b|\bNaN or Inf found|"
    r"rank (?P<at>\d{1,7}): found (?:nan|inf) in local|"
    r"unexpected result (?:nan|inf) on rank (?P<on>\d{1,7})",
    re.I,
)
_LOADER = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d+)[^)]*\) (?:is killed|exited)")
_COMM = re.compile(
    r"comm 0x[0-9a-f]+ rank (\d+) n[rR]anks (\d+) .{0,400}?"
    r"(?:Init COMPLETE|Init START|Abort COMPLETE)"
)
_FATAL = "Fatal Python error"
_BUS = re.compile(r"\bbusId (\w{1,20})")
_NCCL_PID = re.compile(r"^([\w.\-]+):(\d+):\d+ \[\d+\]")
WORDS = (
    "out of memory", "Out of memory", "CUDA error", "HIP error", "Memory access fault",
    "_DEVICE_LOST", "HW Exception by", "fallen off", "comm 0x", " failure ",
    "ncclUnhandledCudaError", "unhandled cuda error",
    "Duplicate GPU", "NCCL error", "ncclRemoteError", "ncclSystemError", "Got completion",
    "Call to ibv_", "Connection closed by remote peer", "failed : ", "collective mismatch error",
    "Getting socket times out", "|CCL_ERROR|", "comm aborted due to", "commRemoteError",
    "Failed to execute operation", "Got async event", "Async fatal event", "wait socket establish",
    "NET/OFI ",
    "_handle_error()", "Transport init error!",
    "ExceptionType:[", "RPC agent for ", "UCX ", "oom-kill", "oom_reaper", "NVRM: Xid",
    "Fatal Python error: ", "Segmentation fault", "SEGV", " received at time=", "DataLoader worker",
)  # fmt: skip
FORM = re.compile(f"{_OOM_EVENT.pattern}|{_NAN.pattern}", re.I)


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record an error of a device, memory or signal. Returns whether the line was one."""
    return (
        _memory(line, at_ns, evidence)
        or _xid(line, at_ns, evidence)
        or _device(line, at_ns, evidence)
        or _nccl(line, at_ns, evidence)
        or _killed_for_memory(line, at_ns, evidence)
        or _fatal_python(line, at_ns, evidence)
        or _signalled(line, at_ns, evidence)
        or _signs(line, at_ns, evidence)
    )


def _said_by(line: LogLine) -> tuple[int, ...]:
    return () if line.rank is None else (line.rank,)


def _memory(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A device ran out of memory, or was asked for more than there is."""
    if not _MEMORY.search(line.text):
        return False
    if _GARBAGE_SIZE in line.text:
        evidence.claim("size_mismatch", line, at_ns, certain=False)
    else:
        evidence.claim("oom", line, at_ns, accused=_said_by(line))
    return True


def _device(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A device or its driver failed."""
    if not _DEVICE.search(line.text):
        return False
    if line.rank is None and line.local_rank is not None and not RAISED.match(line.text.strip()):
        _of_local_rank(line, at_ns, evidence)
    late = ClaimDetails(after_timeout=True) if evidence.given_up else ClaimDetails()
    evidence.claim("device_error", line, at_ns, accused=_said_by(line), **late)
    return True


def _nccl(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Errors from NCCL and its transports: of the rank's own device, or of peers."""
    text = line.text
    if "NCCL" in text or "nccl" in text:
        _communicator(line, evidence)
    own = _NCCL_DEVICE.search(text)
    if own:
        _own_device(own, line, at_ns, evidence)
        return True
    shared = _SHARED.search(text)
    if shared:  # both ranks chose the device, whichever of them reports it
        both = (int(shared.group(1)), int(shared.group(2)))
        for member in both:
            evidence.of(member)
        evidence.claim("shared_device", line, at_ns, accused=both)
        return True
    if not _NCCL.search(text):
        return False
    # A size mismatch: a peer announced more bytes than there is room for.
    kind = "size_mismatch" if "collective mismatch" in text else "network_error"
    details = network_errors.lost_peer(text)
    if evidence.given_up:
        details["after_timeout"] = True
    evidence.claim(kind, line, at_ns, certain=False, **details)
    return True


def _killed_for_memory(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """The kernel, or a container's supervisor, killed a process for its memory."""
    found = _OOM_KILL.search(line.text)
    if found:
        pid = int(next(g for g in found.groups() if g)[:9])
        evidence.ends.out_of_memory.add(Process(pid, line.machine))
        _of_process("oom", pid, line, at_ns, evidence)
    elif _OOM_EVENT.search(line.text):
        evidence.claim("oom", line, at_ns, certain=False)
    else:
        return False
    return True


def _xid(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """The driver reports a failed device, and usually the process that used it."""
    found = _XID.search(line.text)
    if not found:
        return False
    if int(found.group(1)) in _ECHOES:
        evidence.claim("other", line, at_ns, certain=False)
        return True
    pid = int(found.group(2)[:9]) if found.group(2) else None
    rank = evidence.processes.of_pid(pid, line.machine)
    if rank is None and pid is not None:
        _of_process("device_error", pid, line, at_ns, evidence)
    else:
        accused = () if rank is None else (rank,)
        evidence.claim("device_error", line, at_ns, accused=accused, certain=rank is not None)
    return True


def _of_process(kind: str, pid: int, line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """A claim about a process whose rank another file may state."""
    host = line.host or ""
    evidence.claim(kind, line, at_ns, certain=False, words=f"{pid} {host}", pid=pid, host=host)


def _fatal_python(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Python writes why it ends: a signal that its process has caused, or an error of its own."""
    found = _FATAL_PYTHON.search(line.text)
    if not found:
        return False
    what = found["what"].strip()
    number = signals.BY_DESCRIPTION.get(what.lower().replace("-", " "))
    if number is not None:
        _ended_by(number, line, at_ns, evidence)
        return True
    said = clean.prose(what, 400)
    trouble = LoggedException(_FATAL, said, at_ns=at_ns, line=line.number, uncaught=True)
    if line.rank is not None:
        evidence.of(line.rank).exceptions.append(trouble)
    else:
        evidence.pending_exceptions.append(
            UnattributedException(trouble, line.local_rank, line.pid, line.machine)
        )
    return True


def _signalled(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A process was ended by a signal that it caused itself."""
    found = _SIGNALLED.search(line.text)
    number = signals.number_of(found["name"] or "SEGV") if found else None
    return number is not None and _ended_by(number, line, at_ns, evidence)


def _ended_by(number: int, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record the signal that ended the writer of a line. Returns whether it is known."""
    if line.rank is not None:
        notes = evidence.of(line.rank)
        notes.exit_signal = notes.exit_signal or number
        notes.exit_text = notes.exit_text or line.text.strip()[:200]
        notes.exit_ns = notes.exit_ns or at_ns
    elif line.local_rank is not None:
        failure = LauncherFailure(line.local_rank, None, -number, at_ns, line.machine)
        evidence.ends.failures.append(failure)
    elif line.pid is not None:
        evidence.claim("launcher_failure", line, at_ns, certain=False)
    else:
        return False
    return True


def _signs(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Problems that are not fatal by themselves: NaNs, a dead data loader worker."""
    found = _NAN.search(line.text)
    if found:
        named = found["at"] or found["on"]
        accused = _said_by(line) or ((int(named),) if named else ())
        evidence.claim("nan", line, at_ns, accused=accused, certain=False)
    elif _LOADER.search(line.text):
        evidence.claim("other", line, at_ns, accused=_said_by(line), certain=False)
    else:
        return False
    return True


def _of_local_rank(line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """A driver's message is not a traceback, but ends its process like one."""
    said = clean.prose(line.text.strip(), 400)
    trouble = LoggedException("device error", said, at_ns=at_ns, line=line.number, uncaught=True)
    evidence.pending_exceptions.append(
        UnattributedException(trouble, line.local_rank, line.pid, line.machine)
    )


def _own_device(found: re.Match[str], line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """A device failure that NCCL reports with the rank or process in front."""
    rank, where = line.rank, _NCCL_PID.match(line.text)
    if rank is None and where:
        machine = _nccls_machine(where, line)
        rank = evidence.processes.of_pid(int(where.group(2)[:9]), machine)
    kind = "oom" if found.group("what") == "out of memory" else "device_error"
    accused = () if rank is None else (rank,)
    evidence.claim(kind, line, at_ns, accused=accused, certain=rank is not None)


def _communicator(line: LogLine, evidence: Evidence) -> None:
    """NCCL's own lines show which process has which rank in the largest communicator."""
    found = _COMM.search(line.text)
    if not found:
        return
    rank, size = int(found.group(1)[:7]), int(found.group(2)[:7])
    if size < (evidence.comm_size or 0):
        return
    if size > (evidence.comm_size or 0):
        evidence.of_larger_communicators(size)
    where = _NCCL_PID.match(line.text)
    host, pid = (where.group(1), int(where.group(2)[:9])) if where else (line.host, line.pid)
    if evidence.world_size is not None and size < evidence.world_size:
        return
    if line.rank is None and _is_of_a_group(found, rank, host, evidence):
        return
    notes = evidence.of(line.rank_or(rank))
    notes.host = notes.host or host
    # After one rank has given up, a rank that aborts its communicators is giving up as well.
    notes.partly_recorded |= evidence.given_up and "Abort COMPLETE" in found.group()
    if pid is not None:
        notes.pid = notes.pid or pid
        machine = _nccls_machine(where, line) if where else line.machine
        evidence.processes.is_told(notes.rank, pid, machine)


def _is_of_a_group(found: re.Match[str], rank: int, host: str | None, evidence: Evidence) -> bool:
    """Whether the number in a communicator is a group rank: two devices have the same one."""
    device = _BUS.search(found.group())
    if device is not None:
        place = (host or "", device.group(1))
        if evidence.comm_devices.setdefault(rank, place) != place:
            evidence.of_groups_alone()
    return evidence.comms_are_groups


def _nccls_machine(where: re.Match[str], line: LogLine) -> Machine:
    """The machine in the line's prefix, else the one that NCCL itself prints."""
    return line.machine if line.host is not None else Machine(where.group(1), line.node)
