"""Lists the files to read, below the given paths and inside archives."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from hangscope.ring.layout import SLOT
from hangscope.trace import formats
from hangscope.trace.files import file_names, sniff
from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.one_file import Task
from hangscope.trace.loading.search import UnrelatedFiles, files_below, os_error_text
from hangscope.trace.loading.temporary import temporary_folder
from hangscope.trace.model import Unread

BUNDLE = ".hangscope.tar.gz"
"""How the names of bundles end (`hangscope collect`), which are opened wherever they are found."""


class NotARun(Exception):  # noqa: N818
    """A directory holds so many other files that it cannot be a run; the text says what to give."""


def listed(paths: Sequence[str | Path], unread: list[Unread], budget: Budget) -> list[Task]:
    """One task for each file to read; archives are not opened.

    Parameters
    ----------
    paths:
        Files, directories and archives; ``"-"`` is standard input.
    unread:
        Receives what cannot be used.
    budget:
        What reading may cost; files that cost more are left out.

    Raises
    ------
    NotARun
        If a directory is not a run's.
    """
    tasks: list[Task] = []
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if str(path) == "-":
            tasks.append(Task("-", "standard input", sniff.Kind(formats.LOG), standard=True))
            continue
        strangers = UnrelatedFiles(str(path))
        for file, explicit in files_below(str(Path(path)), unread):
            task = _task(file, explicit, seen, unread, budget)
            if task is not None:
                tasks.append(task)
            if strangers.is_hopeless(task):
                raise NotARun(strangers.advice(tasks))
    return tasks


def opened(
    tasks: Sequence[Task], unread: list[Unread], folders: ExitStack, budget: Budget
) -> list[Task]:
    """The tasks with the files of archives in place of these.

    ``folders`` keeps the folders of unpacked archives until it is closed.
    """
    found: list[Task] = []
    for task in tasks:
        if task.kind.name in sniff.ARCHIVES:
            found += _archive_tasks(task, unread, folders, budget)
        else:
            found.append(task)
    return found


def _archive_tasks(
    archive: Task, unread: list[Unread], folders: ExitStack, budget: Budget
) -> Iterator[Task]:
    """The files of an archive, as if it had been unpacked by hand."""
    from hangscope.trace.loading.archives import extract_members

    folder = folders.enter_context(temporary_folder())
    for member in extract_members(
        archive.path, archive.shown, archive.kind, folder, unread, budget
    ):
        task = _task(member.path, False, set(), unread, budget, shown=member.shown)
        if task is not None:
            yield task


def _task(
    path: str,
    explicit: bool,
    seen: set[tuple[int, int]],
    unread: list[Unread],
    budget: Budget,
    shown: str = "",
) -> Task | None:
    shown = shown or file_names.printable_path(path)
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            if explicit and stat.S_ISFIFO(info.st_mode):
                return Task(path, shown, sniff.Kind(formats.LOG), explicit=True)
            unread.append(Unread(shown, "neither a file nor a directory"))
            return None
        if (info.st_dev, info.st_ino) in seen:
            return None
        seen.add((info.st_dev, info.st_ino))
        kind = sniff.sniff_file(path)
    except OSError as error:
        unread.append(Unread(shown, os_error_text(error)))
        return None
    if not explicit and _says_nothing(kind, path):
        return None
    bundled = explicit or path.endswith(BUNDLE)
    if kind.name in sniff.ARCHIVES and not bundled:  # usually checkpoints or data sets
        what = f"a {kind.name} archive; name it on the command line, or unpack it first"
        unread.append(Unread(shown, what))
        seen.discard((info.st_dev, info.st_ino))  # the user may also name it explicitly
        return None
    if kind.name in (sniff.EMPTY, sniff.UNKNOWN, formats.DEVICE_RING):
        unread.append(Unread(shown, kind.why))
        return None
    why = _refusal(kind, info, budget)
    if why:
        unread.append(Unread(shown, why))
        return None
    return Task(path, shown, kind, info.st_size, info.st_mtime_ns, explicit)


def _says_nothing(kind: sniff.Kind, path: str) -> bool:
    """Whether a file that was only found is not even worth a warning."""
    empty_log = kind.name == sniff.EMPTY and path.endswith((".log", ".out", ".err"))
    return empty_log or kind.name == formats.DEVICE_RING


def _refusal(kind: sniff.Kind, info: os.stat_result, budget: Budget) -> str:
    """Why a file exceeds the budget; empty if it does not, or is read piece by piece."""
    if kind.name == formats.RING:
        taken_bytes = min(kind.records * SLOT.itemsize, info.st_size)
        return budget.refusal(info, taken_bytes=taken_bytes, is_parsed=False)
    is_parsed = kind.name in (formats.PICKLE, formats.JSON, formats.JOURNAL)
    if is_parsed or kind.name == formats.LOG:
        return budget.refusal(info, taken_bytes=info.st_size, is_parsed=is_parsed)
    return ""
