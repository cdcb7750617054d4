"""Process ends in the output of schedulers and MPI libraries that report one on a single line.

PALS and aprun (Cray), jsrun (IBM), MPICH's abort, LSF, PBS, Paddle's launcher, and launchers that
raise `subprocess.CalledProcessError` for the command that they ran.
"""

from __future__ import annotations

import re

from hangscope.trace import signals
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.readers.process_ends import LauncherFailure, TaskEnd

_TASK = re.compile(
    r"(?P<host>[\w.\-]{1,200}): rank (?P<task>\d{1,7}) "
    r"(?:died from signal (?P<signal>\d{1,2})|exited with code (?P<code>\d{1,3}))\b"
)
_FIRST = re.compile(r"first noticed rank (\d{1,7})\) terminated with signal (\d{1,2})")
_PE = re.compile(
    r"\[NID (\d{1,8})\].{0,200} PE RANK (\d{1,7}) exit (?:signal (?P<how>[A-Z][\w ]+)|"
    r"code (?P<code>\d{1,3}))"
)
_ABORT = re.compile(
    r"Abort\((-?\d{1,12})\) on node (\d{1,7}) \(rank \d{1,7} in comm \d{1,12}\): (.{1,40})"
)
_CALLED = re.compile(
    r"CalledProcessError: Command .* (?:returned non-zero exit status (?P<code>-?\d{1,4})|"
    r"died with <Signals\.SIG\w+: (?P<signal>\d{1,2})>)"
)
_CONTAINER = re.compile(r"Container rank (\d{1,4}) status failed cmd .* code (-?\d{1,4})\b")
_LIMIT = re.compile(r"\bTERM_(?P<lsf>[A-Z_]{4,20}): job killed|PBS: job killed: (?P<pbs>\w{3,20})")
_STATE = re.compile(
    r"^\s*\d{1,12}(?:_\d{1,9})?(?:\.\w{1,20})?[\s|].{0,400}?[\s|](?P<state>OUT_OF_ME[A-Z]*|NODE_FAIL|"
    r"BOOT_FAIL|PREEMPTED|CANCELLED|TIMEOUT|FAILED)\+?(?: by \d+)?[\s|]+\d{1,3}:\d{1,3}(?:[\s|]|$)"
)
"""A row of Slurm's accounting (``sacct``): a job or step, its state and how it ended."""
_STATES_OF_NODES = ("NODE_FAIL", "BOOT_FAIL", "FAILED")
WORDS = (
    "OUT_OF_ME", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "CANCELLED", "TIMEOUT", "FAILED",
    ": rank ", "noticed rank ", "Container rank ", " PE RANK ", "CalledProcessError", "job killed",
    "Abort(",
)  # fmt: skip
"""Every line understood here contains one of these."""
_OF_MEMORY = ("MEMLIMIT", "SWAP", "mem", "vmem", "pmem")


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what such a line says. Returns whether it was one."""
    text = line.text
    found = _TASK.search(text)
    if found:
        code = int(found["code"]) if found["code"] else None
        signal = int(found["signal"]) if found["signal"] else None
        end = TaskEnd(int(found["task"]), found["host"], code, signal, at_ns)
        evidence.ends.of_tasks.append(end)
        return True
    found = _FIRST.search(text)
    if found:
        end = TaskEnd(int(found[1]), line.host or "", None, int(found[2]), at_ns)
        evidence.ends.of_tasks.append(end)
        return True
    found = _PE.search(text)
    if found:
        signal = signals.BY_DESCRIPTION.get((found["how"] or "").strip().lower())
        code = int(found["code"]) if found["code"] else None
        evidence.ends.of_tasks.append(TaskEnd(int(found[2]), f"nid{found[1]}", code, signal, at_ns))
        return True
    found = _ABORT.search(text)
    if found:
        _mpich(found, line, at_ns, evidence)
        return True
    found = _CONTAINER.search(text)
    if found:
        failure = LauncherFailure(int(found[1]), None, int(found[2]), at_ns, line.machine)
        evidence.ends.failures.append(failure)
        return True
    return (
        _called(line, at_ns, evidence)
        or _limit(line, at_ns, evidence)
        or _accounted(line, at_ns, evidence)
    )


def _mpich(found: re.Match[str], line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """MPICH's "node" is a rank of the world; a failure inside a call may be a peer's fault."""
    rank = int(found[2])
    if found[3].startswith("application called"):
        evidence.of(rank).ended(abs(int(found[1])) % 256 or 1, at_ns)
    else:
        evidence.of(rank)
        evidence.claim("network_error", line, at_ns, reporter=rank, certain=False)


def _called(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A launcher that started one command per node cannot say whose process failed it."""
    if not _CALLED.search(line.text):
        return False
    evidence.claim("launcher_failure", line, at_ns, certain=False)
    return True


def _accounted(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """The state of a job or step, for all of its ranks together."""
    found = _STATE.match(line.text)
    if found is None:
        return False
    state = found["state"]
    if state.startswith("OUT_OF_ME"):
        evidence.claim("oom", line, at_ns, certain=False)
    elif state in _STATES_OF_NODES:
        evidence.claim("launcher_failure", line, at_ns, certain=False)
    else:
        evidence.claim("other", line, at_ns, stopped=signals.SIGTERM)
    return True


def _limit(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A batch system ended the whole job."""
    found = _LIMIT.search(line.text)
    if found is None:
        return False
    if (found["lsf"] or found["pbs"]) in _OF_MEMORY:
        evidence.claim("oom", line, at_ns, certain=False)
    else:
        evidence.claim("other", line, at_ns, stopped=signals.SIGTERM)
    return True
