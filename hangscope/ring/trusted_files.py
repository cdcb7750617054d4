"""From where native code may be loaded, which can do anything to the training process."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hangscope.ring import portable

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(Exception):
    """Somebody else could have written the file; the message says where and what to do."""


def check_trusted(path: Path) -> None:
    """Check that nobody but root and this user can have put a file or directory there.

    Each directory above it must belong to one of them and be writable for its owner only, or be
    one in which others cannot replace it (the sticky bit, as on ``/tmp``). Where links lead is
    checked as well.

    Raises
    ------
    UntrustedError
        If that is not so, or the path is not absolute.
    OSError
        If it does not exist.
    """
    if not path.is_absolute():
        raise UntrustedError(f"{path} is a relative path; give an absolute one")
    for place in _places_on(path):
        status = place.lstat()
        if status.st_uid not in (0, portable.user_id()):
            raise UntrustedError(
                f"{place} belongs to user {status.st_uid}; compile as the job's user or root"
            )
        is_shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(status.st_mode) or (is_shared and place != path):
            continue
        if status.st_mode & _OTHERS_MAY_WRITE:
            raise UntrustedError(f"others may write to {place}; chmod go-w {place}")


def is_trusted(path: Path) -> bool:
    """Whether `check_trusted` accepts an existing path."""
    try:
        check_trusted(path)
    except (UntrustedError, OSError):
        return False
    return True


def _places_on(path: Path) -> Iterator[Path]:
    """The path and all directories above it, as it is written and where its links lead."""
    for whole in dict.fromkeys((Path(os.path.normpath(path)), Path(os.path.realpath(path)))):
        yield whole
        yield from whole.parents


def cache_directory() -> Path:
    """Where compiled parts go if the package's own directory is read-only."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says so, too
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hangscope"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Where one kind of compiled file is looked for.

    Parameters
    ----------
    beside:
        A directory of the package, which all users of an image share.
    variable:
        Environment variable with another directory, for tests.
    """

    beside: Path
    variable: str

    def places(self) -> Iterator[Path]:
        """The directories, in order."""
        given = os.environ.get(self.variable)
        if given:
            yield Path(given)
            return
        yield self.beside
        yield cache_directory()

    def find(self, name: str) -> Path | None:
        """The first file of this name that may be loaded, if there is one.

        Raises
        ------
        UntrustedError
            If others could have put it there, and there is no other.
        """
        refused: UntrustedError | None = None
        for path in (place / name for place in self.places()):
            if path.is_file():
                try:
                    check_trusted(path)
                except UntrustedError as error:
                    refused = refused or error
                else:
                    return path
        if refused is not None:
            raise refused
        return None
