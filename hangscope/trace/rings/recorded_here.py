"""Whether evidence is of jobs that this user has run on this machine, and in which directories."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from hangscope.ring.checks import RingError
from hangscope.ring.process_identity import boot_id
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace import formats
from hangscope.trace.files.regular_files import is_own
from hangscope.trace.model import Source

_MOST_ASKED = 64
"""Rings of one folder that are opened for this."""


def working_directories(sources: Iterable[Source]) -> tuple[str, ...] | None:
    """The working directories of the ranks; None if some evidence may be from elsewhere.

    A ring counts as recorded here if it belongs to this user or root and names the current boot of
    this machine. Every other file must lie in a folder with such a ring: nobody but the user writes
    to a run directory.
    """
    return _directories(tuple((source.path, source.format) for source in sources))


@lru_cache(maxsize=16)
def _directories(files: tuple[tuple[str, str], ...]) -> tuple[str, ...] | None:
    folders, found, asked = set(), set(), Counter[str]()
    for path, kind in files:
        folder = os.path.dirname(path)
        if kind != formats.RING or asked[folder] == _MOST_ASKED:
            continue
        asked[folder] += 1
        directory = _recorded_in(path)
        if directory is not None:
            found.add(directory)
            folders.add(folder)
    folders = {os.path.realpath(folder) for folder in folders}
    holding = {os.path.dirname(path) for path, _ in files}
    if not folders or not folders.issuperset(map(os.path.realpath, holding)):
        return None
    return tuple(sorted(found - {""}))


@lru_cache(maxsize=1024)
def _recorded_in(path: str) -> str | None:
    """The working directory of the process that has recorded a ring; None if it did so elsewhere.

    Empty if it is not known.
    """
    try:
        reader = RingReader(path)
    except (OSError, RingError, ValueError):
        return None
    try:
        header = reader.header()
        here = boot_id()
        own = is_own(reader.owner)
        same = here and decode_text(header.boot_id) == here
        return decode_text(header.cwd) if own and same else None
    except (OSError, RingError):
        return None
    finally:
        reader.close()
