"""How ranks die: tracebacks, memory, devices, signals."""

from __future__ import annotations

import re

from hangscope.trace import clean
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence, Trouble
from hangscope.trace.model import Frame

_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,8}), in (\S.{0,200}?)\s*$')
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\)")
_RAIL = re.compile(r"^\s*(?:\| ?|\+-[+\-]*(?: \d+ -+)?)")
"""What Python draws in front of the tracebacks inside of an `ExceptionGroup`."""
_HEAD = re.compile(r"^\s*(?:\^C)*(?P<box>╭─+ )?Traceback \(most recent call last\)")
_LOGGED = re.compile(r": Traceback \(most recent call last\):\s*$")
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""A checkpoint tells all ranks what some of them failed of."""
_DURING = "During handling of the above exception, another exception occurred"
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception"
_BOX_FRAME = re.compile(r"^[│|\s]*(\S.{0,400}?):(\d{1,8}) in (\S{1,200})\s*[│|]?\s*$")
_THREAD = re.compile(r"Exception in thread (.{1,80}?):?\s*$")
_RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,120}"
    r"|(?:[a-z_]\w{0,80}\.){1,12}[A-Za-z]\w{0,120})"
    r"(?::\s?(?P<message>.*))?$",
    re.S,
)
_ERROR_ALONE = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception): ")
_LAUNCHER_ERRORS = (
    "ChildFailedError", "SignalException", "CalledProcessError", "ProcessRaisedException",
    "ProcessExitedException",
)  # fmt: skip
_MEMORY = re.compile(
    r"(?:OutOfMemoryError|RuntimeError)?:?\s*(?:CUDA|HIP|NPU|XPU) out of memory\. Tried to allocate"
)
_GARBAGE_SIZE = "more than 1EB memory"
_DEVICE = re.compile(
    r"(?:CUDA|HIP) error: (?P<what>[a-z][^\n]{3,100}?(?:error encountered|launch failure|"
    r"memory access was encountered|detected during the execution|assert triggered|"
    r"unknown error|failure|error))|"
    r"(?P<fault>Memory access fault by GPU node-\d+|\w+_DEVICE_LOST\b)"
)
_NCCL = re.compile(
    r"NCCL error.{0,80}?(?:remote process exited|unhandled system error|internal error)|"
    r"ncclRemoteError|ncclSystemError|NET/IB\w* ?: ?Got completion .* with (?:error|status=)|"
    r"NCCL WARN Call to ibv_\w+ failed|"
    r"socketProgress(?:Opt)?: Connection closed by remote peer|"
    r"failed : (?:Broken pipe|Connection reset|No route|Connection refused|Software caused)|"
    r"collective mismatch error, local size|Getting socket times out|"
    r"comm aborted due to timeout|commRemoteError|"
    r"\[Proxy Service \d+\] Failed to execute operation|UCX +ERROR"
)
_NCCL_DEVICE = re.compile(
    r"\b(?:Cuda|HIP) failure (?:\d{1,4} )?'(?P<what>[^'\n]{3,120})'|ncclUnhandledCudaError|"
    r"NCCL error.{0,80}?unhandled cuda error",
    re.S,
)
"""The communicator's call into the driver failed: this rank's own device, not its peers'."""
_SHARED = re.compile(r"Duplicate GPU detected ?: rank (\d{1,7}) and rank (\d{1,7}) both on")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d{1,3}), (?:pid='?(\d+)'?)?")
_OOM_KILL = re.compile(
    r"Out of memory: Killed process (\d+)|oom-kill:.{0,400}?pid=(\d+)|"
    r"oom_reaper: reaped process (\d+)"
)
_OOM_EVENT = re.compile(
    r"oom[_-]kill event|OOMKilled|OOM Killed|killed due to memory pressure|"
    r"killed due to the node running low on memory",
    re.I,
)
_SEGFAULT = re.compile(
    r"Fatal Python error: (?P<what>[\w ]+)|Segmentation fault|signal (?:SIG)?SEGV|"
    r"\*\*\* SIGSEGV received at time="
)
_NAN = re.compile(
    r"checkForNaN|Minimum loss scale reached|loss is (?:nan|inf)\b|\bNaN or Inf found", re.I
)
_LOADER = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d+)[^)]*\) (?:is killed|exited)")
_COMM = re.compile(
    r"comm 0x[0-9a-f]+ rank (\d+) n[rR]anks (\d+) .{0,400}?"
    r"(?:Init COMPLETE|Init START|Abort COMPLETE)"
)
_NCCL_PID = re.compile(r"^([\w.\-]+):(\d+):\d+ \[\d+\]")
_REPORTED = re.compile(r"\[RANK (\d+)\]")
_GROUP_ARGUMENT = re.compile(
    r"\b(?:(?:process_)?group|pg)\s*=\s*(?!None\b|(?:\w+\.)*(?:GroupMember|group)\.WORLD\b)[\w(\[]"
)
_OF_TORCH = re.compile(r"[/\\]torch[/\\]")
_CARETS = re.compile(r"[\s^~]+")
WORDS = (
    "out of memory", "Out of memory", "CUDA error", "HIP error", "Memory access fault",
    "_DEVICE_LOST", "comm 0x", " failure ", "ncclUnhandledCudaError", "unhandled cuda error",
    "Duplicate GPU", "NCCL error", "ncclRemoteError", "ncclSystemError", "Got completion",
    "Call to ibv_", "Connection closed by remote peer", "failed : ", "collective mismatch error",
    "Getting socket times out", "comm aborted due to", "commRemoteError",
    "Failed to execute operation", "UCX ", "oom-kill", "oom_reaper", "NVRM: Xid",
    "Fatal Python error: ", "Segmentation fault", "SEGV", "DataLoader worker",
)  # fmt: skip
FORM = re.compile(f"{_OOM_EVENT.pattern}|{_NAN.pattern}", re.I)
TRACEBACK_WORDS = (
    "Traceback (most recent", "Exception in thread ", _DURING, _DIRECT_CAUSE, "Error: ",
    "Exception: ",
)  # fmt: skip
_MAX_FRAMES = 128
_MAX_MESSAGE_LINES = 4


Writer = tuple[int | None, int | None, int | None]
"""(rank, None, None), or (None, local rank, process id) where the rank is not known."""


class Tracebacks:
    """Follows tracebacks line by line, one for every writer, because writers interleave."""

    def __init__(self) -> None:
        self._open: dict[Writer, Trouble] = {}
        self._closed: dict[Writer, tuple[Trouble, int]] = {}
        self._thread: dict[Writer, str] = {}
        self._last: dict[Writer, Trouble] = {}
        self._causes: dict[Writer, Trouble] = {}
        """What the traceback that follows was raised from."""
        self._handled: dict[Writer, Trouble] = {}
        """What was being handled when the traceback that follows came."""
        self._boxed: set[Writer] = set()
        """Writers inside a box that the ``rich`` library draws around a traceback."""
        self._grouped: set[Writer] = set()

    def follows(self, line: LogLine) -> bool:
        """Whether the line may belong to a traceback that its writer has begun."""
        if line.excepthook:
            return True
        if not (self._open or self._closed or self._grouped):
            return False
        key = _writer(line)
        return key in self._open or key in self._closed or key in self._grouped

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Note one line of a traceback. Returns whether it was one."""
        key = _writer(line)
        text = line.text
        if _GROUP.match(text):
            self._grouped.add(key)
            text = text.replace("+ Exception Group ", "", 1)
        elif key in self._grouped and _RAIL.match(text):
            text = _RAIL.sub("", text)
            line = line.saying(text)
        else:
            self._grouped.discard(key)
        thread = _THREAD.search(text)
        if thread:
            self._thread[key] = clean.name(thread.group(1))
        if _DIRECT_CAUSE in text and key in self._last:
            self._causes[key] = self._last[key]
            return True
        if _DURING in text and key in self._last:
            self._handled[key] = self._last[key]
            return True
        head = _HEAD.match(text) or (_LOGGED.search(text) if line.rank is not None else None)
        if head:
            (
                self._boxed.add
                if "box" in head.groupdict() and head.group("box")
                else self._boxed.discard
            )(key)
            of_rank = _OF_RANK.search(text)
            self._open[key] = Trouble(
                at_ns=at_ns,
                line=line.number,
                uncaught=line.excepthook,
                thread_name=self._thread.pop(key, "MainThread"),
                of_rank=int(of_rank[1]) if of_rank else None,
            )
            self._closed.pop(key, None)
            return True
        current = self._open.get(key)
        if current is None:
            self._last_line_alone(key, line, at_ns, evidence)
            return self._message_tail(key, line)
        if key in self._boxed and text.lstrip().startswith("╰"):
            self._boxed.discard(key)
            return True
        boxed = key in self._boxed
        frame = (_BOX_FRAME if boxed else _FRAME).match(text)
        if boxed and not frame:
            return True
        if frame:
            file, number, name = frame.groups()
            if len(current.frames) < _MAX_FRAMES:
                current.frames.append(Frame(clean.name(name), clean.name(file), int(number)))
            return True
        if text.startswith((" ", "\t")) and not text.lstrip().startswith("File"):
            _note_group(current, text)
            return True  # a source line, or the carets below it
        if not current.frames:
            if line.number - current.line > 20:
                del self._open[key]
            return False
        raised = _RAISED.match(text.strip())
        if not raised:
            if line.number - current.line > 400:
                del self._open[key]
            return False
        del self._open[key]
        current.type_name = clean.name(raised.group("type"))
        current.message = clean.prose(raised.group("message") or "", 2000)
        current.frames.reverse()  # innermost first
        self._last[key] = current
        handled = self._handled.pop(key, None)
        if handled is not None:
            current.during = handled.during or handled
        cause = self._causes.pop(key, None)
        if cause is not None:
            said = cause.message.strip().splitlines()
            current.cause = cause.cause or f"{cause.type_name}: {said[0] if said else ''}"[:1000]
        if current.type_name.rsplit(".", 1)[-1] in _LAUNCHER_ERRORS:
            return False
        self._closed[key] = (current, line.number)
        if current.of_rank is not None:  # told by every rank, and of the one behind its own words
            notes = evidence.of(current.of_rank)
            notes.troubles = [t for t in notes.troubles if t.of_rank is None] + [current]
        elif line.rank is not None:
            notes = evidence.of(line.rank)
            if len(notes.troubles) < 50:
                notes.troubles.append(current)
        else:
            evidence.troubles.append((line.local_rank, line.pid, line.node, current))
        return False  # other readers may know the message

    def _last_line_alone(
        self,
        key: Writer,
        line: LogLine,
        at_ns: int,
        evidence: Evidence,
    ) -> None:
        """The line that names an uncaught exception, of which the rest is not in the log."""
        if not line.excepthook or line.rank is None or key in self._closed:
            return
        raised = _RAISED.match(line.text) if _ERROR_ALONE.match(line.text) else None
        notes = evidence.of(line.rank)
        if raised is None or notes.troubles:
            return
        trouble = Trouble(
            type_name=clean.name(raised.group("type")),
            message=clean.prose(raised.group("message") or "", 2000),
            at_ns=at_ns,
            line=line.number,
            uncaught=True,
        )
        notes.troubles.append(trouble)
        self._closed[key] = (trouble, line.number)

    def _message_tail(self, key: Writer, line: LogLine) -> bool:
        """Messages of several lines (Gloo, NCCL) go on behind the line with the type."""
        closed = self._closed.get(key)
        if closed is None:
            return False
        trouble, last = closed
        if line.number - last > _MAX_MESSAGE_LINES or not line.text.strip():
            del self._closed[key]
            return False
        if trouble.message.count("\n") < _MAX_MESSAGE_LINES and not line.level:
            trouble.message = (trouble.message + "\n" + line.text.strip())[:2000].strip()
        return False


def _writer(line: LogLine) -> Writer:
    return (line.rank, None, None) if line.rank is not None else (None, line.local_rank, line.pid)


def _note_group(trouble: Trouble, source: str) -> None:
    """Note whether the innermost line of the user's own names a group."""
    if not trouble.frames or _CARETS.fullmatch(source):
        return
    if _OF_TORCH.search(trouble.frames[-1].filename) is None:
        trouble.in_group = bool(_GROUP_ARGUMENT.search(source))


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Note what a line says about a device, memory or a signal. Returns whether it said it."""
    text = line.text
    accused = () if line.rank is None else (line.rank,)
    if _MEMORY.search(text):
        if _GARBAGE_SIZE in text:
            evidence.claim("size_mismatch", line, at_ns, certain=False, garbage=True)
        else:
            evidence.claim("oom", line, at_ns, accused=accused)
        return True
    device = _DEVICE.search(text)
    if device:
        what = device.group("what") or device.group("fault")
        if line.rank is None and line.local_rank is not None and not _RAISED.match(text.strip()):
            _of_local_rank(line, at_ns, evidence)
        evidence.claim("device_error", line, at_ns, accused=accused, what=what)
        return True
    if "NCCL" in text or "nccl" in text:
        _communicator(line, evidence)
    own = _NCCL_DEVICE.search(text)
    if own:
        _own_device(own, line, at_ns, evidence)
        return True
    shared = _SHARED.search(text)
    if shared:  # both chose it, whichever of them says so
        both = (int(shared.group(1)), int(shared.group(2)))
        for member in both:
            evidence.of(member)
        evidence.claim("shared_device", line, at_ns, accused=both)
        return True
    if _NCCL.search(text):
        if "collective mismatch" in text:  # a peer announced more bytes than there is room for
            evidence.claim("size_mismatch", line, at_ns, certain=False)
            return True
        evidence.claim("network_error", line, at_ns, certain=False)
        return True
    found = _OOM_KILL.search(text)
    if found:
        evidence.oom_pids.add(int(next(g for g in found.groups() if g)[:9]))
        evidence.claim("oom", line, at_ns, certain=False, kernel=True)
        return True
    if _OOM_EVENT.search(text):
        evidence.claim("oom", line, at_ns, certain=False, kernel=True)
        return True
    found = _XID.search(text)
    if found:
        pid = int(found.group(2)[:9]) if found.group(2) else None
        rank = evidence.pid_rank.get(pid) if pid is not None else None
        evidence.claim(
            "device_error",
            line,
            at_ns,
            accused=() if rank is None else (rank,),
            certain=rank is not None,
            xid=int(found.group(1)),
            pid=pid,
        )
        return True
    found = _SEGFAULT.search(text)
    if found and line.rank is None and line.local_rank is not None:
        evidence.launcher_failures.append((line.local_rank, -1, -11, at_ns, line.node, line.host))
        return True
    if found and line.rank is None and line.pid is not None:
        evidence.claim("launcher_failure", line, at_ns, certain=False, pid=line.pid)
        return True
    if found and line.rank is not None:
        notes = evidence.of(line.rank)
        notes.exit_signal = notes.exit_signal or 11
        notes.exit_text = notes.exit_text or text.strip()[:200]
        notes.exit_ns = notes.exit_ns or at_ns
        return True
    if _NAN.search(text):
        evidence.claim("nan", line, at_ns, accused=accused, certain=False)
        return True
    if _LOADER.search(text):
        evidence.claim("other", line, at_ns, accused=accused, certain=False, data_loader=True)
        return True
    return False


def _of_local_rank(line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """What a driver prints is no traceback, but ends its process as one does."""
    said = clean.prose(line.text.strip(), 400)
    trouble = Trouble("device error", said, at_ns=at_ns, line=line.number, uncaught=True)
    evidence.troubles.append((line.local_rank, line.pid, line.node, trouble))


def _own_device(found: re.Match[str], line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """A failure of the device, told by NCCL with the rank or the process in front."""
    rank, where = line.rank, _NCCL_PID.match(line.text)
    if rank is None and where:
        rank = evidence.pid_rank.get(int(where.group(2)[:9]))
    what = found.group("what")
    kind = "oom" if what == "out of memory" else "device_error"
    accused = () if rank is None else (rank,)
    evidence.claim(
        kind, line, at_ns, accused=accused, certain=rank is not None, what=what or "CUDA error"
    )


def _communicator(line: LogLine, evidence: Evidence) -> None:
    """NCCL's own lines tell which process is which rank of the largest communicator."""
    found = _COMM.search(line.text)
    if not found:
        return
    rank, size = int(found.group(1)[:7]), int(found.group(2)[:7])
    if size < (evidence.comm_size or 0):
        return
    if size > (evidence.comm_size or 0):
        evidence.comm_size = size
    where = _NCCL_PID.match(line.text)
    host, pid = (where.group(1), int(where.group(2)[:9])) if where else (line.host, line.pid)
    if evidence.world_size is not None and size < evidence.world_size:
        return
    notes = evidence.of(line.rank_or(rank))
    notes.host = notes.host or host
    if pid is not None:
        notes.pid = notes.pid or pid
        evidence.pid_rank[pid] = notes.rank
