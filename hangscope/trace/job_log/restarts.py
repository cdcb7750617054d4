"""Detects restarts in a log that does not mention them.

By default torchrun prints which workers failed, but not that it restarts them. A restart shows when
the same agent then mentions processes other than those whose failure it has reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangscope.trace.job_log.lines.line import LogLine

RESTARTED = "Worker group FAILED. 0/0 attempts left; will restart worker group"
"""Torchrun's own message, which it prints if told to."""

_FAILED = re.compile(r"failed \(exitcode: -?\d{1,4}\) local_rank: \d{1,5} \(pid: (\d{1,9})\)")
_STOPPED = re.compile(r"(?:Sending|Closing) process (\d{1,9}) (?:closing|via) signal")
_MOST_HELD = 20_000
"""How many lines are held back until it is clear whether there was a restart."""

_Agent = tuple[str | None, int | None, int]


def with_restarts(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines, with `RESTARTED` inserted after the last line of every attempt but the newest."""
    held: list[LogLine] = []
    workers: dict[_Agent, set[int]] = {}
    failed: set[_Agent] = set()
    for line in lines:
        agent, worker, has_failed = _worker_event(line)
        if agent is not None and worker is not None:
            if agent in failed and worker not in workers[agent]:
                yield line.saying(RESTARTED)._replace(rank=None)
                yield from held
                held, failed, workers = [], set(), {}
            workers.setdefault(agent, set()).add(worker)
        if not failed:
            yield line
        else:
            held.append(line)
            if "will restart worker group" in line.text or len(held) > _MOST_HELD:
                yield from held  # torchrun says so itself, or there was no restart
                held, failed, workers = [], set(), {}
        if has_failed and agent is not None:
            failed.add(agent)
    yield from held


def _worker_event(line: LogLine) -> tuple[_Agent | None, int | None, bool]:
    """The agent that mentions a worker, the worker's pid, and whether it failed."""
    if line.pid is None or ("process" not in line.text and "exitcode" not in line.text):
        return None, None, False
    found = _FAILED.search(line.text)
    stopped = None if found else _STOPPED.search(line.text)
    which = found or stopped
    if which is None:
        return None, None, False
    return (line.host, line.node, line.pid), int(which[1]), found is not None
