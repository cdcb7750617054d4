"""Ray's reports of dead workers, which state the pid instead of the rank."""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, LogLine, Machine
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.readers.process_ranks import Process

_RAYLET = re.compile(r"Worker PID: (\d{1,9}) Worker exit type: SYSTEM_ERROR")
_ACTOR = re.compile(
    r"The actor died unexpectedly|The actor is dead because its worker process|"
    r"The actor died because of an error raised in .{0,200}?\(pid=(?P<pid>\d{1,9})\b"
    r"(?:, ip=(?P<ip>[\w.:\-]{1,60}))?"
)
_WORKER = re.compile(
    r"\bip=(?P<ip>[\w.:\-]{1,60}), pid=(?P<pid>\d{1,9})\) world_rank=(?P<rank>\d{1,7})\b"
)
"""Ray Train lists the workers that it has started."""
_FIELD = re.compile(r"\s*(class_name|actor_id|pid|name|namespace|ip|label): ?(\S*)\s*")

WORDS = ("Worker PID: ", "The actor ", "world_rank=")


class RayDeaths:
    """Follows the lines of a report, which states the pid on a separate line."""

    def __init__(self) -> None:
        self._open = False
        self._pid: int | None = None
        """The process whose pid has been stated but whose node has not."""

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a report."""
        return self._open

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record one line of such a report. Returns whether it was one."""
        found = _RAYLET.search(line.text)
        if found:
            evidence.ends.found_dead.setdefault(Process(int(found.group(1)), line.machine), at_ns)
            return True
        worker = _WORKER.search(line.text)
        if worker:
            rank, machine = int(worker["rank"]), Machine(worker["ip"])
            evidence.of(rank)
            evidence.processes.is_told(rank, int(worker["pid"]), machine)
            return True
        actor = _ACTOR.search(line.text)
        if actor:
            self._open, self._pid = True, None
            if actor["pid"]:
                self._died(int(actor["pid"]), actor["ip"], at_ns, evidence)
            return True
        if not self._open:
            return False
        field = _FIELD.fullmatch(line.text)
        if field is None:
            self._open = False
            return False
        if field.group(1) == "pid" and field.group(2)[:9].isdigit():
            self._pid = int(field.group(2)[:9])
            self._died(self._pid, None, at_ns, evidence)
        elif field.group(1) == "ip" and self._pid is not None:
            evidence.ends.found_dead.pop(Process(self._pid, UNKNOWN_MACHINE), None)
            self._died(self._pid, field.group(2), at_ns, evidence)
        return True

    def _died(self, pid: int, ip: str | None, at_ns: int, evidence: Evidence) -> None:
        evidence.ends.found_dead.setdefault(Process(pid, Machine(ip)), at_ns)
