"""Memory, devices, networks and signals: what ends a rank, or cuts it off."""

from __future__ import annotations

import re

from hangscope.trace import clean, signals
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import (
    LauncherFailure,
    LoggedException,
)
from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.communicators import machine_of, process_of
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim, own_error
from hangscope.trace.model import ClaimDetails, ClaimKind

_GARBAGE_SIZE = "more than 1EB memory"
_ECHOES = frozenset({43, 45, 63, 92})
"""Xids of clean-up after a process has failed or was killed, and of repaired memory."""
_FATAL = "Fatal Python error"
_EXCEPTION = re.compile(r"(?:\w+\.){0,12}[A-Z]\w{0,120}(?::\s|$)")


_LOST = re.compile(
    r"remote process exited|ncclRemoteError|Connection closed by remote peer|"
    r"failed : (?:Broken pipe|Connection reset)",
    re.IGNORECASE,
)


def lost_peer(text: str) -> bool:
    """Whether a message of NCCL's says that the connection to another rank is gone."""
    return _LOST.search(text) is not None


def _memory(said: Said, attempt: Attempt) -> None:
    """A device ran out of memory, or was asked for more than there is."""
    line = said.line
    if _GARBAGE_SIZE in line.text:
        attempt.claim("size_mismatch", line, certain=False)
    else:
        attempt.claim("oom", line, accused=(line.rank,))


def _device(said: Said, attempt: Attempt) -> None:
    """A device or its driver failed."""
    line = said.line
    told = line.text.strip()
    if line.rank is None and line.local_rank is not None and not _EXCEPTION.match(told):
        # A driver's message is not a traceback, but ends its process like one.
        _raised("device error", clean.prose(told, 400), line, attempt)
    late = ClaimDetails(after_timeout=attempt.given_up)
    attempt.claim("device_error", line, accused=(line.rank,), details=late)


def _raised(kind: str, words: str, line: LogLine, attempt: Attempt) -> None:
    """An exception of the writer that no traceback shows."""
    trouble = LoggedException(kind, words, at_ns=line.at_ns, line=line.number, uncaught=True)
    attempt.raises(trouble, line)


def _own_device(said: Said, attempt: Attempt) -> None:
    """The communicator's call to the driver failed: this rank's own device, not its peers'."""
    rank, where = said.line.rank, process_of(said.line)
    if rank is None and where:
        rank = attempt.processes.of_pid(where[1], machine_of(where[0], said.line))
    kind: ClaimKind = "oom" if said.text("what") == "out of memory" else "device_error"
    attempt.claim(kind, said.line, accused=(rank,), certain=rank is not None)


def _shared_device(said: Said, attempt: Attempt) -> None:
    """Both ranks chose the device, whichever of them reports it."""
    both = (said.number("a", 7) or 0, said.number("b", 7) or 0)
    for member in both:
        attempt.of(member)
    attempt.claim("shared_device", said.line, accused=both)


def _network(said: Said, attempt: Attempt) -> None:
    """A connection failed, or a peer announced more bytes than there is room for."""
    text = said.line.text
    kind: ClaimKind = "size_mismatch" if "collective mismatch" in text else "network_error"
    details = ClaimDetails(lost_peer=lost_peer(text), after_timeout=attempt.given_up)
    attempt.claim(kind, said.line, certain=False, details=details)


def _killed_for_memory(said: Said, attempt: Attempt) -> None:
    """The kernel killed a process for its memory."""
    attempt.ends.out_of_memory.add(Process(said.number("pid") or 0, said.line.machine))
    claim("oom")(said, attempt)


def _xid(said: Said, attempt: Attempt) -> None:
    """The driver reports a failed device, and usually the process that used it."""
    line, pid = said.line, said.number("pid")
    rank = attempt.processes.of_pid(pid, line.machine)
    if said.number("xid") in _ECHOES:
        attempt.claim("other", line, certain=False)
    elif rank is None and pid is not None:
        claim("device_error")(said, attempt)
    else:
        attempt.claim("device_error", line, accused=(rank,), certain=rank is not None)


def _fatal_python(said: Said, attempt: Attempt) -> None:
    """Python writes why it ends: a signal that its process has caused, or an error of its own."""
    what = said.text("what").strip()
    number = signals.BY_DESCRIPTION.get(what.lower().replace("-", " "))
    if number is not None:
        if not _signalled(said, attempt, number):
            attempt.claim("launcher_failure", said.line, certain=False)
    else:
        _raised(_FATAL, clean.prose(what, 400), said.line, attempt)


def _signalled(said: Said, attempt: Attempt, number: int | None = None) -> bool:
    """A process was ended by a signal that it caused itself. Returns whether it is known."""
    line = said.line
    number = number or signals.number_of(said.text("name") or "SEGV")
    if number is None:
        return False
    if line.rank is not None:
        notes = attempt.of(line.rank)
        notes.exit_signal = notes.exit_signal or number
        notes.exit_text = notes.exit_text or line.text.strip()[:200]
        notes.exit_ns = notes.exit_ns or line.at_ns
    elif line.local_rank is not None:
        failure = LauncherFailure(line.local_rank, None, -number, line.at_ns, line.machine)
        attempt.ends.failures.append(failure)
    elif (pid := line.pid or said.number("pid")) is not None:
        known = attempt.processes.of_pid(pid, line.machine)
        attempt.claim("launcher_failure", line, accused=(known,), certain=False)
    else:
        return False
    return True


def _kernel(said: Said, attempt: Attempt) -> None:
    """A debugger lists what a device runs: NCCL's kernels end once all members have come."""
    text = f"a device runs {said.text('kernel')}, which waits for the other members"
    line = said.line.saying(text)
    attempt.claim("other", line, certain=False, details=ClaimDetails(stands=True))


# fmt: off
ROWS = (
    row("device-memory", "own error",
        r"(?:OutOfMemoryError|RuntimeError)?:?\s*(?:CUDA|HIP|NPU|XPU) out of memory\. Tried to "
        "allocate", _memory,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.15 GiB",
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."),
    row("xid", "own error", r"NVRM: Xid \([^)]*\): (?P<xid>\d{1,3}), (?:pid='?(?P<pid>\d+)'?)?",
        _xid,
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."),
    row("device-error", "own error",
        r"(?:CUDA|HIP) error: (?P<what>[a-z][^\n]{3,100}?(?:error encountered|launch failure|"
        r"memory access was encountered|detected during the execution|assert triggered|"
        r"unknown error|failure|error))|"
        r"(?P<fault>Memory access fault by GPU node-\d+|\w+_DEVICE_LOST\b|"
        r"\bring \S+ timeout, signaled seq=|amdgpu: GPU reset begin|"
        r"NVRM: .{0,80}?fallen off the bus|Unable to determine the device handle for GPU[ \d]|"
        r"HW Exception by GPU node-\d+.{0,80}?reason ?: ?GPU Hang)", _device,
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "Memory access fault by GPU node-2 (Agent handle: 0x5600) on address 0x7f00. Reason: "
        "Unknown.",
        "HW Exception by GPU node-4 (Agent handle: 0x55) reason :GPU Hang",
        "amdgpu 0000:03:00.0: amdgpu: ring comp_1.1.1 timeout, signaled seq=70, emitted seq=72"),
    row("device-kernel", "remark",
        r"^\*? *\d+ .{0,80}\bActive\b.{0,200}?\b(?P<kernel>nccl\w*Kernel\w*|ncclDevKernel\w*)",
        _kernel, "*      0      -   0 52162520 Active 0x00000001 (1,1,1) (64,1,1) "
        "ncclReduceRingLLKernel_sum_f64()"),
    row("nccl-own-device", "own error",
        r"\b(?:Cuda|HIP) failure (?:\d{1,4} )?'(?P<what>[^'\n]{3,120})'|ncclUnhandledCudaError|"
        r"NCCL error.{0,200}?unhandled cuda error", _own_device,
        "n0:30:60 [0] /nccl/src/transport.cc:33 NCCL WARN Cuda failure 'out of memory'",
        "ncclUnhandledCudaError: Call to CUDA function failed."),
    row("ascend-error", "remark", r"\bE[A-Z]\d{4}: .{0,60}?(?P<what>Failed to .{1,300})",
        claim("other", ClaimDetails(unattributed=True)),
        "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe "
        "the last training process is running."),
    row("nccl-shared-device", "own error",
        r"Duplicate GPU detected ?: rank (?P<a>\d{1,7}) and rank (?P<b>\d{1,7}) both on",
        _shared_device,
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000"),
    row("network-error", "lost peer",
        r"NCCL error.{0,200}?(?:remote process exited|unhandled system error|internal error)|"
        r"ncclRemoteError|ncclSystemError|commRemoteError|NCCL WARN Call to ibv_\w+ failed|"
        r"NET/\w*IB\w* ?: ?Got completion .* with (?:error|status=)|"
        r"socketProgress(?:Opt)?: Connection closed by remote peer|"
        r"failed : (?:Broken pipe|Connection reset|No route|Connection refused|Software caused)|"
        r"collective mismatch error, local size|Getting socket times out|"
        r"\|CCL_ERROR\||comm aborted due to timeout|"
        r"\[Proxy Service \d+\] Failed to execute operation|UCX +(?:ERROR|Fatal)|"
        r"Transport retry count exceeded on |"
        r"NET/\w*IB.{0,80}?(?:sync fatal event|Got async event ?: (?:port error|"
        r".{0,40}(?:catastrophic|fatal|violation)))|wait socket establish timeout|"
        r"NET/OFI .{0,300}?(?:completed with error|failed: )|efa\w*_handle_error\(\)|"
        r"Transport init error! createLink|ExceptionType:\[(?:Heartbeat Lost|Error cqe) Occurred\]|"
        r"RPC agent for \S{1,200} encountered error when .{1,300}?: (?!.*expected to happen)|"
        r"socket\w*: wrong magic \w+ != |Failed to send RPC to coordination service|"
        r"undelivered_message_attempt, .{1,600}?(?:broken link|channel closed)",
        _network,
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
        " prematurely.",
        "n1:30:60 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<48000> with error 12, "
        "opcode 0, len 0, vendor err 129",
        "Call to recv from 10.0.0.1<42000> failed : Connection reset by peer",
        "n1:30:60 [1] NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, "
        "retcode 6",
        "n1:30:60 [1] NCCL WARN socketFinalizeAccept: wrong magic 20544547 != 9f8e7d6c",
        "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was "
        "preempted/died/restarted unexpectedly or this task is experiencing network issues.",
        "name:undelivered_message_attempt, sender:tcp:10.0.0.1:50143,client[0], dest:tcp:10.0.0.2:"
        "50201,agent[0], error:broken link: failed to enqueue: channel closed"),
    row("kernel-oom", "own error", (
        r"[Oo]ut of memory: Killed process (?P<pid>\d+)", r"oom-kill:.{0,400}?pid=(?P<pid>\d+)",
        r"oom_reaper: reaped process (?P<pid>\d+)"), _killed_for_memory,
        "Out of memory: Killed process 4711 (python3) total-vm:98000kB",
        "oom_reaper: reaped process 4711 (python3), now anon-rss:0kB"),
    row("container-oom", "own error",
        r"[Oo][Oo][Mm][_-][Kk]ill event|OOM ?[Kk]illed|killed due to memory pressure|"
        "killed due to the node running low on memory|exceeds the memory usage threshold of",
        claim("oom"),
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0",
        "Last State: Terminated Reason: OOMKilled"),
    row("fatal-python", "own error", r"Fatal Python error: (?P<what>[^\n]{1,300})", _fatal_python,
        "Fatal Python error: Segmentation fault",
        "Fatal Python error: none_dealloc: deallocating None"),
    row("own-signal", "end",
        r"Segmentation fault|signal (?:SIG)?SEGV|\*\*\* SIG(?P<name>[A-Z]{3,5}) "
        r"(?:received at time=|\(@.{1,300}? received by PID (?P<pid>\d{1,9}))",
        _signalled,
        "*** SIGSEGV received at time=1700000000 on cpu 12 ***",
        "*** SIGSEGV (@(nil)), see gl__________41#s15 received by PID 4711 (TID 4720) on cpu 17; "
        "stack trace: ***"),
    row("nan", "own error",
        r"checkForNaN|Minimum loss scale reached|[Ll]oss is (?:nan|inf|NaN)\b|"
        r"\bNaN or Inf found|[Rr]ank (?P<rank>\d{1,7}): found (?:nan|inf|NaN|Inf) in local|"
        r"unexpected result (?:nan|inf) on rank (?P<other>\d{1,7})",
        own_error("nan"),
        "rank 3: found nan in local grad norm, aborting step",
        "FloatingPointError: Minimum loss scale reached (0.0001).",
        "Assertion failed: checkForNaN"),
    row("loader-worker", "remark",
        r"DataLoader worker \(pid(?:\(s\))? (\d+)[^)]*\) (?:is killed|exited)",
        own_error("other", certain=False),
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."),
    row("blocked", "remark",
        r"INFO: task (\S{1,40}):(?P<pid>\d{1,9}) blocked for more than \d+ seconds|"
        r"nfs: server \S+ not responding|LustreError: .{0,300}(?:rc = -1\d\d|timed out|was evicted)"
        r"|ptlrpc_expire_one_request|ceph: mds\d+ (?:hung|caps stale)|"
        r"beegfs: .{0,200}(?:timed out|offline)", claim("other", ClaimDetails(blocked=True)),
        "INFO: task python3:4711 blocked for more than 120 seconds.",
        "nfs: server filer1 not responding, still trying"),
)
# fmt: on
