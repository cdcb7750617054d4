"""Reads plain job logs, often all that is left of a hang.

Readers gather attempt from the lines (`readers`). Once all are read, its ranks and groups and its
meaning are resolved (`resolving`). Operations and counters become rows marked as inferred
(`Flag.SYNTHETIC`), statements become claims (`fragments`).
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hangscope.trace.files import file_names
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.fragments import fragments_of
from hangscope.trace.job_log.hangscope_output import HangscopeLines
from hangscope.trace.job_log.lines import truncation
from hangscope.trace.job_log.lines.line import LogLine, Machine, NumberMeaning
from hangscope.trace.job_log.lines.stream import read_lines
from hangscope.trace.job_log.readers.registry import Readers, telling_words
from hangscope.trace.job_log.rows.rendezvous import StoreBarrier
from hangscope.trace.job_log.writers import Writers, ranks_in_name, with_known_rank
from hangscope.trace.model import ClaimDetails, Fragment

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 12
_RESTARTED = "Worker group FAILED. 0/0 attempts left; will restart worker group"
"""Torchrun's own message, which it prints if told to."""

_FAILED = re.compile(r"failed \(exitcode: -?\d{1,4}\) local_rank: \d{1,5} \(pid: (\d{1,9})\)")
_STOPPED = re.compile(r"(?:Sending|Closing) process (\d{1,9}) (?:closing|via) signal")
_MOST_HELD = 20_000
"""How many lines are held back until it is clear whether there was a restart."""
_Agent = tuple[str | None, int | None, int]


def read_job_log(
    stream: BinaryIO, *, path: str, file: Path | None = None, year: int | None = None
) -> list[Fragment]:
    """One fragment per rank that the log mentions, and one for everything else (rank -1).

    Parameters
    ----------
    stream:
        The log as bytes; read sequentially, in bounded memory, and usually only once.
    path:
        Its name in reports.
    file:
        Its real path: a log whose name states a rank is that rank's, unless others write to it.
    year:
        Of its lines, which carry none; by default the file's year, else the current one.
    """
    meaning = ranks_in_name(str(file)) if file is not None else NumberMeaning()
    written_ns = _written_ns(file)
    year = year or time.gmtime(written_ns // 10**9 or None).tm_year
    machines: set[Machine] = set()
    with rewindable(stream) as stream:
        begins_inside = truncation.is_of_an_error(stream.readline(_LONGEST_LINE))
        stream.seek(0)
        attempt = gather(read_lines(stream, telling_words(), year, machines), year, meaning)
        while attempt.instead is not None:
            meaning = attempt.instead
            stream.seek(0)
            attempt = gather(read_lines(stream, telling_words(), year), year, meaning)
        attempt.cut |= bool(getattr(stream, "is_truncated", False)) or begins_inside
    attempt.processes.machines |= machines
    for seen in attempt.stacks:
        seen.at_ns = seen.at_ns or written_ns
        if seen.pid is None and file is not None:
            seen.pid = file_names.pid_of_stacks(file)
    return fragments_of(attempt, path, whole_file_rank=meaning.own_rank)


def gather(lines: Iterable[LogLine], year: int, meaning: NumberMeaning | None = None) -> Attempt:
    """Offer every line to the readers that may know it.

    Returns at once, with `Attempt.instead` set, if a line shows that ``meaning`` is wrong.
    """
    meaning = meaning or NumberMeaning()
    attempt, own, writers, readers = Attempt(), HangscopeLines(), Writers(meaning), Readers(year)
    newest: LogLine | None = None
    for line in _with_restarts(lines):
        newest = line
        if own.holds(line, attempt):
            continue
        written = writers.attributed(line, attempt)
        if attempt.instead is not None:
            return attempt
        if written is None:
            continue
        line = readers.attributed(written)
        readers.truncation.note(line)
        line = with_known_rank(line, attempt)
        readers.read(line, attempt)
        if attempt.over:
            again = attempt.over == "again"
            attempt, readers = attempt.next_attempt(), Readers(year)
            writers.next_attempt()
            readers.truncation.note(line)
            if again:
                readers.read(with_known_rank(line, attempt), attempt)
    readers.finish(attempt)
    if newest is not None:
        _note_last(newest, readers, attempt)
    return attempt.newest_that_tells()


def _with_restarts(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines, with `_RESTARTED` inserted after the last line of every attempt but the newest.

    By default torchrun prints which workers failed, but not that it restarts them. A restart shows
    when the same agent then mentions processes other than those whose failure it has reported.
    """
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
                yield line.saying(_RESTARTED)._replace(rank=None)
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


@contextmanager
def rewindable(stream: BinaryIO) -> Iterator[BinaryIO]:
    """The stream in a form that can be read again: a pipe is copied to disk."""
    if stream.seekable():
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy, _BLOCK)
        copy.seek(0)
        yield copy


def _note_last(newest: LogLine, readers: Readers, attempt: Attempt) -> None:
    """Interpret the last line of a log: ranks are still at rendezvous, or the log is truncated."""
    at = attempt.part(StoreBarrier)
    if at.line == newest.number:
        attempt.claim(
            "rendezvous", newest, reporter=at.rank, certain=False,
            details=ClaimDetails(joined=at.joined, clients=at.world, world_size=at.world),
        )  # fmt: skip
    unfinished = truncation.is_unfinished(newest.text)
    attempt.cut |= unfinished or readers.is_truncated(newest)
    if unfinished and newest.rank is not None:
        attempt.of(newest.rank).partly_recorded = True


def _written_ns(file: Path | None) -> int:
    try:
        return file.stat().st_mtime_ns if file is not None else 0
    except OSError:
        return 0
