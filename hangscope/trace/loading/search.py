"""Which files below a path may tell of a job, and when a folder is no job's at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from hangscope.trace import formats
from hangscope.trace.files import file_names
from hangscope.trace.loading.one_file import Task
from hangscope.trace.model import Unread

SKIPPED_SUFFIXES = (".pyc", ".so", ".tmp", ".lock", ".pid", ".sock")
_SOURCES = (".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".js", ".css")
_SKIPPED_NAMES = ("expected.toml",)
"""What a fixture says of its dumps."""
_SKIPPED_FOLDERS = ("__pycache__", ".git", "node_modules")
_KERNEL_FOLDERS = ("proc", "sys", "dev")
"""Where they are mounted, to read a file may be to wait for ever."""
_LOG_NAMES = (".log", ".out", ".err", ".txt", ".log.gz", "stdout", "stderr")
MOST_STRANGERS = 20_000
"""Texts below one path that look like nothing a job leaves: a run has few, a disk a million."""
_OTHERS_PER_STRANGER = 10
"""Other files are looked at and no more, and a run may have many: parts of checkpoints, say."""


def files_below(path: str, unread: list[Unread]) -> Iterable[tuple[str, bool]]:
    """The file itself, or everything below a directory, and whether it was named by the user.

    Left out are hidden files and folders, links to folders, programs and their sources, and what
    the kernel makes up.

    Parameters
    ----------
    path:
        A file or a directory.
    unread:
        What cannot be looked at comes in here.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        unread.append(Unread(file_names.shown(path), reason(error)))
        return
    if not stat.S_ISDIR(mode):
        yield path, True
        return

    def failed(error: OSError) -> None:
        name = file_names.shown(os.fsdecode(error.filename or path))
        unread.append(Unread(name, reason(error)))

    for folder, folders, files in os.walk(path, onerror=failed):
        folders[:] = sorted(name for name in folders if not _is_skipped(folder, name))
        for name in sorted(files, key=_natural):
            if not _is_no_file_of_a_job(name):
                yield os.path.join(folder, name).removeprefix("./"), False


def is_left_out(parts: Sequence[str]) -> bool:
    """Whether a file in an archive would be left out in a directory."""
    hidden = any(part in _SKIPPED_FOLDERS or part[0] == "." for part in parts[:-1])
    return hidden or _is_no_file_of_a_job(parts[-1])


def _is_no_file_of_a_job(name: str) -> bool:
    hidden = name[0] == "." or name in _SKIPPED_NAMES
    return hidden or name.endswith((*SKIPPED_SUFFIXES, *_SOURCES))


class Strangers:
    """Counts the files below one path that tell of no job, until it is plain that it is no run."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._texts = 0
        self._others = 0

    def is_hopeless(self, task: Task | None) -> bool:
        """Whether to give up searching, now that one more file was looked at.

        ``task`` is None where the file is nothing HangScope reads.
        """
        if task is None:
            self._others += 1
        elif _is_stranger(task):
            self._texts += 1
        return self._texts + self._others / _OTHERS_PER_STRANGER > MOST_STRANGERS

    def advice(self, found: Sequence[Task]) -> str:
        """What to do instead, where ``found`` is what has turned up so far."""
        rings = (task.path for task in found if task.kind.name == formats.RING)
        run = next((os.path.dirname(ring) for ring in rings), None)
        such = f", such as {file_names.shown(run)}" if run else ""
        where, count = file_names.shown(self._path), self._texts + self._others
        return (
            f"{where}: holds {count:,} files and more that no job leaves; give the folder of the "
            f"run{such}"
        )


def reason(error: OSError) -> str:
    """Why a file cannot be used, in a few words."""
    return (error.strerror or type(error).__name__).lower()


def _is_stranger(task: Task) -> bool:
    """Whether a file is taken for a log although nothing in its name says so."""
    if task.kind.name != formats.LOG or task.explicit:
        return False
    return not task.path.lower().endswith(_LOG_NAMES)


def _is_skipped(parent: str, name: str) -> bool:
    if name in _SKIPPED_FOLDERS or name[0] == ".":
        return True
    return name in _KERNEL_FOLDERS and os.path.ismount(os.path.join(parent, name))


def _natural(name: str) -> tuple[int, str]:
    """Shorter names first, so that rank 10 comes after rank 9."""
    return len(name), name
