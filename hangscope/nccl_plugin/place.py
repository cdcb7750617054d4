"""Where the built plugin lies, and whether it may be loaded from there."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
BESIDE_THE_PACKAGE = Path(__file__).parent / "built"
"""Where a wheel brings it, and ``hangscope compile`` puts it if that place can be written."""
PLACE = "HANGSCOPE_INTERNAL_NCCL_PLUGIN"
"""Environment variable with another directory, for tests."""


def cache_directory() -> Path:
    """Where it is built if the package's own directory is read-only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hangscope"


def places() -> Iterator[Path]:
    """The directories in which it is looked for, in order."""
    given = os.environ.get(PLACE)
    if given:
        yield Path(given)
        return
    yield BESIDE_THE_PACKAGE
    yield cache_directory()


def file_name() -> str:
    """The name of the library that these sources make for this machine's processor."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return f"libhangscope_nccl_{digest.hexdigest()[:12]}_{platform.machine()}.so"


def built_plugin() -> Path | None:
    """The built library, if there is one in a place from which it may be loaded.

    Raises
    ------
    PermissionError
        If there is one, but only where others could exchange it; the message says where.
    """
    name, refused = file_name(), ""
    for directory in places():
        path = directory / name
        if not path.is_file():
            continue
        refused = others_may_write(path)
        if not refused:
            return path
    if refused:
        raise PermissionError(refused)
    return None


def others_may_write(path: Path) -> str:
    """Who besides root and this user could exchange a file, as a sentence; empty if nobody can.

    NCCL runs what is in it inside the training process. A directory above it counts as well, except
    one with the sticky bit, in which only an owner can rename.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        status = place.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user"
        sticky = place != path.parent and bool(status.st_mode & stat.S_ISVTX)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            return f"others than its owner may write {place}"
    return ""
