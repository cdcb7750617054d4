"""Moves rings from local memory into the run directory after the job has ended.

A device ring lies beside the ring that the link points to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from hangscope.ring.device_layout import device_file
from hangscope.ring.local_store import stored_at
from hangscope.ring.run_directory import RunDirectory, opened
from hangscope.ring.stack_requests import stacks_file


def replace_ring_links(directory: Path) -> None:
    """Replace each link to a ring in this user's local memory by the ring file itself.

    Any other link is left alone, and so is what it leads to.
    """
    with contextlib.suppress(OSError), opened(directory) as folder:
        for name in folder.names():
            stored = stored_at(folder, name)
            if stored is None:
                continue
            with contextlib.suppress(OSError), opened(stored.parent) as store:
                for beside in (stacks_file, device_file):
                    with contextlib.suppress(FileNotFoundError):
                        _move(store, beside(stored.name), folder, beside(name))
                _move(store, stored.name, folder, name)


def _move(store: RunDirectory, stored: str, folder: RunDirectory, name: str) -> None:
    """Move a file between two directories of different file systems."""
    temporary = f".{name}.{os.getpid()}.copy"
    with open(store.own_file(stored), "rb") as source:
        try:
            with open(folder.fresh_file(temporary), "wb") as target:
                shutil.copyfileobj(source, target)
            folder.replace(name, temporary)
        except OSError:
            folder.remove(temporary)
            raise
    store.remove(stored)
