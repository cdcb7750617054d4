"""Reads plain job logs, often all that is left of a hang.

Readers gather evidence from the lines (`readers`). Once all are read, its ranks and groups and its
meaning are resolved (`resolving`). Operations and counters become rows marked as inferred
(`Flag.SYNTHETIC`), statements become claims (`fragments`).
"""

from __future__ import annotations

import calendar
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from hangscope.trace.files import file_names
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.file_attribution import FileWriter, ranks_in_name
from hangscope.trace.job_log.fragments import fragments_of
from hangscope.trace.job_log.hangscope_output import HangscopeLines
from hangscope.trace.job_log.lines import truncation
from hangscope.trace.job_log.lines.line import LogLine, Machine
from hangscope.trace.job_log.lines.rank_numbers import TORCHRUN, NumberMeaning, RankNumbers
from hangscope.trace.job_log.lines.stream import read_lines
from hangscope.trace.job_log.lines.unknown_prefixes import UnknownPrefixes
from hangscope.trace.job_log.readers.registry import Readers, telling_words
from hangscope.trace.job_log.restarts import with_restarts
from hangscope.trace.job_log.rows import watchdog
from hangscope.trace.model import Fragment

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 12


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
    meaning = NumberMeaning(*ranks_in_name(str(file))) if file is not None else NumberMeaning()
    if year is None:
        year = _year_of(file)
    machines: set[Machine] = set()
    with rewindable(stream) as stream:
        begins_inside = truncation.is_of_an_error(stream.readline(_LONGEST_LINE))
        stream.seek(0)
        evidence = gather(read_lines(stream, telling_words(), machines), year, meaning)
        while evidence.instead is not None:
            meaning = evidence.instead
            stream.seek(0)
            evidence = gather(read_lines(stream, telling_words()), year, meaning)
        evidence.cut |= bool(getattr(stream, "is_truncated", False)) or begins_inside
    evidence.processes.machines |= machines
    for seen in evidence.stacks:
        seen.at_ns = seen.at_ns or _written_ns(file)
        if seen.pid is None and file is not None:
            seen.pid = file_names.pid_of_stacks(file)
    return fragments_of(evidence, path, whole_file_rank=meaning.own_rank)


def gather(lines: Iterable[LogLine], year: int, meaning: NumberMeaning | None = None) -> Evidence:
    """Offer every line to the readers that may know it.

    Returns at once, with `Evidence.instead` set, if a line shows that ``meaning`` is wrong.
    """
    meaning = meaning or NumberMeaning()
    evidence, numbers = Evidence(), RankNumbers(meaning)
    own, unknown = HangscopeLines(), UnknownPrefixes()
    of_file = FileWriter(meaning.own_rank, meaning.own_local)
    readers = Readers(year)
    newest: LogLine | None = None
    for line in with_restarts(lines):
        newest = line
        if own.holds(line, evidence) or of_file.is_heading(line):
            continue
        if of_file.is_another(line):
            evidence.instead = replace(meaning, own_rank=None)
            return evidence
        line = unknown.taken_off(of_file.attributed(line))
        evidence.instead = numbers.contradicted_by(line)
        if evidence.instead is not None:
            return evidence
        line = readers.attributed(numbers.attributed(line), evidence)
        readers.truncation.note(line)
        line = _with_known_rank(line, evidence)
        at_ns = _at_ns(line.at, year) if line.at is not None else 0
        readers.read(line, at_ns, evidence)
        if evidence.over:
            again = evidence.over == "again"
            evidence = evidence.next_attempt()
            readers, numbers = Readers(year), RankNumbers(meaning)
            readers.truncation.note(line)
            if again:
                readers.read(_with_known_rank(line, evidence), at_ns, evidence)
    readers.finish(evidence)
    if newest is not None:
        _note_last(newest, readers, evidence)
    return evidence.newest_that_tells()


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


def _with_known_rank(line: LogLine, evidence: Evidence) -> LogLine:
    """The line with its rank, if its process is already known; records its writer."""
    if not evidence.elastic and ("distributed" in line.file or "distributed" in line.text):
        evidence.elastic = bool(TORCHRUN.search(line.file) or TORCHRUN.search(line.text))
    evidence.lines += 1
    evidence.thinned |= line.repeated and line.level in ("E", "F") and bool(line.file)
    machine = line.machine
    if not machine.is_unknown:
        evidence.processes.machines.add(machine)
    if line.rank is not None and not line.printed:
        _note_writer(line, line.rank, evidence)
    elif line.pid is not None:
        rank = evidence.processes.of_pid(line.pid, line.machine)
        return line if rank is None else line._replace(rank=rank)
    return line


def _note_writer(line: LogLine, rank: int, evidence: Evidence) -> None:
    notes = evidence.of(rank)
    evidence.writer = rank
    evidence.shared_tasks |= line.node not in (None, rank)
    if line.pid is not None:
        notes.pid = notes.pid or line.pid
    if line.local_rank is not None:
        notes.local_rank = line.local_rank
    if line.pid is not None or line.local_rank is not None:
        evidence.processes.wrote(rank, line.machine, line.pid, line.local_rank)
    if line.host:
        notes.host = notes.host or line.host


def _note_last(newest: LogLine, readers: Readers, evidence: Evidence) -> None:
    """Interpret the last line of a log: ranks are still at rendezvous, or the log is truncated."""
    meeting = evidence.meeting
    if meeting is not None and meeting.line == newest.number:
        evidence.claim(
            "rendezvous",
            newest,
            0,
            reporter=meeting.rank,
            certain=False,
            joined=meeting.joined,
            clients=meeting.world,
            world_size=meeting.world,
        )
    unfinished = watchdog.is_unfinished(newest)
    evidence.cut |= unfinished or readers.is_truncated(newest)
    if unfinished and newest.rank is not None:
        evidence.of(newest.rank).partly_recorded = True


@lru_cache(maxsize=1024)
def _at_ns(at: tuple[int, int, int], year: int) -> int:
    """Local time to the second as if it were UTC: only good for ordering within a log."""
    month, day, second = at
    try:
        return (calendar.timegm((year, month, day, 0, 0, 0)) + second) * 10**9
    except (ValueError, OverflowError):
        return 0


def _written_ns(file: Path | None) -> int:
    try:
        return file.stat().st_mtime_ns if file is not None else 0
    except OSError:
        return 0


def _year_of(file: Path | None) -> int:
    try:
        stamp = file.stat().st_mtime if file is not None else time.time()
    except OSError:
        stamp = time.time()
    return time.gmtime(stamp).tm_year
