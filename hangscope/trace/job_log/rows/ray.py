"""Ray's reports of dead workers, which state the pid instead of the rank."""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, Machine
from hangscope.trace.job_log.rows.row import Report, Said, row

_FIELD = re.compile(r"\s*(class_name|actor_id|pid|name|namespace|ip|label): ?(\S*)\s*")


def _raylet(said: Said, attempt: Attempt) -> None:
    process = Process(said.number("pid") or 0, said.line.machine)
    attempt.ends.found_dead.setdefault(process, said.at_ns)


def _worker(said: Said, attempt: Attempt) -> None:
    """Ray Train lists the workers that it has started."""
    rank = said.number("rank", 7) or 0
    attempt.of(rank)
    attempt.processes.is_told(rank, said.number("pid") or 0, Machine(said.text("ip")))


def _actor(said: Said, attempt: Attempt) -> Report:
    """The lines below state the pid, and then the node."""
    dead, pid = attempt.ends.found_dead, said.number("pid")
    if pid is not None:
        dead.setdefault(Process(pid, Machine(said.text("ip") or None)), said.at_ns)
    pid = None
    field = _FIELD.fullmatch((yield True).text)
    while field is not None:
        if field[1] == "pid" and field[2][:9].isdigit():
            pid = int(field[2][:9])
            dead.setdefault(Process(pid, UNKNOWN_MACHINE), said.at_ns)
        elif field[1] == "ip" and pid is not None:
            dead.pop(Process(pid, UNKNOWN_MACHINE), None)
            dead.setdefault(Process(pid, Machine(field[2])), said.at_ns)
        field = _FIELD.fullmatch((yield True).text)


# fmt: off
ROWS = (
    row("raylet-worker-died", "end", r"Worker PID: (?P<pid>\d{1,9}) Worker exit type: SYSTEM_ERROR",
        _raylet, "Worker PID: 4711 Worker exit type: SYSTEM_ERROR Worker exit detail: ..."),
    row("ray-train-worker", "process",
        r"\bip=(?P<ip>[\w.:\-]{1,60}), pid=(?P<pid>\d{1,9})\) world_rank=(?P<rank>\d{1,7})\b",
        _worker, "- (node_id=8f, ip=10.0.0.7, pid=4711) world_rank=3, local_rank=1, node_rank=0"),
    row("ray-actor-died", "end",
        r"The actor died unexpectedly|The actor is dead because its worker process|"
        r"The actor died because of an error raised in .{0,200}?\(pid=(?P<pid>\d{1,9})\b"
        r"(?:, ip=(?P<ip>[\w.:\-]{1,60}))?", _actor,
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
)
# fmt: on
