"""Attempts of a job that one log holds, one after another, where no line says that it restarted.

By default torchrun prints which workers failed, but not that it starts them again. That it did
shows where the same agent then speaks of processes other than those whose failure it reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangscope.trace.job_log.lines.line import LogLine

BEGAN_ANEW = "Worker group FAILED. 0/0 attempts left; will restart worker group"
"""As torchrun says it where it is told to speak of it."""

_FAILED = re.compile(r"failed \(exitcode: -?\d{1,4}\) local_rank: \d{1,5} \(pid: (\d{1,9})\)")
_STOPPED = re.compile(r"(?:Sending|Closing) process (\d{1,9}) (?:closing|via) signal")
_MOST_HELD = 20_000
"""Lines that are held back until it shows whose they are."""

_Agent = tuple[str | None, int | None, int]


def with_restarts(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines, and `BEGAN_ANEW` behind the last one of every attempt but the newest."""
    held: list[LogLine] = []
    workers: dict[_Agent, set[int]] = {}
    failed: set[_Agent] = set()
    for line in lines:
        agent, worker, has_failed = _told(line)
        if agent is not None and worker is not None:
            if agent in failed and worker not in workers[agent]:
                yield line.saying(BEGAN_ANEW)._replace(rank=None)
                yield from held
                held, failed, workers = [], set(), {}
            workers.setdefault(agent, set()).add(worker)
        if not failed:
            yield line
        else:
            held.append(line)
            if "will restart worker group" in line.text or len(held) > _MOST_HELD:
                yield from held  # it says so itself, or nothing more comes of it
                held, failed, workers = [], set(), {}
        if has_failed and agent is not None:
            failed.add(agent)
    yield from held


def _told(line: LogLine) -> tuple[_Agent | None, int | None, bool]:
    """The agent that speaks of one of its workers, the worker's process, and whether it failed."""
    if line.pid is None or ("process" not in line.text and "exitcode" not in line.text):
        return None, None, False
    found = _FAILED.search(line.text)
    stopped = None if found else _STOPPED.search(line.text)
    which = found or stopped
    if which is None:
        return None, None, False
    return (line.host, line.node, line.pid), int(which[1]), found is not None
