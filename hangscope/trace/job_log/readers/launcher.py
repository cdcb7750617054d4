"""Rendezvous, the store, and what launchers and schedulers say about the processes they started."""

from __future__ import annotations

import calendar
import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.model import MAX_RANK

_CLIENTS = re.compile(r"waiting for (?:clients|workers)\. (\d+)/(\d+) (?:clients|workers) joined")
_STORE_BARRIER = re.compile(
    r"rank:? ?(?P<rank>\d+), (?:for )?key: \S*store_based_barrier_key\S*\s*"
    r"\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
)
_MISSING = re.compile(
    r"Timed out waiting on barrier on rank (\d+), for key prefix: .*?world_size=(\d+), "
    r"missing_ranks=\[([\d,\s]*)\]"
)
_UNIQUE_ID = re.compile(
    r"\[(\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(\d+)\]"
)
_CANNOT_REACH = re.compile(
    r"client socket has (?:timed out after|failed to connect to)|"
    r"TCP client failed to connect/validate to host"
)
_RENDEZVOUS = re.compile(
    r"Rendezvous(?:Timeout|Closed|Connection)Error|has failed to send a keep-alive heartbeat"
)
_STORE_GONE = re.compile(
    r"(?:sendBytes|recvValue\w*|recvVector) failed on SocketImpl\(|"
    r"\(maybe TCPStore server has shut down too early\)"
)
_STORE_WAIT = re.compile(r"wait timeout after \d+ms, keys: |Timeout waiting for key: ")
_ADDRESS = re.compile(r"wait timeout after \d+ms, keys: \S*default_pg/\d*//cpu//(?:\d+/)*(\d+)\s*$")
"""Gloo gives up waiting for the address of the rank whose number ends the key; in the key of a
smaller group (``default_pg/0//3//cpu``) it would be a place."""
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) (?:for binary located at .{0,1000}? with )?local_rank: "
    r"(?P<local>\d+) \((?:pid|process ID): (?P<pid>\d+)\)"
)
_CLOSING = re.compile(
    r"Sending process (\d+) closing signal SIG\w+|Closing process (\d+) via signal SIG\w+|"
    r"Unable to shutdown process (\d+) via"
)
_T_HOST = re.compile(r"^\s*host\s+: (\S+)")
_T_RANK = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: (\d+)\)")
_T_TIME = re.compile(r"^\s*time\s+: \d{4}-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_T_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_T_TRACE = re.compile(r"^\s*traceback\s*: (.*)")
_T_ROW = re.compile(
    r"^(?:\[\d+\]:)?(?P<time>\s*time\s*: .{19,40}) host\s*: (?P<host>\S+) rank\s*: (?P<rank>\d+) "
    r"\(local_rank: (?P<local>\d+)\) exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
"""All of it in one line, as collectors join the lines of a message."""
_T_NEXT = re.compile(r"^\s*(?:\[\d+\]:|-{5,}|={5,})")
_QUOTED = "Traceback (most recent call last)"
_SRUN = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.*)")
_STEP_ENDS = re.compile(
    r"srun: .*?Terminating (?:StepId|job step)|slurmstepd: .*? CANCELLED AT |srun: Job step aborted"
)
_MPIRUN = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_RESTART = re.compile(r"Worker group FAILED\. \d+/\d+ attempts left; will restart worker group")
_BANNER = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|\[runner\.py:\d+:main\] cmd ="
)
"""What torchrun and DeepSpeed say when they start."""
_WORLD = re.compile(
    r"(?:^|[\s,({'\"])(?:WORLD_SIZE|[Ww]orld[_ ]size|num_processes|dist_world_size)['\"]?"
    r"\s*(?:[=:]|is)\s*['\"]?(\d{1,6})\b"
    r"|GLOBAL_RANK: \d+, MEMBER: \d+/(\d{1,6})\b|Starting with (\d{1,6}) processes"
)
TABLE = re.compile(r"^\s*(?:time|host|rank)\s+:|^(?:\[\d+\]:)?\s*time\s*: ")
"""How a row begins that tells of another process."""
_OF_THE_WORLD = ("orld", "WORLD", "num_p", "MEMBER", "Starting with")
WORDS = (
    "Worker group FAILED", "OMP_NUM_THREADS", "[runner.py:", "failed (exitcode:", "closing signal",
    "Closing process", "Unable to shutdown", "srun", "slurmstepd", "exited on signal", " joined",
    "store_based_barrier_key", "Timed out waiting on barrier", "is setting up NCCL communicator",
    "wait timeout after", "Timeout waiting for key", "client socket has", "TCP client failed",
    "Rendezvous", "keep-alive heartbeat", " failed on SocketImpl(",
    "TCPStore server has", *_OF_THE_WORLD,
)  # fmt: skip
_WORDS = {
    "killed": 9,
    "terminated": 15,
    "aborted": 6,
    "segmentation fault": 11,
    "bus error": 7,
    "floating point exception": 8,
}


class LauncherTable:
    """The failure table of torch elastic, which spreads one process over several lines."""

    def __init__(self, year: int) -> None:
        self.rank: int | None = None
        self.host: str | None = None
        self._year = year
        """Of all lines of the log: those above and below the table state none."""
        self._at_ns = 0
        self._quotes = False
        """Whether the lines that come are the traceback that the process left in its error file."""

    def attributed(self, line: LogLine) -> LogLine:
        """The line, with the rank whose traceback the table quotes there."""
        if self.rank is None or line.rank is not None:
            return line
        found = _T_TRACE.match(line.text)
        if found and found.group(1).startswith(_QUOTED):
            self._quotes = True
            line = line.saying(found.group(1))
        if not self._quotes:
            return line
        if _T_NEXT.match(line.text):
            self._quotes, self.rank = False, None
            return line
        return line.saying(line.text.removeprefix("  "))._replace(rank=self.rank, printed=True)

    def follows(self, line: LogLine) -> bool:
        """Whether the line may be the table's as well."""
        return self.rank is not None

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Note one line of the table. Returns whether it was one."""
        text = line.text
        row = _T_ROW.match(text)
        if row:
            self._at_once(row, at_ns, evidence)
            return True
        found = _T_TIME.match(text)
        if found:
            self._at_ns = _moment_ns(found, self._year)
            return True
        found = _T_HOST.match(text)
        if found:
            self.host = found.group(1)
            return True
        found = _T_RANK.match(text)
        if found:
            self.rank = int(found.group(1)[:8])
            notes = evidence.of(self.rank)
            notes.local_rank = int(found.group(2)[:8])
            notes.host = notes.host or self.host
            return True
        if self.rank is None:
            return False
        found = _T_EXIT.match(text)
        if found:
            notes = evidence.of(self.rank)
            notes.pid = int(found.group(2)[:9])
            evidence.pid_rank[notes.pid] = self.rank
            # The table says when it happened; the lines around it, when it was printed.
            notes.exit_ns = self._at_ns or notes.exit_ns
            ended(evidence, self.rank, int(found.group(1)[:6]), at_ns)
            self._at_ns = 0
            return True
        found = _T_TRACE.match(text)
        if found:
            notes = evidence.of(self.rank)
            if "To enable traceback" not in found.group(1):
                notes.exit_text = notes.exit_text or found.group(1).strip()[:300]
            self.rank = None
            return True
        return False

    def _at_once(self, row: re.Match[str], at_ns: int, evidence: Evidence) -> None:
        rank, pid = int(row["rank"][:8]), int(row["pid"][:9])
        notes = evidence.of(rank)
        notes.local_rank, notes.host = int(row["local"][:8]), notes.host or row["host"]
        notes.pid, evidence.pid_rank[pid] = pid, rank
        time = _T_TIME.match(row["time"])
        notes.exit_ns = (_moment_ns(time, self._year) if time else 0) or notes.exit_ns
        ended(evidence, rank, int(row["code"][:6]), at_ns)


def _moment_ns(found: re.Match[str], year: int) -> int:
    """A date as if it were UTC, like all times of a log."""
    month, day, hour, minute, second = (int(x) for x in found.groups())
    try:
        return calendar.timegm((year, month, day, hour, minute, second)) * 10**9
    except (ValueError, OverflowError):
        return 0


def ended(evidence: Evidence, rank: int, code: int, at_ns: int) -> None:
    """Note an exit status: negative is a signal, 128 + n as well."""
    notes = evidence.of(rank)
    if code < 0:
        notes.exit_signal = -code
    elif 128 < code <= 128 + 64:
        notes.exit_signal = code - 128
        notes.exit_code = code
    else:
        notes.exit_code = code
    notes.exit_ns = notes.exit_ns or at_ns


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Note what such a line says. Returns whether it was one."""
    text = line.text
    if _RESTART.search(text) or (_BANNER.search(text) and _has_ended(evidence)):
        evidence.restart()
        return True
    if _failures(line, at_ns, evidence) or _meeting(line, at_ns, evidence):
        return True
    maybe = any(word in text for word in _OF_THE_WORLD)
    world = _WORLD.search(text) if maybe else None
    stated = int(next(g for g in world.groups() if g)) if world else 0
    if 0 < stated <= MAX_RANK + 1:
        evidence.world_size = max(evidence.world_size or 0, stated)
    return False


def _has_ended(evidence: Evidence) -> bool:
    """Whether a job has ended in this log: a start after that is another, appended to it."""
    return (
        bool(evidence.launcher_failures)
        or evidence.step_ended
        or any(
            notes.exit_code is not None or notes.exit_signal is not None
            for notes in evidence.ranks.values()
        )
    )


def _failures(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    text = line.text
    found = _FAILED.search(text)
    if found:
        code, local, pid = (int(found.group(n)[:9]) for n in ("code", "local", "pid"))
        evidence.launcher_failures.append((local, pid, code, at_ns, line.node, line.host))
        return True
    found = _CLOSING.search(text)
    if found:
        evidence.terminated_pids.add(int(next(pid for pid in found.groups() if pid)[:9]))
        return True
    found = _SRUN.search(text)
    if found:
        _srun(found, at_ns, evidence)
        return True
    if "srun" in text or "slurmstepd" in text:
        evidence.step_ended |= bool(_STEP_ENDS.search(text))
    found = _MPIRUN.search(text)
    if found:
        rank = int(found.group(1)[:7])
        notes = evidence.of(rank)
        notes.host = notes.host or found.group(3)
        ended(evidence, rank, -int(found.group(4)[:3]), at_ns)
        return True
    return False


def _srun(found: re.Match[str], at_ns: int, evidence: Evidence) -> None:
    """Task numbers are ranks where one task is one rank; with torchrun a task is a node."""
    how = found.group("how").lower()
    code = re.search(r"exited with exit code (\d{1,3})", how)
    signal = next((n for word, n in _WORDS.items() if word in how), None)
    oom = "out of memory" in how or "oom" in how
    for low, high in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", found.group("tasks")):
        for task in range(int(low), min(int(high or low), int(low) + 10000) + 1):
            if evidence.step_ended and signal in (9, 15) and not oom:
                evidence.stopped_tasks.add(task)
            evidence.task_ends.append(
                (
                    task,
                    found.group("host"),
                    int(code.group(1)) if code else None,
                    signal,
                    oom,
                    at_ns,
                )
            )


def _meeting(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    text = line.text
    found = _CLIENTS.search(text)
    if found:
        joined, world = (int(x[:7]) for x in found.groups())
        evidence.world_size = evidence.world_size or world
        evidence.claim("rendezvous", line, at_ns, certain=False, joined=joined, clients=world)
        return True
    if "store_based_barrier_key" in text:
        found = _STORE_BARRIER.search(text)
        if found:
            return _store_barrier(line, at_ns, evidence, found)
    found = _MISSING.search(text)
    if found:
        missing = tuple(int(x) for x in re.findall(r"\d{1,7}", found.group(3)))
        evidence.world_size = evidence.world_size or int(found.group(2)[:7])
        reporter = int(found.group(1)[:7])
        evidence.of(reporter)
        evidence.claim("missing_ranks", line, at_ns, accused=missing, reporter=reporter)
        return True
    found = _UNIQUE_ID.search(text)
    if found:
        rank = line.rank_or(int(found.group(1)[:7]))
        evidence.of(rank)
        # The group's first rank has not made its communicator: late, elsewhere or dead.
        evidence.claim(
            "rendezvous",
            line,
            at_ns,
            reporter=rank,
            certain=False,
            waits_for_group_rank=int(found.group(2)[:7]),
            place=None if line.rank is None else int(found.group(1)[:7]),
        )
        return True
    found = _ADDRESS.search(text)
    if found:
        rank = int(found[1][:7])
        evidence.claim("rendezvous", line, at_ns, certain=False, waits_for_address_of=rank)
        return True
    if _STORE_GONE.search(text):
        evidence.claim("other", line, at_ns, certain=False, store_gone=True)
        return False  # an exception may say so, too
    if _CANNOT_REACH.search(text) or _RENDEZVOUS.search(text) or _STORE_WAIT.search(text):
        evidence.claim("rendezvous", line, at_ns, certain=False)
        return True
    return False


def _store_barrier(line: LogLine, at_ns: int, evidence: Evidence, found: re.Match[str]) -> bool:
    rank, world, joined = (int(found.group(n)[:7]) for n in ("rank", "world", "joined"))
    evidence.world_size = evidence.world_size or world
    evidence.of(rank)
    if "Timed out initializing" not in line.text:
        if evidence.meeting is None or evidence.meeting[2:] != (joined, world):
            evidence.at_meeting = set()
        evidence.meeting = (line.number, rank, joined, world)
        evidence.at_meeting.add(rank)
        return True
    accused = (1 - rank,) if world == 2 and joined < 2 and rank in (0, 1) else ()
    evidence.claim(
        "rendezvous",
        line,
        at_ns,
        accused=accused,
        reporter=rank,
        certain=bool(accused),
        joined=joined,
        world_size=world,
        store_based_barrier=True,
    )
    return True
