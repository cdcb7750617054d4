"""Output of launchers other than torchrun about processes that ended.

`torch.multiprocessing.spawn`, DeepSpeed's launcher, Open MPI, PMIx (`prterun`) and MPICH or Intel
MPI (Hydra). Most of them report one end in two lines.
"""

from __future__ import annotations

import re

from hangscope.trace import signals
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.readers.process_ends import LauncherFailure

_SPAWN_ERROR = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
_SPAWN_END = re.compile(
    r"ProcessExitedException: process (\d{1,6}) terminated with "
    r"(?:signal SIG(?P<signal>\w+)|exit code (?P<code>\d{1,3}))"
)
_DEEPSPEED = re.compile(r"--local[_-]rank[=', ]+(\d{1,4})\b.*exits with return code = (-?\d{1,4})")
_MPI_NAME = re.compile(r"Process name:\s+\[(?:\[\d+,\d+\],|[\w.\-]+@\d+,)(\d{1,7})\]")
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d{1,7})\b")
_MPI_CODE = re.compile(r"^\s*Exit code:\s+(\d{1,3})")
_HYDRA_NAME = re.compile(r"RANK (\d{1,7}) PID (\d{1,9}) RUNNING AT (\S+)")
_HYDRA_PID = re.compile(r"^\W*PID (\d{1,9}) RUNNING AT (\S+)")
_ENDED_BY_HYDRA = re.compile(r"EXIT CODE: (?:9|15)\b")
"""MPICH reports the first process of its list that ended badly, and kills all others (SIGKILL) once
one has failed: usually the reported one is not the one that failed first."""
_HYDRA_END = re.compile(r"(?:KILLED BY SIGNAL|EXIT STRING|EXIT CODE): (\d{1,3})")
_COMPOSER = re.compile(r"^(?:ERROR:[\w.]+:)?Rank (\d{1,7}) crashed with exit code (-?\d{1,4})\.")
_COMPOSER_ENDS = re.compile(
    r"^(?:ERROR:[\w.]+:)?Global rank (\d{1,7}) \(PID (\d{1,9})\) exited with code (-?\d{1,4})"
)
_CHILD_ENDS = re.compile(
    r"(?:\[rank: (?P<local>\d{1,4})\] )?"
    r"Child process with PID (?P<pid>\d{1,9}) terminated with code (?P<code>-?\d{1,4})\.|"
    r"Worker \w+ pid (?P<worker>\d{1,9}) died, exit code: (?P<its>-?\d{1,4})"
)
"""Lightning's observer knows the pid, and the local rank of processes that it started; vLLM's
monitor knows only the pid."""
_EXECUTOR = re.compile(r"Worker proc VllmWorker-(\d{1,5}) died unexpectedly")
_SHELL = re.compile(
    r": line \d+: +(?P<pid>\d{1,9}) (?P<how>Killed|Segmentation fault|Bus error|Aborted)\b"
)
_SHELL_ALONE = re.compile(r"(?:^|[\])%\s])Killed\s*$|^Segmentation fault \(core dumped\)\s*$")
"""A shell's message about the end of its child, often after a progress bar."""
_LOST_NODE = re.compile(
    r"has been marked dead because the detector has missed too many heartbeats|"
    r"resources failed with non-zero exit code|^Error: failed to run torchrun |"
    r"ORTE has lost communication with a remote daemon|"
    r"PRTE has lost communication with a remote daemon|"
    r"\bEvicted +pod/|The node was low on resource|\bNodeNotReady\b|"
    r"the node \(where this task was running\) +was dead|srun: error: Node failure on "
)
_SILENCE = re.compile(
    r"Did not get (?:subsequent|initial) heartbeat\. Waited|"
    r"No available shared memory broadcast block found in \d+ seconds?|"
    r"reason=\[(?:task|stream sync) timeout\]|"
    r"atchdog timeout \(self\.watchdog_timeout=|Hang detected on rank (?P<rank>\d{1,7}) in PyExec"
)
_MONITORED_RANK = re.compile(r"\[RankMonitorServer:Rank=(\d{1,7})\]")
_STOPPED = re.compile(
    r"Received (?:Signals\.)?(?P<told>\d{1,2}|SIG\w{1,8}) death signal|"
    r"SignalException: Process \d+ got signal: (?:Signals\.)?(?P<got>\d{1,2}|SIG\w{1,8})|"
    r"(?:STEP|JOB) [\w.]+ ON \S+ CANCELLED AT|(?:^|\] )Received SIGTERM: 15"
)
"""Up to Python 3.10, a signal is printed by its name."""
WORDS = (
    "terminated with", "exits with return code", "Process name:", "MPI_ABORT", "RUNNING AT",
    "crashed with exit code", "exited with code", "died, exit code", "died unexpectedly", ": line ",
    "Killed", "Segmentation fault", "lost communication", "was dead", "Node failure on ",
    "heartbeat. Waited", "shared memory broadcast", "death signal", "got signal:", "CANCELLED AT",
    "Received SIGTERM", "too many heartbeats", "resources failed with", "failed to run torchrun",
    "atchdog timeout (self", " timeout]", "Evicted", "low on resource", "NodeNotReady",
    "Hang detected on",
)  # fmt: skip
_MAX_TRACEBACK = 120


class OtherLaunchers:
    """Follows reports of several lines."""

    def __init__(self) -> None:
        self._rank: int | None = None
        """The process whose end the next line describes."""
        self._writer: int | None = None
        self._until = 0

    def attributed(self, line: LogLine) -> LogLine:
        """The line, attributed to the spawned process whose traceback the parent repeats."""
        if self._writer is None:
            return line
        if line.number > self._until or line.rank is not None:
            self._writer = None
            return line
        return line._replace(local_rank=self._writer, excepthook=True)

    def follows(self, line: LogLine) -> bool:
        """Whether the line may describe the end of the process named above."""
        return self._rank is not None

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record what such a line says. Returns whether it was one."""
        text = line.text
        found = _SPAWN_ERROR.search(text)
        if found:
            self._writer, self._until = int(found.group(1)), line.number + _MAX_TRACEBACK
            return True
        found = _SPAWN_END.search(text)
        if found:
            signal = signals.number_of(found["signal"] or "")
            code = int(found.group("code") or 1) if signal is None else -signal
            _local_end(int(found.group(1)), code, line, at_ns, evidence)
            return True
        found = _DEEPSPEED.search(text)
        if found:
            _deepspeed(int(found.group(1)), int(found.group(2)), line, at_ns, evidence)
            return True
        return (
            self._mpi(line, at_ns, evidence)
            or _composer(line, at_ns, evidence)
            or _child(line, at_ns, evidence)
            or _executor(line, at_ns, evidence)
            or _shell(line, at_ns, evidence)
            or _silent(line, at_ns, evidence)
            or _stopped(line, at_ns, evidence)
        )

    def _mpi(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        text = line.text
        found = _MPI_NAME.search(text)
        if found:
            self._rank = int(found.group(1))
            return True
        found = _HYDRA_NAME.search(text)
        if found:
            self._rank = int(found.group(1))
            notes = evidence.of(self._rank)
            notes.pid, notes.host = int(found.group(2)), notes.host or found.group(3)
            return True
        found = _HYDRA_PID.search(text)
        if found:
            evidence.elastic = True  # under srun, a task is one of Hydra's proxies
            self._rank = evidence.processes.of_pid(int(found.group(1)), line.machine)
            if self._rank is None:
                evidence.claim("launcher_failure", line, at_ns, certain=False)
            return True
        found = _MPI_ABORT.search(text)
        if found:
            evidence.of(int(found.group(1))).ended(1, at_ns)
            return True
        if self._rank is None:
            return False
        code, signal = _MPI_CODE.search(text), _HYDRA_END.search(text)
        if code:
            evidence.of(self._rank).ended(int(code.group(1)), at_ns)
        elif signal and _ENDED_BY_HYDRA.search(text):
            evidence.claim("launcher_failure", line, at_ns, certain=False)
        elif signal:
            number = int(signal.group(1))
            killed = "SIGNAL" in text or "STRING" in text
            evidence.of(self._rank).ended(-number if killed else number, at_ns)
        else:
            return False
        self._rank = None
        return True


def _deepspeed(local: int, code: int, line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """DeepSpeed prints the command of the process it started last, whichever one failed."""
    if local == 0:  # the only process
        _local_end(local, code, line, at_ns, evidence)
    else:
        evidence.claim("launcher_failure", line, at_ns, certain=False)


def _local_end(local: int, code: int, line: LogLine, at_ns: int, evidence: Evidence) -> None:
    evidence.ends.failures.append(LauncherFailure(local, None, code, at_ns, line.machine))


def _stopped(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """The launcher itself, or the whole job, was told to stop."""
    found = _STOPPED.search(line.text)
    if not found:
        return False
    said = found["told"] or found["got"] or "15"
    evidence.ends.step_ended |= "CANCELLED AT" in line.text
    number = int(said) if said.isdigit() else signals.number_of(said) or signals.SIGTERM
    evidence.claim("other", line, at_ns, stopped=number)
    return True


def _composer(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Composer reports which rank failed first, stops the others, and reports how each ended."""
    found = _COMPOSER.match(line.text)
    if found:
        evidence.of(int(found.group(1))).ended(int(found.group(2)), at_ns)
        return True
    found = _COMPOSER_ENDS.match(line.text)
    if not found:
        return False
    rank, pid, code = (int(x) for x in found.groups())
    notes = evidence.of(rank)
    notes.pid = notes.pid or pid
    if code and not notes.has_ended:
        notes.ended(code, at_ns)
        notes.by_launcher = code in (-signals.SIGTERM, -signals.SIGKILL)
    return True


def _child(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    found = _CHILD_ENDS.search(line.text)
    if not found:
        return False
    pid, code = int(found["pid"] or found["worker"]), int(found["code"] or found["its"])
    rank = evidence.processes.of_pid(pid, line.machine)
    if rank is not None:
        evidence.of(rank).ended(code, at_ns)
    elif found["local"]:
        failure = LauncherFailure(int(found["local"]), pid, code, at_ns, line.machine)
        evidence.ends.failures.append(failure)
    else:
        evidence.claim("launcher_failure", line, at_ns, certain=False)
    return True


def _executor(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """vLLM's executor found a worker dead; its numbers are ranks."""
    found = _EXECUTOR.search(line.text)
    if not found:
        return False
    notes = evidence.of(int(found.group(1)))
    if not notes.has_ended:
        notes.found_dead, notes.exit_ns = True, notes.exit_ns or at_ns
        notes.exit_text = notes.exit_text or "its process died, says vLLM, and not how"
    return True


def _silent(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A supervisor has received no sign of life, as in every hang."""
    found = _SILENCE.search(line.text)
    if not found:
        return False
    watched = _MONITORED_RANK.search(line.text)
    rank = int(watched[1]) if watched else line.rank
    if found["rank"]:
        rank = int(found["rank"])
    evidence.claim("timeout", line, at_ns, reporter=rank, certain=False, silence=True)
    return True


def _shell(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A shell reports its child's end, or MPI or Ray a lost node, without naming a rank."""
    if "srun: error:" in line.text and "Node failure" not in line.text:
        return False  # it is about tasks
    found = _SHELL.search(line.text)
    rank = evidence.processes.of_pid(int(found["pid"]), line.machine) if found else None
    if found and rank is not None:
        evidence.of(rank).ended(-signals.BY_DESCRIPTION[found["how"].lower()], at_ns)
        return True
    alone = line.rank is None and line.local_rank is None and _SHELL_ALONE.search(line.text)
    if not (found or alone or _LOST_NODE.search(line.text)):
        return False
    evidence.claim("launcher_failure", line, at_ns, certain=False)
    return True
