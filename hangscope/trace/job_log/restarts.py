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
        told, ended = None, None
        if line.pid is not None and ("process" in line.text or "exitcode" in line.text):
            ended = _FAILED.search(line.text)
            told = ended or _STOPPED.search(line.text)
        if told:
            agent = (line.host, line.node, line.pid or 0)
            worker = int(told[1])
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
        if ended:
            failed.add(agent)
    yield from held
