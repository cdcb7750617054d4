"""Where the built plugin lies, and whether it may be loaded from there."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from hangscope.ring.trusted_files import UntrustedError, check_trusted

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
    UntrustedError
        If there is one, but only where others could exchange it; the message says where.
    """
    refused: UntrustedError | None = None
    for path in (place / file_name() for place in places()):
        if path.is_file():
            try:
                check_trusted(path)
            except UntrustedError as error:
                refused = error
            else:
                return path
    if refused is not None:
        raise refused
    return None
