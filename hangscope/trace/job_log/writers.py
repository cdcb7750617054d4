"""Decides which rank, local rank or process each line belongs to.

A name, tag or print is taken at its word until the log contradicts it. Then the log is read again
with the other meaning of its numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hangscope.trace.files import file_names
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine, Machine, NumberMeaning
from hangscope.trace.job_log.lines.line_shapes import shape_of
from hangscope.trace.job_log.rows.other_launchers import RepeatedTraceback

_FILE_BEGINS, _FILE_ENDS = "==> ", " <=="
"""How ``head`` and ``tail`` mark whose lines follow."""
_TORCHRUN = re.compile(r"torch[./]distributed[./](?:elastic[./]|run(?:\.py|:|$))")
"""In the file name or the text of messages of torchrun's agent."""
_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"error|critical|exception|fail|fatal", re.I)
_LONGEST_TRACEBACK = 120
"""Maximum number of lines of one traceback."""
_LONGEST_PREFIX = 160
_MOST_PREFIXES = 8
"""How many prefixes are kept per log; the newest ones count."""
_RANK = re.compile(
    r"(?<![A-Za-z])(?<!local[ _\-])(?<!node[ _\-])(?<!machine[ _\-])(?<!\b[tpdec]p[ _\-])"
    r"rank[ ]?[=:_\-#]?[ ]?(\d{1,7})(?!\d|\.\d)",
    re.IGNORECASE,
)
_HOST = re.compile(r"([A-Za-z][\w.\-]{1,62}): ")
_NO_PREFIX = re.compile(r"^\s|[\^│┃╭─]|\w\s*\($|traceback\s*:\s*$")
"""Indented text (part of a report), Ctrl-C as echoed by a terminal, boxes, and quotations."""


def ranks_in_name(name: str) -> NumberMeaning:
    """The rank and the local rank stated by the name of a log."""
    path = Path(name)
    return NumberMeaning(file_names.rank_of_log(path), file_names.local_rank_of_log(path))


class Writers:
    """Follows who writes the lines of one log."""

    def __init__(self, meaning: NumberMeaning) -> None:
        self._meaning = meaning
        self._file = meaning
        """What the name of the current file states."""
        self._whole: int | None = meaning.own_rank
        """The rank stated by the name of the whole log."""
        self._machines: dict[int, Machine] = {}
        """The machine that printed each number for itself."""
        self._prefixes: list[str] = []
        """Shapes of unknown prefixes."""
        self._until = 0
        """The last line that may have such a prefix."""
        self._before: LogLine | None = None
        self._logged_by: LogLine | None = None

    def next_attempt(self) -> None:
        """The job was started again."""
        self._machines, self._before, self._logged_by = {}, None, None

    def attributed(self, line: LogLine, attempt: Attempt) -> LogLine | None:
        """The line with its writer, as far as lines before it tell; None if it only tells that.

        Sets `Attempt.instead` if it shows that a number means something else.
        """
        if line.text.startswith(_FILE_BEGINS) and line.text.endswith(_FILE_ENDS):
            self._file = ranks_in_name(line.text[len(_FILE_BEGINS) : -len(_FILE_ENDS)])
            self._whole = None
            return None
        if self._whole is not None and line.rank not in (None, self._whole) and not line.printed:
            attempt.instead = replace(self._meaning, own_rank=None)
            return None
        rank, local = self._file.own_rank, self._file.own_local
        if line.rank is None and (rank, local) != (None, None):
            line = line._replace(rank=rank, local_rank=line.local_rank if local is None else local)
        line = self._without_prefix(line)
        attempt.instead = self._contradicted_by(line)
        line = self._of_logged(self._numbered(line))
        repeated = attempt.part(RepeatedTraceback)
        if line.number > repeated.until or line.rank is not None:
            repeated.until = 0
            return line
        return line._replace(local_rank=repeated.local_rank, excepthook=True)

    def _contradicted_by(self, line: LogLine) -> NumberMeaning | None:
        """Another meaning, if a line shows that the present one is wrong: an MPI launcher's tag is
        none of a rank, or two machines print the same number; torch's own labels do not count."""
        meaning, rank, task = self._meaning, line.rank, line.task
        if (
            task is not None
            and not meaning.tags_are_nodes
            and (rank not in (None, task) or is_of_torchrun(line))
        ):
            return replace(meaning, tags_are_nodes=True)
        if rank is None or not line.printed or meaning.prints_are_local or line.machine.is_unknown:
            return None
        if self._machines.setdefault(rank, line.machine).may_be(line.machine):
            return None
        return replace(meaning, prints_are_local=True)

    def _numbered(self, line: LogLine) -> LogLine:
        """The line with its numbers assigned to what they mean."""
        if self._meaning.prints_are_local and line.printed and line.rank is not None:
            line = line._replace(rank=None, local_rank=line.rank, printed=False)
        if line.task is None:
            return line
        if self._meaning.tags_are_nodes:
            return line._replace(node=line.task)
        return line if line.rank is not None else line._replace(rank=line.task)

    def _without_prefix(self, line: LogLine) -> LogLine:
        """The line of a traceback without an unknown prefix, which may state a rank or a host.

        A job's own logger, ``grep -r``, ``stern`` and hundreds of others put something in front of
        every line. A traceback reveals it: Python itself prints nothing before "Traceback".
        """
        text = line.text
        if "Traceback" in text:
            self._learn_prefix(line)
        elif line.number > self._until:
            return line
        for shape in self._prefixes:
            before = text[: len(shape)]
            if len(text) > len(shape) and shape_of(before) == shape:
                line = line.saying(text[len(before) :])
                rank, host = _RANK.search(before), _HOST.fullmatch(before)
                if line.rank is None and rank is not None:
                    return line._replace(rank=int(rank[1]), printed=True)
                return line if host is None else line._replace(host=line.host or host[1])
        return line

    def _learn_prefix(self, line: LogLine) -> None:
        """Record what precedes the head of a traceback."""
        at = line.text.find(_HEAD)
        if at < 0 or line.text[at:].rstrip() != _HEAD:
            return
        before, self._until = line.text[:at], line.number + _LONGEST_TRACEBACK
        if 0 < at <= _LONGEST_PREFIX and not _NO_PREFIX.search(before):
            shape = shape_of(before)
            if shape not in self._prefixes:
                self._prefixes = [shape, *self._prefixes][:_MOST_PREFIXES]

    def _of_logged(self, line: LogLine) -> LogLine:
        """A line of a traceback of Python's ``logging``, which prefixes only the message above: the
        lines of the traceback, up to the one with the exception, are the same writer's."""
        before, self._before = self._before, line
        if line.rank is not None:
            self._logged_by = line if line.text.rstrip().endswith(_HEAD) else None
            return line
        if line.level or line.pid is not None:
            self._logged_by = None
            return line
        is_head = line.text.startswith(_HEAD)
        if before is not None and is_head and _announces(before, line):
            self._logged_by = before
        writer = self._logged_by
        if writer is None or line.number > writer.number + _LONGEST_TRACEBACK:
            return line
        if line.text[:1] not in " \t" and not is_head:
            self._logged_by = None  # the line with the exception is the last one
        return line._replace(rank=writer.rank)


def is_of_torchrun(line: LogLine) -> bool:
    """Whether torchrun's agent has written the line."""
    if "distributed" not in line.file and "distributed" not in line.text:
        return False
    return bool(_TORCHRUN.search(line.file) or _TORCHRUN.search(line.text))


def _announces(before: LogLine, head: LogLine) -> bool:
    """Whether a line is the ``logging`` message that belongs to the head of a traceback.

    Messages from torch and its excepthook are complete in themselves; a line with another local
    rank or node is from another writer.
    """
    return (
        before.rank is not None
        and before.number == head.number - 1
        and not (before.level or before.excepthook)
        and head.local_rank in (None, before.local_rank)
        and head.node in (None, before.node)
        and _ERROR.search(before.text) is not None
    )


def with_known_rank(line: LogLine, attempt: Attempt) -> LogLine:
    """The line with its rank, if its process is already known; records its writer."""
    attempt.elastic = attempt.elastic or is_of_torchrun(line)
    attempt.lines += 1
    attempt.thinned |= line.repeated and line.level in ("E", "F") and bool(line.file)
    machine, rank, pid = line.machine, line.rank, line.pid
    if not machine.is_unknown:
        attempt.processes.machines.add(machine)
    if rank is None or line.printed:
        known = attempt.processes.of_pid(pid, machine) if pid is not None else None
        return line if known is None else line._replace(rank=known)
    notes = attempt.of(rank)
    attempt.writer = rank
    attempt.quoted.discard(rank)
    attempt.shared_tasks |= line.node not in (None, rank)
    notes.runs_as(line.host, pid)
    if line.local_rank is not None:
        notes.local_rank = line.local_rank
    if pid is not None or line.local_rank is not None:
        attempt.processes.wrote(rank, machine, pid, line.local_rank)
    return line
