"""Finds the files below a path that may belong to a job, and gives up on unrelated folders."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from hangscope.trace import formats
from hangscope.trace.files import file_names
from hangscope.trace.loading.one_file import Task
from hangscope.trace.model import Unread

SKIPPED_SUFFIXES = (".pyc", ".so", ".tmp", ".lock", ".pid", ".sock")
_SOURCES = (".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".js", ".css")
_SKIPPED_NAMES = ("expected.toml",)
"""A fixture's expectations about its dumps."""
_SKIPPED_FOLDERS = ("__pycache__", ".git", "node_modules")
_KERNEL_FOLDERS = ("proc", "sys", "dev")
"""Where these are mounted, reading a file may block forever."""
_MOST_LEVELS = 100
_LOG_NAMES = (".log", ".out", ".err", ".txt", ".log.gz", "stdout", "stderr")
MAX_UNRELATED = 20_000
"""How many texts below one path may look unrelated to a job: a run has few, a disk a million."""
_BINARIES_PER_TEXT = 10
"""Files of unknown kind weigh less, because a run may have many of them (parts of checkpoints)."""


def files_below(path: str, unread: list[Unread]) -> Iterable[tuple[str, bool]]:
    """The file itself, or all files below a directory, each with whether the user named it.

    Skipped are hidden files and folders, links to folders, programs and their sources, and the
    kernel's pseudo file systems.

    Parameters
    ----------
    path:
        A file or a directory.
    unread:
        Receives what cannot be accessed.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        unread.append(Unread(file_names.printable_path(path), os_error_text(error)))
        return
    if not stat.S_ISDIR(mode):
        yield path, True
        return

    def failed(error: OSError) -> None:
        name = file_names.printable_path(os.fsdecode(error.filename or path))
        unread.append(Unread(name, os_error_text(error)))

    for folder, folders, files in walk(path, failed):
        folders[:] = sorted(name for name in folders if not _is_skipped_folder(folder, name))
        for name in sorted(files, key=_natural):
            if not _is_skipped_name(name):
                yield os.path.join(folder, name).removeprefix("./"), False


def walk(
    path: str, failed: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, but not endlessly deep: up to Python 3.11 that recurses.

    ``failed`` is called with what cannot be entered.
    """
    base = path.rstrip(os.sep).count(os.sep)
    for folder, folders, files in os.walk(path, onerror=failed):
        yield folder, folders, files
        if folders and folder.count(os.sep) - base >= _MOST_LEVELS:
            folders.clear()
            if failed is not None:
                failed(OSError(errno.ELOOP, f"folders more than {_MOST_LEVELS} deep", folder))


def is_skipped_path(parts: Sequence[str]) -> bool:
    """Whether a file in an archive would be skipped in a directory."""
    hidden = any(part in _SKIPPED_FOLDERS or part[0] == "." for part in parts[:-1])
    return hidden or _is_skipped_name(parts[-1])


def _is_skipped_name(name: str) -> bool:
    hidden = name[0] == "." or name in _SKIPPED_NAMES
    return hidden or name.endswith((*SKIPPED_SUFFIXES, *_SOURCES))


class UnrelatedFiles:
    """Counts the files below one path that are unrelated to a job, until it is clear that it is no
    run.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._texts = 0
        self._others = 0

    def is_hopeless(self, task: Task | None) -> bool:
        """Whether to give up the search after one more file.

        ``task`` is None if the file is nothing that HangScope reads.
        """
        if task is None:
            self._others += 1
        elif _is_unrelated_text(task):
            self._texts += 1
        return self._texts + self._others / _BINARIES_PER_TEXT > MAX_UNRELATED

    def advice(self, found: Sequence[Task]) -> str:
        """What to do instead; ``found`` is what has been found so far."""
        rings = (task.path for task in found if task.kind.name == formats.RING)
        run = next((os.path.dirname(ring) for ring in rings), None)
        such = f", such as {file_names.printable_path(run)}" if run else ""
        where, count = file_names.printable_path(self._path), self._texts + self._others
        return (
            f"{where}: holds {count:,} files and more that no job leaves; give the folder of the "
            f"run{such}"
        )


def os_error_text(error: OSError) -> str:
    """A short reason why a file cannot be used."""
    return (error.strerror or type(error).__name__).lower()


def _is_unrelated_text(task: Task) -> bool:
    """Whether a file passes for a log although its name does not suggest one."""
    if task.kind.name != formats.LOG or task.explicit:
        return False
    return not task.path.lower().endswith(_LOG_NAMES)


def _is_skipped_folder(parent: str, name: str) -> bool:
    if name in _SKIPPED_FOLDERS or name[0] == ".":
        return True
    return name in _KERNEL_FOLDERS and os.path.ismount(os.path.join(parent, name))


def _natural(name: str) -> tuple[int, str]:
    """Sorts shorter names first, so that rank 10 comes after rank 9."""
    return len(name), name
