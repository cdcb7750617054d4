"""Plain job logs as fragments: often all that is left of a hang.

Readers gather evidence from the lines (`readers`); what they found is settled here: whose it
was, in which group, and what it makes of each rank. Operations and counters become rows that say
they were concluded, statements become claims.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from hangscope.trace.facts import UNRECORDED
from hangscope.trace.files import file_names
from hangscope.trace.job_log.fragments import fragments_of
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.stream import read_lines
from hangscope.trace.job_log.lines.unknown import UnknownPrefix
from hangscope.trace.job_log.readers import watchdog
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.readers.roster import Readers
from hangscope.trace.job_log.restarts import with_restarts
from hangscope.trace.model import Fragment

_FILE, _FILE_ENDS = "==> ", " <=="
"""How ``head`` and ``tail`` tell whose lines follow."""
_OWN = "[hangscope]"
_OWN_LINES = 400
_VERDICT = re.compile(r"(?!more: |moving again|[a-z])\S")
"""A verdict is a sentence; what else HangScope says begins with a small letter."""
_UNRECORDED = re.compile(r"rank (\d{1,7}): not recording, the job goes on: (?P<why>[^;]{1,200})")
_TORCHRUN = re.compile(r"torch[./]distributed[./](?:elastic[./]|run(?:\.py|:|$))")
_OTHERS = re.compile(
    r"(?:\[rank ?\d|\[[EWIF]\d|[EWIF]\d{4} \d\d:|Traceback|Failures:|Root Cause|=====|srun:|"
    r"terminate called|\S+ FAILED|[\w.]+(?:Error|Exception):)"
)


def read_job_log(
    stream: BinaryIO, *, path: str, file: Path | None = None, year: int | None = None
) -> list[Fragment]:
    """One fragment per rank that the log speaks about, and one for the rest (rank -1).

    Parameters
    ----------
    stream:
        The log as bytes; read once, from front to back, in bounded memory.
    path:
        Its name as reports show it.
    file:
        Its real path: a log whose name holds a rank is that rank's, unless others write into it.
    year:
        Of its lines, which carry none; by default that of the file, else the present one.
    """
    own_rank, own_local = _of_file(str(file)) if file is not None else (None, None)
    if year is None:
        year = _year_of(file)
    evidence = gather(read_lines(stream), year, own_rank=own_rank, own_local=own_local)
    if evidence.not_its_own and stream.seekable():
        stream.seek(0)
        own_rank = None
        evidence = gather(read_lines(stream), year, own_local=own_local)
    for seen in evidence.stacks:
        seen.at_ns = seen.at_ns or _written_ns(file)
    return fragments_of(evidence, path, whole_file_rank=own_rank)


def gather(
    lines: Iterable[LogLine],
    year: int,
    *,
    own_rank: int | None = None,
    own_local: int | None = None,
) -> Evidence:
    """Run every line past the readers that may know it.

    Returns at once, with `Evidence.not_its_own`, where another rank than ``own_rank`` writes.
    """
    evidence = Evidence()
    of_file = own_rank
    readers = Readers(year)
    unknown = UnknownPrefix()
    skip_own = 0
    newest: LogLine | None = None
    for line in with_restarts(lines):
        text = line.text
        newest = line
        if _OWN in text and text.lstrip().startswith(_OWN):
            skip_own = _OWN_LINES  # our own report quotes evidence; it is none
            said = text.lstrip()[len(_OWN) :].strip()
            if _VERDICT.match(said):
                evidence.claim("own_report", line.saying(said), 0, certain=False)
            elif unrecorded := _UNRECORDED.match(said):
                whose = (int(unrecorded[1]),)
                evidence.claim(UNRECORDED, line.saying(unrecorded["why"]), 0, accused=whose)
            continue
        if skip_own:
            plain = line.rank is None and not line.level and not _OTHERS.match(text)
            skip_own = skip_own - 1 if plain else 0
            if plain:
                continue
        if text.startswith(_FILE) and text.endswith(_FILE_ENDS):
            own_rank, own_local = _of_file(text[len(_FILE) : -len(_FILE_ENDS)])
            of_file = None
            continue
        if of_file is not None and line.rank not in (None, of_file) and not line.printed:
            evidence.not_its_own = True
            return evidence
        if line.rank is None and (own_rank is not None or own_local is not None):
            line = line._replace(
                rank=own_rank,
                local_rank=line.local_rank if own_local is None else own_local,
            )
        line = readers.logged.attributed(unknown.taken_off(line))
        line = readers.starters.attributed(line)
        line = readers.table.attributed(line)
        if not evidence.elastic and ("distributed" in line.file or "distributed" in line.text):
            evidence.elastic = bool(_TORCHRUN.search(line.file) or _TORCHRUN.search(line.text))
        at_ns = _at_ns(line.at, year) if line.at is not None else 0
        readers.cut.note(line)
        evidence.lines += 1
        evidence.thinned |= line.repeated and line.level in ("E", "F") and bool(line.file)
        if line.rank is not None and not line.printed:
            _note_writer(line, evidence)
        elif line.pid is not None and line.pid in evidence.pid_rank:
            line = line._replace(rank=evidence.pid_rank[line.pid])
        readers.read(line, at_ns, evidence)
        if evidence.attempt != readers.attempt:  # nothing of an earlier life goes on
            readers = Readers(year, evidence.attempt)
            readers.cut.note(line)
    readers.stalls.finish(evidence)
    readers.ras.finish(evidence)
    readers.announced.finish(evidence)
    readers.kernels.finish(evidence)
    if newest is not None and evidence.meeting and evidence.meeting[0] == newest.number:
        _, rank, joined, world = evidence.meeting  # it ends with ranks that wait for one another
        evidence.claim(
            "rendezvous", newest, 0, reporter=rank, certain=False, joined=joined, clients=world
        )
    if newest is not None and readers.cut.is_part(newest):
        evidence.cut = True
    if newest is not None and watchdog.is_unfinished(newest):
        evidence.cut = True
        if newest.rank is not None:
            evidence.of(newest.rank).half_told = True
    evidence.fall_back()
    return evidence


def _of_file(name: str) -> tuple[int | None, int | None]:
    """The rank and the local rank that the name of a log states."""
    path = Path(name)
    return file_names.rank_of_log(path), file_names.local_rank_of_log(path)


def _note_writer(line: LogLine, evidence: Evidence) -> None:
    rank = line.rank
    assert rank is not None
    notes = evidence.of(rank)
    evidence.writer = rank
    evidence.shared_tasks |= line.node not in (None, rank)
    if line.pid is not None:
        notes.pid = notes.pid or line.pid
        evidence.pid_rank.setdefault(line.pid, rank)
    if line.local_rank is not None:
        notes.local_rank = line.local_rank
        evidence.local_to_rank.setdefault(line.local_rank, rank)
    if line.host is not None:
        notes.host = notes.host or line.host


@lru_cache(maxsize=1024)
def _at_ns(at: tuple[int, int, int], year: int) -> int:
    """Wall clock to the second, as if it were UTC: good for order within a log, no more."""
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
